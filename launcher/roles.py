# SPDX-License-Identifier: Apache-2.0
"""The body of a child process: from the inherited descriptors to its role. The one launcher module that imports the
other rooms.

Those imports are inside functions: affinity and thread counts must be set before torch is loaded, and no role loads
what another needs.
"""

import faulthandler
import json
import logging
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from pontil.launcher.child.exit_cause import EXIT_GPU_FAULT, EXIT_RANK_LOST, gpu_fault
from pontil.launcher.child.fork.forked import quick_import
from pontil.launcher.child.parent_death import die_with_parent, parent_death_signal
from pontil.launcher.child.reporter import PipeReporter
from pontil.launcher.foundation.errors import LaunchError, RefusedError
from pontil.launcher.logs.log_line import PipeFormatter, TextFormatter
from pontil.launcher.logs.non_blocking_writer import NonBlockingWriter, plain_notice
from pontil.launcher.options.worker_roles import WORKER_ROLES
from pontil.runtime.config.hub_access import HubAccess
from pontil.runtime.errors import AdapterError, DraftModelError, IncompatiblePeer, ModelError, PontilError, RankLost
from pontil.runtime.foundation.draft_names import MTP
from pontil.runtime.reporting import Reporter

if TYPE_CHECKING:
    import sqlite3

EXIT_FAILED = 1
EXIT_BROKEN = 70
EXIT_CODES = (
    (IncompatiblePeer, RefusedError.exit_code),
    (DraftModelError, RefusedError.exit_code),
    (AdapterError, RefusedError.exit_code),
    (RankLost, EXIT_RANK_LOST),
)
STDERR = 2
# Seconds that an ending child waits for its last output to be read.
LAST_WORDS_WITHIN = 1.0

# A role's body takes its configuration as a dict, its reporter, and the command pipe if it has one.
Body = Callable[[dict[str, Any], Reporter, "int | None"], None]


@dataclass(frozen=True, slots=True)
class Inheritance:
    """Arguments from the launcher on the command line: descriptors, and the pid of the parent to die with."""

    parent: int
    config: int
    report: int
    commands: int | None


def run_child(inheritance: Inheritance, bodies: "Mapping[str, Body] | None" = None) -> int:
    """Run the process that its configuration describes, and return the exit code."""
    faulthandler.enable()
    threading.excepthook = end_by_a_thread
    writer = take_over_output()
    die_with_parent(inheritance.parent)
    keep_from_grandchildren(inheritance)
    with os.fdopen(inheritance.config) as file:
        child_config = json.load(file)
    reporter = PipeReporter(inheritance.report)
    reporter.start()
    try:
        return run_role(child_config, reporter, inheritance.commands, bodies or BODIES)
    finally:
        reporter.stop()
        if writer is not None:
            writer.finish(LAST_WORDS_WITHIN)


def run_role(child_config: dict[str, Any], reporter: Reporter, commands: int | None, bodies: Mapping[str, Body]) -> int:
    config = child_config["config"]
    start_logging(config.get("log_level", "info"), config.get("name", child_config["role"]))
    try:
        if child_config["role"] in WORKER_ROLES:
            os.sched_setaffinity(0, child_config["cores"])
        bodies[child_config["role"]](config, reporter, commands)
    except PontilError as error:
        reporter.failed(str(error))
        return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), EXIT_FAILED)
    except Exception as error:
        # The outermost frame of every child: a fault of ours is logged in full and reported by the exit code.
        logging.getLogger("pontil").exception(
            "%s ended by a fault of its own", config.get("name", child_config["role"])
        )
        return EXIT_GPU_FAULT if gpu_fault(str(error).splitlines()) else EXIT_BROKEN
    return 0


def end_by_a_thread(hook_args: threading.ExceptHookArgs) -> None:
    """End the process after an uncaught exception in a thread: it would only look healthy, and is replaced. Threads
    that can recover do so themselves (runtime/threads.py)."""
    name = "a thread" if hook_args.thread is None else f"the thread {hook_args.thread.name}"
    logging.getLogger("pontil").critical(
        "%s ended by a fault, so this process does", name, exc_info=hook_args.exc_value
    )
    logging.shutdown()
    os._exit(EXIT_BROKEN)


def die_with_group() -> None:
    """Have SIGTERM kill the child's whole group when the launcher dies, for a role that starts processes of its own."""
    signal.signal(signal.SIGTERM, end_group)
    parent_death_signal(signal.SIGTERM)()


