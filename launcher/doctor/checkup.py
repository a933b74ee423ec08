# SPDX-License-Identifier: Apache-2.0
"""Collects findings about this machine for the doctor: some directly, some from a child that loads torch."""

import json
import os
import platform
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pontil.launcher.child.child import child_command
from pontil.launcher.commands.launch import choose_ports
from pontil.launcher.commands.worker_memory import memory_lines
from pontil.launcher.control.run_directory import RunDirectory
from pontil.launcher.doctor import diagnosis
from pontil.launcher.doctor.finding import Finding, broken, fine, warning
from pontil.launcher.doctor.model_diagnosis import judge_models
from pontil.launcher.foundation.errors import LaunchError, OptionError
from pontil.launcher.host.devices import CGROUP_MOUNT, CPU, MEMBERSHIP, HostDevices, cpu_quota, find_machine
from pontil.launcher.keys.client_keys import read_client_keys
from pontil.launcher.options.environment import LaunchEnvironment
from pontil.launcher.options.options import LaunchOptions
from pontil.launcher.options.worker_roles import GENERATING_ROLES, PREFILL
from pontil.launcher.plan.addresses import url_host
from pontil.launcher.plan.child_plan import ChildPlan
from pontil.launcher.plan.topology import Topology, plan
from pontil.runtime.foundation.number_ranges import spell

# Packages that the processes of a launch import, as setup.cfg declares them.
PACKAGES = (
    "click",
    "cryptography",
    "gguf",
    "httptools",
    "jinja2",
    "jsonschema",
    "llguidance",
    "msgpack",
    "numpy",
    "prometheus_client",
    "prompt_toolkit",
    "psutil",
    "rich",
    "safetensors",
    "sanic",
    "tokenizers",
    "torch",
    "zmq",
)
# Seconds, compiling kernels for the first time included.
EXAMINATION_TIMEOUT = 300.0
ANSWER_TIMEOUT = 2.0


def check_up(options: LaunchOptions, launch_environment: LaunchEnvironment) -> Iterator[Finding]:
    """Check everything that a launch with these options depends on, quick checks first."""
    machine = find_machine(launch_environment.visible_gpus)
    missing = [name for name in PACKAGES if find_spec(name) is None]
    yield diagnosis.judge_python(platform.python_version(), missing)
    quota = cpu_quota(MEMBERSHIP, CGROUP_MOUNT)
    yield diagnosis.judge_cores(machine, os.cpu_count() or len(machine.cores), quota)
    topology = planned(options, machine, launch_environment)
    yield plan_finding(topology)
    yield port_finding(options)
    yield diagnosis.judge_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield cache_finding(launch_environment.cache_directory)
    yield run_finding(launch_environment.run_base)
    facts_by_part, failure = examination(launch_environment, topology)
    yield from machine_findings(facts_by_part, failure, machine.gpus, needs_gpu(topology))
    models = facts_by_part.get("models", [])
    yield from judge_models(models)
    # A model that is not served has said so.
    if not any(facts["faults"] for facts in models):
        yield from memory_findings(topology)


def planned(
    options: LaunchOptions, machine: HostDevices, launch_environment: LaunchEnvironment
) -> Topology | OptionError:
    """Return the plan of a launch on what others leave, or the error with which it would refuse to start."""
    directory = RunDirectory(launch_environment.run_base)
    try:
        with directory.others() as held_devices:
            topology = plan(
                options, replace(machine, held=held_devices), directory.path, launch_environment.cache_directory
            )
        read_client_keys(options, launch_environment.variables)
    except OptionError as error:
        return error
    return topology


def plan_finding(topology: Topology | OptionError) -> Finding:
    if isinstance(topology, OptionError):
        meaning, mend = "a launch with these options is refused", "do as it says; --dry-run shows a plan"
        return broken("plan", topology.message, meaning, mend)
    workers = [child for child in topology.children if not child.is_proxy]
    places = [where(child) for child in workers]
    return fine("plan", ", ".join(places) or "no worker here")


def memory_findings(topology: Topology | OptionError) -> Iterator[Finding]:
    """Yield the memory of the plan's workers and their ranks."""
    if isinstance(topology, OptionError):
        return
    try:
        yield from (fine("memory of workers", line) for line in memory_lines(topology))
    except LaunchError as error:
        yield broken("memory of workers", error.message, "a launch with these options is refused", "do as it says")


def where(worker: ChildPlan) -> str:
    """Return a worker's name and devices; of one of several ranks, those of each."""
    ranks = [f"{member.device} (cores {spell(member.cores)})" for member in worker.members]
    here = f"{worker.ranks} of " if worker.nodes > 1 else ""
    return f"{worker.name} on {' and '.join(ranks)}" + (f" as {here}{worker.size} ranks" if worker.size > 1 else "")


def needs_gpu(topology: Topology | OptionError) -> bool:
    """Return whether the plan uses a GPU; also true if there is no plan."""
    return isinstance(topology, OptionError) or any(child.device != "cpu" for child in topology.children)


