# SPDX-License-Identifier: Apache-2.0
"""The plan of a launch whose workers Ray places: what each needs of a node, and the words of its own launch there.
Nothing here has side effects."""

import os
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.host.device_list import JOIN, DeviceItem
from pontil.launcher.host.devices import even_runs
from pontil.launcher.options.options import OPTIONS, LaunchOptions, flag_name
from pontil.launcher.options.worker_roles import LISTED_ROLES
from pontil.launcher.plan.addresses import controls_of
from pontil.launcher.plan.checks import check_deadlines, check_lists, check_own_endpoint, check_proxies
from pontil.launcher.plan.graph_choice import graph_of
from pontil.launcher.plan.worker_lists import roles_of
from pontil.runtime.foundation.number_ranges import spell

# Options that say where and as what processes run, which differ from launch to launch.
PLACES = {"on", "ray_address", "role", *LISTED_ROLES, "placement", "place", "node", "first_number"}
# Options of the proxy and of the network that only it, or none of the parts, may have.
PROXYS = {
    "host", "port", "allowed_hosts", "cors_origin", "max_body_size", "response_store", "response_store_size",
    "response_store_days", "control", "proxies", "resume_window", "join", "api_keys", "admin_key", "fair_by",
    "share_prefixes", "stable_prompts", "strict_parameters", "keys", "usage_log", "usage_log_days", "slow_log",
    "log_dir", "otlp_traces_endpoint", "otlp_headers", "otlp_traces_sample_rate", "receipt_key", "balance",
    "profile", "ttft_limit", "tpot_limit",
}  # fmt: skip
EVERY = {option.name for option in OPTIONS}


def words_for(options: LaunchOptions, names: Collection[str]) -> list[str]:
    """Return the flags, among fields of these names, that give a launch the same values. Defaults need none."""
    return [
        word
        for option in OPTIONS
        if option.name in names and (value := getattr(options, option.name)) != option.default
        for word in spelled(flag_name(option), value)
    ]


def spelled(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}={text_of(value)}"]


def text_of(value: Any) -> str:
    """Return the text from which an option's reader makes this value."""
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    # Readers take no exponents.
    return f"{value:.9f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node as an actor finds it: Ray's name of it, its address, and the cores that may be used."""

    name: str
    address: str
    cores: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlacedWorker:
    """One worker: its role, its number among those of the role, and its devices as the launch names them. Ray decides
    which cores or GPUs they are."""

    role: str
    number: int
    item: DeviceItem

    @property
    def name(self) -> str:
        return f"{self.role}:{self.number}"

    @property
    def bundle(self) -> dict[str, float]:
        """The resources that Ray has to find for it on one node: GPUs with a core each, or cores."""
        if self.item.gpus:
            return {"CPU": float(len(self.item.gpus)), "GPU": float(len(self.item.gpus))}
        return {"CPU": float(self.cores)}

    @property
    def cores(self) -> int:
        """The number of cores of all ranks; one for each where none are named."""
        return sum(len(rank.cores or (0,)) for rank in self.item.ranks)

    def devices(self, node: ClusterNode, taken_cores: Iterable[int]) -> tuple[str, tuple[int, ...]]:
        """Return its device list on a node, and the cores in it: neighbours that the fewest workers have taken. Ray
        numbers the GPUs of each worker from 0."""
        if self.item.gpus:
            return JOIN.join(str(gpu) for gpu in range(len(self.item.gpus))), ()
        cores = neighbours(node.cores, self.cores, Counter(taken_cores))
        ranks = len(self.item.ranks)
        runs = even_runs(cores, ranks) if ranks <= len(cores) else [cores[:1]] * ranks
        return JOIN.join(f"cpu:{spell(run)}" for run in runs), cores

    def describe(self) -> str:
        needs = ", ".join(f"{name} {count:g}" for name, count in self.bundle.items())
        return f"{self.name:<12} {needs}"


def neighbours(cores: Sequence[int], count: int, users: Counter[int]) -> tuple[int, ...]:
    """Return a run of so many neighbouring cores, of which the fewest are used; a shorter one where none is as long."""
    for length in range(min(count, len(cores)), 1, -1):
        runs = [tuple(cores[start : start + length]) for start in range(len(cores) - length + 1)]
        whole = [run for run in runs if run[-1] - run[0] == length - 1]
        if whole:
            return min(whole, key=lambda run: sum(users[core] for core in run))
    return (min(cores, key=lambda core: users[core]),)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The workers of a launch on a cluster, and the options that all parts get."""

    options: LaunchOptions
    workers: tuple[PlacedWorker, ...]

    def proxy_words(self, control: str) -> list[str]:
        return [
            "--on=host",
            "--role=proxy",
            f"--control={control}",
            *words_for(self.options, EVERY - PLACES - {"control", "keys"}),
        ]

    def worker_words(self, worker: PlacedWorker, devices: str, control: str) -> list[str]:
        """Return the words of a worker's launch, which joins every proxy. A model that is a file here is looked for
        at the same path there."""
        shared_words = words_for(self.options, EVERY - PLACES - PROXYS - {"model"})
        join = ",".join(controls_of(control, self.options.proxies))
        return [
            "--on=host",
            f"--role={worker.role}",
            f"--{worker.role}={devices}",
            f"--first-number={worker.number}",
            f"--join={join}",
            f"--model={path_or_name(self.options.model_name)}",
            *shared_words,
        ]


def path_or_name(model: str) -> str:
    return os.path.abspath(model) if os.path.exists(model) else model


def plan_cluster(options: LaunchOptions) -> ClusterPlan:
    """Plan a launch on a cluster. Raises OptionError for options that have no meaning there."""
    if options.role not in ("all", "mixed"):
        raise OptionError(f"--on ray starts the proxy and all workers: not with --role {options.role}.")
    if options.join:
        raise OptionError("--on ray starts a proxy of its own, and --join is for workers of another one: give one.")
    if options.nnodes > 1 or options.node_rank or options.master_addr:
        raise OptionError("--on ray places each worker on one host: leave out --nnodes, --node-rank and --master-addr.")
    if options.ray_address is not None and "://" in options.ray_address:
        raise OptionError(
            f"--ray-address {options.ray_address} is one of Ray's client: run the launch on a node of the cluster, and "
            "name its head as HOST:PORT or leave it out."
        )
    if options.models is not None or len(options.model) > 1:
        raise OptionError("--on ray places the workers of one model: start others on hosts, with --role and --join.")
    if graph_of(options.model_name) is not None or options.placement or options.place or options.node:
        raise OptionError(
            "--on ray places models of one stage only: start the stages on hosts, with --role and --join."
        )
    check_own_endpoint(options, None)
    check_proxies(options, None, controls_of(options.control or "", options.proxies))
    check_lists(options)
    check_deadlines(options)
    workers = [
        PlacedWorker(role, options.first_number + number, item)
        for role in roles_of(options)
        for number, item in enumerate(one_each(getattr(options, role)))
    ]
    if not workers:
        raise OptionError("No worker is left to start: give --prefill or --decode at least one device.")
    return ClusterPlan(options, tuple(workers))


def one_each(items: tuple[DeviceItem, ...] | None) -> tuple[DeviceItem, ...]:
    return (DeviceItem(),) if items is None else items