def end_group(number: int, frame: FrameType | None) -> None:
    """Kill this child's own process group, which it leads."""
    with suppress(ProcessLookupError):
        os.killpg(0, signal.SIGKILL)


def keep_from_grandchildren(inheritance: Inheritance) -> None:
    """Keep descriptors from being inherited: a grandchild that held the report pipe would hide this process's exit."""
    for descriptor in (inheritance.config, inheritance.report, inheritance.commands):
        if descriptor is not None:
            os.set_inheritable(descriptor, False)


def take_over_output() -> NonBlockingWriter | None:
    """Send logs and prints to the supervisor's pipe without ever blocking, even if the supervisor is stopped. None for
    a process that has the terminal to itself. Descriptors 1 and 2 are one pipe, and no other process writes to it."""
    if not stat.S_ISFIFO(os.fstat(STDERR).st_mode):
        return None
    os.set_blocking(STDERR, False)
    writer = NonBlockingWriter(STDERR, missing_lines, prompt=True)
    sys.stdout = sys.stderr = writer
    return writer


def missing_lines(lost: int) -> str:
    """Return the notice of missing lines as a log record."""
    values = {"name": "pontil.log", "msg": plain_notice(lost), "levelname": "WARNING"}
    return PipeFormatter().format(logging.makeLogRecord(values))