def port_finding(options: LaunchOptions) -> Finding:
    try:
        port = choose_ports(options).port
    except OptionError as error:
        return broken("port", error.message, "a launch with these options is refused", "do as it says")
    except LaunchError as error:
        if serves(options):
            return warning(
                "port",
                f"a pontil server answers on port {options.port} already",
                "a second one needs another port",
                "give --port, or 0 for a free one",
            )
        return broken("port", error.message, "clients could not connect", "`ss -ltnp` shows who listens")
    return fine(
        "port", "none is needed, workers join elsewhere" if options.join else f"{port} on {options.host} is free"
    )


def serves(options: LaunchOptions) -> bool:
    """Return whether a pontil server listens there."""
    connection = HTTPConnection(url_host(options.host).strip("[]"), options.port, timeout=ANSWER_TIMEOUT)
    try:
        connection.request("GET", "/health")
        answer = json.loads(connection.getresponse().read())
        return isinstance(answer, dict) and answer.get("status") == "alive"
    except (OSError, HTTPException, ValueError):
        return False
    finally:
        connection.close()


def cache_finding(place: Path) -> Finding:
    there = nearest_there(place)
    return diagnosis.judge_cache(str(place), is_writable(there), shutil.disk_usage(there).free)


def run_finding(place: Path) -> Finding:
    if is_writable(nearest_there(place)):
        return fine("run directory", str(place))
    return broken(
        "run directory",
        f"{place} cannot be written to",
        "the processes of a launch meet there",
        "set XDG_RUNTIME_DIR to a folder of yours",
    )


def nearest_there(place: Path) -> Path:
    """Return the folder itself, or the existing one in which it will be made."""
    return next(folder for folder in (place, *place.parents) if folder.exists())


def is_writable(folder: Path) -> bool:
    """Return whether an unnamed file can be created here. Permissions alone do not tell, neither for root nor on a
    read-only disk."""
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def examination(
    launch_environment: LaunchEnvironment, topology: Topology | OptionError
) -> tuple[dict[str, Any], str | None]:
    """Return the facts of a child that loads torch, and how it failed."""
    command = [*child_command("examine"), f"--parent={os.getpid()}", str(launch_environment.cache_directory)]
    asked = {} if isinstance(topology, OptionError) else models_asked(topology)
    return run_examination(command, dict(launch_environment.for_child(1)), json.dumps(asked))


def models_asked(topology: Topology) -> dict[str, Any]:
    """Return what the child is to tell of the models of a plan: an empty object where no worker is here."""
    search = topology.prepare.config
    asked = {key: search[key] for key in ("demands", "others", "adapters")}
    return asked | {"cores": stream_cores(topology)} if asked["demands"] or asked["others"] else {}


def stream_cores(topology: Topology) -> list[int]:
    """Return the cores that may compute one stream: those of a worker that decodes, with what others lend it."""
    workers = [child for child in topology.children if child.role in GENERATING_ROLES and child.device == CPU]
    decoding = [worker for worker in workers if worker.role != PREFILL][:1] or workers[:1]
    lending = [worker for worker in workers if worker.config.get("lent_cores")]
    chosen = lending if decoding and decoding[0].config.get("lent_cores") else decoding
    return sorted({core for worker in chosen for member in worker.members for core in member.cores})


def machine_findings(
    facts_by_part: dict[str, Any], failure: str | None, gpus: int, needs_gpu: bool
) -> Iterator[Finding]:
    """Yield the findings about the machine, or how the child that looks at it failed."""
    judges: dict[str, Callable[[Any], list[Finding]]] = {
        "connectors": diagnosis.judge_connectors,
        "torch": lambda facts: [diagnosis.judge_torch(facts, gpus, needs_gpu)],
        "kernels": diagnosis.judge_kernels,
        "memory": lambda facts: [diagnosis.judge_memory(facts, resource.getrlimit(resource.RLIMIT_AS)[0])],
    }
    for part, judge in judges.items():
        if part in facts_by_part:
            yield from judge(facts_by_part[part])
    if failure is not None:
        unseen = ", ".join(part for part in (*judges, "models") if part not in facts_by_part)
        yield broken(
            "workers",
            f"the process that looks at {unseen or 'the machine'} {failure}",
            "a worker would end in the same way",
            "mend what is said here; installing torch anew may be enough",
        )


def run_examination(
    command: list[str], environment: dict[str, str], asked: str = ""
) -> tuple[dict[str, Any], str | None]:
    """Return (facts, description of the failure). The child reads what is asked; each line that it prints is one
    part."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.PIPE, text=True, env=environment
    )
    try:
        output, errors = process.communicate(asked, timeout=EXAMINATION_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        errors += f"it did not end within {EXAMINATION_TIMEOUT:.0f} s"
    facts_by_part = dict(json.loads(line) for line in output.splitlines() if line.startswith("["))
    if process.returncode == 0:
        return facts_by_part, None
    last = next((line.strip() for line in reversed(errors.splitlines()) if line.strip()), "it said nothing")
    return facts_by_part, f"ended with code {process.returncode}: {last}"
