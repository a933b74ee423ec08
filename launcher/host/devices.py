# SPDX-License-Identifier: Apache-2.0
"""Devices of the machine, and placement of workers on them.

A core with spinning threads of two processes is ruinously slow, so a core (or a GPU) belongs to one rank of one worker
unless `--share-devices` says otherwise. A GPU rank's cores only feed its GPU: they are a preference, never a claim.
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.foundation.held_devices import HeldDevices
from pontil.launcher.host.device_list import DeviceItem, RankDevice, repeated
from pontil.launcher.host.gpus import find_gpus, named_gpus
from pontil.launcher.host.numa import cores_near
from pontil.runtime.foundation.number_ranges import spell

MEMBERSHIP, CGROUP_MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of one rank of a worker: a torch device, and the cores its threads are pinned to."""

    device: str
    cores: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HostDevices:
    """Cores this process may run on, how many of them its control group's CPU quota covers, and GPUs numbered from 0,
    with the free memory of each in bytes (None: unknown). `gpu_names` are those that CUDA_VISIBLE_DEVICES gives them
    (empty: their numbers), by which other launches know them, and `held` is what those have. `near` are the cores of
    each GPU's NUMA node (none: not known)."""

    cores: tuple[int, ...]
    quota: int
    gpus: int
    gpu_memory: tuple[int | None, ...] = ()
    gpu_names: tuple[str, ...] = ()
    held: HeldDevices = HeldDevices()
    near: tuple[frozenset[int], ...] = ()

    def feeding(self, gpu: int) -> tuple[int, ...]:
        """Return the cores that may feed a GPU: those of its NUMA node, else any."""
        near = self.near[gpu] if self.near else frozenset[int]()
        return tuple(core for core in self.cores if core in near)[: self.quota] or self.affordable

    @property
    def affordable(self) -> tuple[int, ...]:
        return self.cores[: self.quota]

    def gpu_name(self, gpu: int) -> str:
        return self.gpu_names[gpu] if self.gpu_names else str(gpu)

    @property
    def held_gpus(self) -> list[int]:
        """The GPUs, as numbered here, that other launches have."""
        return [gpu for gpu in range(self.gpus) if self.gpu_name(gpu) in self.held.gpus]


def assign(items: Sequence[DeviceItem], machine: HostDevices, *, share: bool) -> tuple[tuple[Placement, ...], ...]:
    """Return for each item, in order, the placements of its ranks. Named devices are assigned first; plain `cpu` ranks
    split the remaining cores that no other launch has."""
    check_gpus(items, machine, share)
    check_cores(items, machine, share)
    taken_cores = {core for item in items for core in item.cores} | machine.held.cores.intersection(machine.cores)
    remaining_cores = [core for core in machine.cores if core not in taken_cores]
    free = remaining_cores[: max(0, machine.quota - len(taken_cores))]
    plain = iter(split_cores(free, items, machine, share))
    if any(item.plain for item in items):
        taken_cores.update(machine.cores)
    feeders = iter(feeding_cores([gpu for item in items for gpu in item.gpus], taken_cores, machine))
    return tuple(tuple(placement(rank, plain, feeders) for rank in item.ranks) for item in items)


def placement(rank: RankDevice, plain: Iterator[tuple[int, ...]], feeders: Iterator[tuple[int, ...]]) -> Placement:
    if rank.gpu is not None:
        return Placement(f"cuda:{rank.gpu}", next(feeders))
    return Placement(CPU, next(plain) if rank.cores is None else rank.cores)


def check_gpus(items: Sequence[DeviceItem], machine: HostDevices, share: bool) -> None:
    gpus = [gpu for item in items for gpu in item.gpus]
    for gpu in gpus:
        if gpu >= machine.gpus:
            reason = (
                f"it has {spell(range(machine.gpus))}"
                if machine.gpus
                else "neither nvidia-smi nor AMD's driver shows any: use cpu"
            )
            raise OptionError(f"There is no cuda:{gpu} on this machine ({reason}).")
    if (twice := repeated(gpus)) is not None and not share:
        raise OptionError(
            f"cuda:{twice} is planned for two workers: give each its own GPU, or allow it with --share-devices."
        )