def start_logging(level: str, process: str) -> None:
    """Start logging: whole records for the supervisor's pipe; text for a process that has the terminal to itself."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter(process) if sys.stderr.isatty() else PipeFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # No formatter shows them, and finding them out is a third of a record's cost. Without the last, no frame is looked
    # at to find the caller.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None


def prepare(config: dict[str, Any], reporter: Reporter, commands: int | None) -> None:
    """Find the models, fetching them if needed, check that they fit the memory, and report their paths."""
    die_with_group()
    from pontil.launcher.options.options import read_environment
    from pontil.runtime.loaders.builtin import resolve_model
    from pontil.runtime.probe.adapters import check_adapters
    from pontil.runtime.probe.footprint import (
        MemoryDemand,
        awake_bytes,
        check_all_memory,
        check_each_memory,
        check_room,
    )
    from pontil.runtime.probe.other_workers import OtherWorker, other_footprints

    cache, access = Path(config["cache_dir"]), read_environment().hub_access
    demands = {name: MemoryDemand(**demand, shares_weights=True) for name, demand in config["demands"].items()}
    drafts = {demand.speculative_model for demand in demands.values()} - set(demands)
    paths = {name: resolve_model(name, cache, access) for name in config["models"] if name not in drafts}
    others = other_footprints([OtherWorker(**other) for other in config["others"]], paths)
    for name, demand in demands.items():
        check_adapters(config["adapters"][name], paths[name])
        draft = demand.speculative_model
        if draft is not None:
            paths[draft] = find_draft(paths[name], draft, cache, access)
    wanted = [(paths[name], demand, paths.get(demand.speculative_model or "")) for name, demand in demands.items()]
    sizes = {config["groups"][name]: awake_bytes(*one) for name, one in zip(demands, wanted, strict=True)}
    memory = config["model_memory"]
    if memory is None:
        lines = check_all_memory(wanted, others) if demands else check_room(others, config["gpu_memory"])
    else:
        lines = check_each_memory(wanted, others, memory)
    for line in lines:
        logging.getLogger("pontil").info("memory on %s", line)
    paths.pop(MTP, None)
    # Only the folder: a model's file may be a link to content without a name, and its parts lie beside the link.
    reporter.ready(paths={name: str(path.parent.resolve() / path.name) for name, path in paths.items()}, sizes=sizes)


def find_draft(target: Path, name: str, cache: Path, access: HubAccess) -> Path:
    """Find the model that guesses for another. Raises DraftModelError."""
    from pontil.runtime.loaders.builtin import resolve_model
    from pontil.runtime.worker.start.draft_pair import check_pair

    try:
        path = Path(MTP) if name == MTP else resolve_model(name, cache, access)
    except ModelError as error:
        raise DraftModelError(f"--speculative-model: {error}") from error
    check_pair(target, path, cache)
    return path


def become_worker(parent: int, requests: int) -> list[str] | None:
    """Serve forks, in a process that has imported what every worker uses. Return in each fork the words of its command
    line, and None once the launcher ends this."""
    from pontil.launcher.child.fork.forked import serve_forks

    import_for_workers()
    return serve_forks(parent, requests)


def import_for_workers() -> None:
    with quick_import():
        from pontil.runtime.worker import entry as process  # noqa: F401


def work(config: dict[str, Any], reporter: Reporter, commands: int | None) -> None:
    from pontil.runtime.config.worker_config import worker_config

    import_for_workers()
    from pontil.runtime.worker.entry import run_worker

    run_worker(worker_config(config), reporter, commands)


def serve(config: dict[str, Any], reporter: Reporter, commands: int | None) -> None:
    from pontil.runtime.config.proxy_config import proxy_config

    with quick_import():
        from pontil.http.server.service import run_proxy

    assert commands is not None
    run_proxy(proxy_config(config), reporter, commands)


def memory_of_workers(config: Mapping[str, Any]) -> "list[str] | None":
    """Return in words the least memory of a planned worker, of each size in ranks, and of all on this host; None where
    the model is not here yet. `config` is that of the child that finds the model. Raises LaunchError for what would be
    refused."""
    from pontil.runtime.loaders.builtin import local_model
    from pontil.runtime.probe.adapters import check_adapters
    from pontil.runtime.probe.footprint import MemoryDemand, check_room, memory_lines
    from pontil.runtime.probe.other_workers import OtherWorker, other_footprints, other_lines

    cache, beside = Path(config["cache_dir"]), [OtherWorker(**other) for other in config["others"]]
    found = {name: local_model(name, cache) for name in (*config["demands"], *(other.model for other in beside))}
    here = {name: path for name, path in found.items() if path is not None}
    try:
        others = other_footprints(beside, here)
        demands = {name: MemoryDemand(**demand, shares_weights=True) for name, demand in config["demands"].items()}
        for name in demands.keys() & here.keys():
            check_adapters(config["adapters"][name], here[name])
        lines = [memory_lines(here[name], demand, others) for name, demand in demands.items() if name in here]
        if not demands:
            check_room(others, config["gpu_memory"])
        lines.append(other_lines(beside, here))
        return [line for some in lines for line in some] or None
    except AdapterError as error:
        raise RefusedError(f"{error}.") from None
    except PontilError as error:
        raise LaunchError(f"{error}.") from None


def memory_of_draft(config: Mapping[str, Any]) -> str | None:
    """Return what the draft model of a plan takes of each worker that has one, in words; None without one, or if it is
    not here yet. Raises LaunchError for what would be refused, with the exit code that the launch would have."""
    from pontil.runtime.loaders.builtin import local_model
    from pontil.runtime.probe.footprint import MemoryDemand, draft_footprint

    try:
        for model, demand in ((name, MemoryDemand(**demand)) for name, demand in config["demands"].items()):
            if demand.speculative_model is None:
                continue
            cache, name = Path(config["cache_dir"]), demand.speculative_model
            path = Path(MTP) if name == MTP else local_model(name, cache)
            target = local_model(model, cache)
            if path is not None and target is not None:
                return draft_footprint(target, path, demand).words
    except DraftModelError as error:
        raise RefusedError(f"{error}.") from None
    except PontilError as error:
        raise LaunchError(f"{error}.") from None
    return None


@contextmanager
def usage_log(path: Path) -> "Iterator[sqlite3.Connection]":
    """Open a usage log to be read. Raises LaunchError for what is wrong with it, then or later."""
    import sqlite3

    from pontil.runtime.accounting.usage_file import open_to_read

    try:
        with closing(open_to_read(path)) as database:
            yield database
    except (PontilError, sqlite3.Error) as error:
        raise LaunchError(f"{error}.") from None


def read_usage(path: Path) -> list[dict[str, Any]]:
    """Return the sums of a usage log, as JSON values. Raises LaunchError."""
    from pontil.runtime.accounting.usage_report import usage_sums

    with usage_log(path) as database:
        return [asdict(usage_sum) for usage_sum in usage_sums(database)]


def read_bills(path: Path, names: str) -> list[dict[str, Any]]:
    """Return the rows of the requests in a usage log whose names begin so, as JSON values. Raises LaunchError."""
    from pontil.runtime.accounting.usage_report import bills_of

    with usage_log(path) as database:
        return [asdict(bill) for bill in bills_of(database, names)]


def audit_usage(path: Path, live: Mapping[str, Any] | None) -> list[tuple[bool, str]]:
    """Compare a usage log's figures: return for each comparison whether it is equal, and a description. Raises
    LaunchError."""
    from pontil.runtime.accounting.audit import audit

    with usage_log(path) as database:
        return [(comparison.equal, comparison.text) for comparison in audit(database, live)]


BODIES: Mapping[str, Body] = {"prepare": prepare, "proxy": serve, **dict.fromkeys(WORKER_ROLES, work)}
