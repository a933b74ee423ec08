# SPDX-License-Identifier: Apache-2.0
"""Bind the checkout as package `pontil` before any test module is imported.

Child processes inherit ignored signals: started by `nohup` or in a shell's background, they would not receive the
SIGHUP and SIGINT that tests send, and a test would hang.
"""

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.logging import catching_logs
from costs import TestCosts
from effort import examples, is_long
from file_scheduling import WaitingFiles
from forked_run import ForkedRun
from hypothesis import settings
from processor import hide_faster_sets
from shuffling import shuffled

import app  # noqa: F401

# isort: split

from pontil.gpu_ops.kernels.compile import build
from pontil.runtime.foundation.garbage import YOUNG_OBJECTS

if TYPE_CHECKING:
    from served import Served

# Nothing that is made until the tests are known is garbage.
gc.disable()
hide_faster_sets()
# No verdict depends on how fast a machine is, and without --long not on chance: each run tries the same examples.
settings.register_profile("any speed", deadline=None, max_examples=examples(16, 100), derandomize=not is_long())
settings.load_profile("any speed")
# Each of thousands of workers asks for them when it begins, as one process does once.
setattr(build, build.version_of.__name__, cache(build.version_of))
setattr(build, build.source_digest.__name__, cache(build.source_digest))
for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# Files whose tests share what a fixture of this name starts once for a whole run; some of the second group share
# `both_models` too, and those of `recognizer` all real nodes of speech. Those of the last share the source tree as it
# was parsed once.
SHARED = {
    "pair": tuple(
        f"system/test_{name}.py"
        for name in (
            "byte_fallback",
            "conformance",
            "faults",
            "hostile_bodies",
            "prometheus",
            "readme",
            "same_answers",
            "structured",
        )
    ),
    "small_pair": (
        "system/test_changes.py",
        "system/test_failover.py",
        "system/test_waterfall.py",
        "system/test_embeddings.py",
        "clients/test_sessions.py",
    ),
    "started_processes": tuple(
        f"gpu_ops/collectives/test_{name}.py"
        for name in (
            "collectives", "data_parallel", "divided_layers", "divided_models", "expert_parallel", "rank_faults",
        )
    ),
    "recognizer": tuple(
        f"runtime/stages/nodes/test_{name}.py" for name in ("pipeline", "recognizer", "speaker", "speech_nodes")
    ),
    "mixture_alone": ("system/test_data_parallel.py", "system/test_expert_parallel.py"),
    "source_tree": ("test_docs.py", "test_layout.py", "test_next_door.py", "test_rules.py", "test_traps.py"),
}  # fmt: skip
GROUPS = {f"tests/{file}": group for group, files in SHARED.items() for file in files}
# The threads that torch has for one product in this process, unless a test says otherwise.
THREADS: list[int] = []


def compute_alone() -> None:
    """Have torch compute by this thread. In a fork it is the only one: one that waited for those with which its parent
    computed would wait for ever."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
        THREADS[:] = [1]


os.register_at_fork(after_in_child=compute_alone)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--jobs", type=int, default=1, metavar="N", help="run files of tests in N processes at a time")
    parser.addoption("--costs", type=Path, metavar="FILE", help="write the processor time of each test to FILE")
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run files and tests in an order that SEED decides")


def pytest_configure(config: pytest.Config) -> None:
    costs = config.getoption("--costs")
    if costs is not None:
        config.pluginmanager.register(TestCosts(costs))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("--shuffle")
    if seed is not None:
        items[:] = shuffled(items, lambda item: item.path, seed)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from scanning libraries and tests, which are millions of objects, over and over, and
    what a test makes too often. Note how many threads torch has."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    gc.enable()
    if (torch := sys.modules.get("torch")) is not None:
        THREADS.append(torch.get_num_threads())
    # pytest looks six times a test at hundreds of loggers, and adds its handlers to each that passes nothing on, as
    # dozens of libraries' do. Here they do, and it looks at the root alone.
    for known in logging.root.manager.loggerDict.values():
        if isinstance(known, logging.Logger):
            known.propagate = True
    setattr(catching_logs, catching_logs.__enter__.__name__, catch_by_the_root)


def catch_by_the_root(caught: "catching_logs[Any]") -> logging.Handler:
    handler: logging.Handler = caught.handler
    if caught.level is not None:
        handler.setLevel(caught.level)
        caught.orig_level = logging.root.level
        logging.root.setLevel(min(caught.orig_level, caught.level))
    logging.root.addHandler(handler)
    caught.attached_loggers.append(logging.root)
    return handler


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Never look again at the objects that a file leaves, such as modules that it imported: some tests ask for a look
    at all objects, of which a process that runs hundreds of files would have millions. And take back torch's threads,
    of which a command that computes in this process gives it one for each core: those of several files that run at a
    time wait for each other by spinning, and a product takes ten times as long."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()
        if (torch := sys.modules.get("torch")) is not None and THREADS:
            torch.set_num_threads(THREADS[0])


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """With `--jobs` files that share a system run in one process, one after the other, and files that start processes
    beside those that compute."""
    jobs = session.config.getoption("--jobs")
    if jobs < 2 or session.testsfailed or session.config.option.collectonly:
        return None
    ForkedRun(session, jobs, WaitingFiles([item.nodeid for item in session.items], GROUPS)).run()
    return True


@pytest.fixture(scope="session")
def small_pair(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Served]":
    """One prefill and one decode worker, which come back however often they are killed. Files share it.
    What starts it is imported here, since most runs start nothing."""
    from disturbed import options
    from served import launched

    folder = tmp_path_factory.mktemp("small_pair")
    with launched(folder, "--share-devices", *options(folder)) as served:
        yield served


@pytest.fixture(scope="session")
def mixture_alone(tmp_path_factory: pytest.TempPathFactory) -> "list[dict[str, Any]]":
    """The answers of one process that serves a mixture. Files share them."""
    from rank_answers import answers, mixture
    from served import launched

    folder = tmp_path_factory.mktemp("mixture")
    with launched(folder, "--role", "mixed", "--mixed", "cpu:0", *mixture(folder)) as served:
        return answers(served)


@pytest.fixture(scope="session")
def both_models(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Served]":
    """One worker of a model that generates, and two of one that embeds. Files share it."""
    from served import launched
    from tiny_bert import write_tiny_bert
    from tiny_llama import write_tiny_llama

    folder = tmp_path_factory.mktemp("both")
    write_tiny_llama(folder / "small")
    write_tiny_bert(folder / "bert", num_hidden_layers=4)
    workers = ("--role", "mixed", "--share-devices", "--mixed", "cpu:0", "--embed", "cpu:0,cpu:1")
    models = ("--model", str(folder / "small"), "--embedding-model", str(folder / "bert"))
    # However slow the machine is, hundreds of texts at once are not refused for the time that they would take.
    patient = ("--first-byte-timeout", "600", "--kv-transfer-timeout", "600")
    with launched(folder, *workers, *models, *patient) as served:
        yield served
