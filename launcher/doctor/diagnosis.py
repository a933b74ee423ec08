# SPDX-License-Identifier: Apache-2.0
"""Pure functions from facts about a machine to findings; checkup.py gathers the facts."""

from collections.abc import Mapping, Sequence
from typing import Any

from pontil.launcher.doctor.finding import Finding, absent, broken, fine, warning
from pontil.launcher.host.devices import HostDevices
from pontil.runtime.foundation.connectors import CONNECTORS, missing_package
from pontil.runtime.foundation.number_ranges import spell

MachineFacts = Mapping[str, Any]
# Limits on open files: the least for a proxy, its workers and their sockets; a good value; and one for many clients at
# once.
FEWEST_FILES, GOOD_FILES, MANY_FILES = 256, 1024, 65536
GIB = 1 << 30
LITTLE_MEMORY = 1 * GIB
LITTLE_SPACE = 1 * GIB


def judge_python(version: str, missing: Sequence[str]) -> Finding:
    if missing:
        return broken(
            "python",
            f"{version}, without {', '.join(missing)}",
            "the processes of a launch cannot be loaded",
            "install pontil into this Python with its dependencies: pip install .",
        )
    return fine("python", f"{version}, with every package")


def judge_torch(facts: MachineFacts, gpus: int, is_needed: bool) -> Finding:
    """Judge torch. `gpus` is how many the launcher sees; `is_needed`: the launch in question would use some."""
    version, gpu_names = facts["version"], facts["gpus"]
    fault = broken if is_needed else warning
    if gpus and facts["cuda"] is None:
        return fault(
            "torch",
            f"{version}, built without CUDA, beside {count(gpus, 'GPU')}",
            "torch cannot use them: workers that are planned there cannot start",
            "install a torch that is built with CUDA, or launch with --prefill cpu --decode cpu",
        )
    if gpus > len(gpu_names):
        return fault(
            "torch",
            f"{version} with CUDA {facts['cuda']} sees {len(gpu_names)} of {count(gpus, 'GPU')}",
            "workers that are planned on the others cannot start",
            "install a driver that is new enough for this CUDA, or a torch for an older one",
        )
    if len(gpu_names) > gpus:
        return warning(
            "torch",
            f"{version} sees {count(len(gpu_names), 'GPU')}, nvidia-smi {gpus}",
            "a launch plans only with the GPUs that nvidia-smi shows",
            "install nvidia-smi, it belongs to the driver",
        )
    return fine("torch", f"{version}, {', '.join(gpu_names) or 'no GPU here: workers run on the CPU'}")


def judge_kernels(facts: MachineFacts) -> list[Finding]:
    """Judge the compiler and the chosen instruction set."""
    compiler, chosen_set, refused_sets = facts["compiler"], facts["chosen"], facts["refused"]
    slow = "workers on the CPU compute with torch's operations, several times slower"
    why = "; ".join(f"{name}: {reason}" for name, reason in refused_sets.items())
    if compiler is None and chosen_set is None:
        return [
            warning("compiler", "no C++ compiler", slow, "install g++ or clang++ (apt install g++)"),
            warning("kernels", "none", slow, "install a compiler"),
        ]
    compiler_finding = fine("compiler", compiler or "none, and none is needed: the kernels were compiled in advance")
    if chosen_set is None:
        return [
            compiler_finding,
            warning("kernels", why or "none", slow, "mend what is said here, or report it with these words"),
        ]
    if refused_sets:
        meaning = "the processor has a faster set, which cannot be used"
        return [
            compiler_finding,
            warning("kernels", f"{chosen_set}, not {why}", meaning, "a newer compiler or kernel may help"),
        ]
    return [compiler_finding, fine("kernels", f"{chosen_set}, the fastest this processor has")]


def judge_cores(machine: HostDevices, all_cores: int, quota: float | None) -> Finding:
    """Judge the cores. `quota` is the control group's limit in cores."""
    cores = f"{spell(machine.cores)} of {all_cores}" if len(machine.cores) < all_cores else spell(machine.cores)
    if quota is not None and quota < len(machine.cores):
        return warning(
            "cores",
            f"{cores}, of which the control group pays for {quota:g}",
            f"a launch plans with {len(machine.affordable)}: more would wait for each other",
            "raise the CPU limit of the container or service (CPUQuota=, --cpus)",
        )
    if len(machine.cores) == 1 and not machine.gpus:
        return warning(
            "cores", f"only {cores}", "prefill and decode need a core each", "launch with --role mixed, on one worker"
        )
    return fine("cores", cores)


def judge_files(soft: int, hard: int) -> Finding:
    """Judge the limits on open files, -1 for none."""
    if soft < 0 or soft >= GOOD_FILES:
        return fine("open files", "no limit" if soft < 0 else f"{soft} for each process, of which a client takes one")
    target = MANY_FILES if hard < 0 else min(hard, MANY_FILES)
    mend = f"ulimit -n {target} before the launch, or LimitNOFILE={target} in its service"
    if soft < FEWEST_FILES:
        return broken("open files", f"{soft}", "too few for the processes and a handful of clients", mend)
    return warning("open files", f"{soft}", "a client takes one: with that many, no more are let in", mend)


def judge_memory(facts: MachineFacts, address_space: int) -> Finding:
    """Judge the memory. `address_space` is the limit on the address space, -1 for none."""
    memory = f"{gib(facts['bytes'])} left of {gib(facts['limit'] or facts['total'])}"
    memory += ", the limit of its control group" if facts["limit"] else ""
    if address_space >= 0:
        return warning(
            "memory",
            f"{memory}, and an address space of {gib(address_space)}",
            "torch maps far more than it uses, and may be refused it",
            "ulimit -v unlimited before the launch",
        )
    if facts["bytes"] < LITTLE_MEMORY:
        return warning(
            "memory", memory, "a small model and its KV cache may not fit", "end other programs, or raise the limit"
        )
    return fine("memory", memory)


def judge_cache(place: str, writable: bool, free: int) -> Finding:
    if not writable:
        return broken(
            "model cache",
            f"{place} cannot be written to",
            "models and kernels cannot be kept",
            "make it writable, or set PONTIL_CACHE to a folder of yours",
        )
    if free < LITTLE_SPACE:
        return warning(
            "model cache",
            f"{place}, {gib(free)} free",
            "larger models cannot be fetched",
            "make room, or set PONTIL_CACHE to a folder on another disk",
        )
    return fine("model cache", f"{place}, {gib(free)} free")


def judge_connectors(facts: MachineFacts) -> list[Finding]:
    """Judge the KV connectors, given as rates in bytes a second or as words that say why there is none."""
    return [judge_connector(kind, facts[kind]) for kind in CONNECTORS if kind in facts]


def judge_connector(kind: str, rate: float | str) -> Finding:
    subject, row = f"kv over {kind}", CONNECTORS[kind]
    if rate == missing_package(row):
        return absent(subject, f"{rate}, if you want --kv-connector {kind}")
    if isinstance(rate, str):
        return (broken if row.needed else warning)(subject, rate, row.without, row.mend)
    speed = f"{rate / 1e9:.1f} GB/s"
    if rate < row.slow:
        meaning = "handing over a prompt takes longer than it should"
        return warning(subject, speed, meaning, "look for what else keeps this machine busy")
    return fine(subject, speed)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