def check_cores(items: Sequence[DeviceItem], machine: HostDevices, share: bool) -> None:
    cores = [core for item in items for core in item.cores]
    for core in cores:
        if core not in machine.cores:
            raise OptionError(f"Core {core} cannot be used here: this process may run on {spell(machine.cores)}.")
    if share:
        return
    for item in items:
        if (twice := repeated(item.cores)) is not None:
            raise OptionError(
                f"Core {twice} is planned for two ranks of one worker ({item}): give each rank its own cores, or let "
                "them share it with --share-devices, which is slow and meant for tests."
            )
    if (twice := repeated(cores)) is not None:
        raise OptionError(
            f"Core {twice} is planned for two workers: give each its own cores, or allow it with --share-devices."
        )
    if len(cores) > machine.quota:
        raise OptionError(
            f"{len(cores)} cores are planned and the control group of this process pays for {machine.quota}: name "
            "fewer, raise its CPU limit, or let workers wait for each other with --share-devices."
        )


def split_cores(
    free: Sequence[int], items: Sequence[DeviceItem], machine: HostDevices, share: bool
) -> list[tuple[int, ...]]:
    """Split into runs of neighbouring cores, one for each plain rank, as even as possible; the earlier ranks get the
    odd ones."""
    ranks = sum(item.plain for item in items)
    if ranks <= len(free):
        return even_runs(free, ranks)
    # Better each on a core with another launch than all on the few that this leaves.
    if not share or machine.held.cores:
        unit = "CPU worker" if all(item.plain <= 1 for item in items) else "rank"
        raise OptionError(
            f"{ranks} {unit}{'s' * (ranks > 1)} and {len(free)} free core{'s' * (len(free) != 1)}: use --role mixed "
            f"(one worker for both phases), name fewer {'workers' if unit == 'CPU worker' else 'devices'}, or add "
            "--share-devices."
        )
    pool = free or machine.affordable
    return [(pool[place % len(pool)],) for place in range(ranks)]


def even_runs(cores: Sequence[int], count: int) -> list[tuple[int, ...]]:
    bounds = [math.ceil(place * len(cores) / count) for place in range(count + 1)] if count else [0]
    return [tuple(cores[low:high]) for low, high in zip(bounds, bounds[1:], strict=False)]


def feeding_cores(gpus: Sequence[int], taken_cores: set[int], machine: HostDevices) -> list[tuple[int, ...]]:
    """Return the cores of each of these GPUs: those that feed the same ones share out what is free of them."""
    homes = [machine.feeding(gpu) for gpu in gpus]
    shares: dict[tuple[int, ...], Iterator[tuple[int, ...]]] = {}
    for home in dict.fromkeys(homes):
        count, free = homes.count(home), [core for core in home if core not in taken_cores]
        shares[home] = iter(even_runs(free, count) if count <= len(free) else [home] * count)
    return [next(shares[home]) for home in homes]


def find_machine(visible_gpus: str | None) -> HostDevices:
    """Return the devices that this process may use; `visible_gpus` is CUDA_VISIBLE_DEVICES, which renumbers GPUs."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    quota = cpu_quota(MEMBERSHIP, CGROUP_MOUNT)
    affordable = len(cores) if quota is None else max(1, min(len(cores), math.floor(quota)))
    gpus = find_gpus(visible_gpus)
    names = () if visible_gpus is None else named_gpus(visible_gpus)
    near = cores_near([gpu.address for gpu in gpus])
    return HostDevices(
        cores, affordable, len(gpus), tuple(gpu.free for gpu in gpus), tuple(names[: len(gpus)]), near=near
    )


def cpu_quota(membership: Path, mount: Path) -> float | None:
    """Return the tightest CPU limit, in cores, of this process's control group and its ancestors; None if unlimited."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    limits: list[float] = []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers in ("", "cpu", "cpu,cpuacct"):
            root = mount / controllers
            folders = [root / path.lstrip("/"), *(root / path.lstrip("/")).parents]
            limits += [limit for folder in folders if root in (folder, *folder.parents) and (limit := quota_of(folder))]
    return min(limits, default=None)


def quota_of(folder: Path) -> float | None:
    """Return the limit set on one control group, in either version's files."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        except OSError:
            return None
    return int(quota) / int(period) if quota.strip().isdigit() else None
