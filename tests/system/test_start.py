# SPDX-License-Identifier: Apache-2.0
"""Output and self-test of a start, with real processes and a tiny model."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from forked_program import run_program
from served import ROOT, Served, launched, wait_for

from pontil.gpu_ops.kernels.lent_cores import IDLE, STRIDE
from pontil.launcher.roles import audit_usage, read_usage
from pontil.runtime.proxy.self_test import TEXT

SMALL = ("--kv-cache-memory", "8MiB", "--model")
HOSTILE = ROOT / "tests" / "support" / "faults" / "hostile_launch.py"


HEAVY = re.compile("torch|numpy|zmq|msgpack|uvloop|httptools|tokenizers|safetensors")


def heavy_libraries(pid: int) -> set[str]:
    """Names of the shared objects that a process has mapped."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    objects = {line.split()[-1] for line in maps if ".so" in line}
    return {found[0] for name in objects if (found := HEAVY.search(name))}


@dataclass(frozen=True)
class Fresh:
    """A launch, and what it said of its requests before there was any. The ledger is as an audit found it."""

    served: Served
    ledger: dict[str, Any]
    ended: list[str]
    billed: list[Any]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory, model: str) -> Iterator[Fresh]:
    folder = tmp_path_factory.mktemp("served")
    usage = folder / "usage.db"
    with launched(folder, *SMALL, model, "--usage-log", str(usage), by_exec=True) as one:
        ledger = one.get("/admin/ledger")
        lines = one.request("GET", "/metrics").text().splitlines()
        ended = [line for line in lines if "request_success_total{" in line]
        wait_for(
            lambda: all(equal for equal, _ in audit_usage(usage, ledger)), 60, "the checkpoint after the self-test"
        )
        yield Fresh(one, ledger, ended, read_usage(usage))


@pytest.fixture(scope="module")
def served(fresh: Fresh) -> Served:
    return fresh.served


def test_a_start_shows_its_steps_its_processes_and_what_moved(served: Served) -> None:  # G2
    shown = served.output.read_text()
    for name in ("prefill:0", "decode:0"):
        for step in ("reading weights", "warming up", "registering with the proxy", "ready after"):
            assert re.search(rf"{name} \| {step}", shown), (name, step)
        assert re.search(rf"^.*  {name} +\S+ +\S+ +[\d,]+ +float32 +\d+$", shown, re.MULTILINE)
    assert re.search(r"proxy \| self-test 1 of 1: prefill:0>decode:0", shown)
    assert re.search(r"prefill:0>decode:0 +\d+\.\d MB +\d+\.\d\d$", shown, re.MULTILINE)
    assert shown.index("prefill:0>decode:0 ") < shown.index("ready on http")


def test_a_self_test_is_seen_where_it_belongs_and_billed_to_nobody(fresh: Fresh) -> None:  # G2, D21
    (route,) = fresh.served.get("/admin/topology")["routes"]
    assert (route["route"], route["state"]) == ("prefill:0>decode:0", "PASSED")
    assert route["bytes"] > 0 and route["seconds"] > 0
    ledger = fresh.ledger
    assert (ledger["requests"], ledger["imbalance"]) == (0, 0) and ledger["discarded_by_reason"]["self_test"] == 2
    assert len(fresh.ended) == 4 and all(line.endswith(" 0.0") for line in fresh.ended)
    assert fresh.billed == []


def test_workers_without_work_lend_each_other_their_cores(served: Served) -> None:
    workers = [psutil.Process(row["pid"]) for row in served.topology().values() if row["role"] != "proxy"]
    tables = {one.path for worker in workers for one in worker.memory_maps() if one.path.endswith("/cores")}
    (lent_cores,) = map(Path, tables)
    cores = {core for worker in workers for core in worker.cpu_affinity() or ()}

    def states() -> list[int]:
        return [int.from_bytes(lent_cores.read_bytes()[4 * STRIDE * core :][:4], sys.byteorder) for core in cores]

    wait_for(lambda: states() == [IDLE] * len(cores), 60, "lending every core")


def test_no_prompt_finds_the_blocks_of_a_self_test(served: Served) -> None:
    """A request with the self-test's own prompt is computed; only the next one hits the cache."""

    def free() -> set[int]:
        return {row["load"]["free_blocks"] for row in served.topology().values() if row["role"] != "proxy"}

    # Loads are told by heartbeats, of which one may be from the self-test.
    wait_for(lambda: len(free()) == 1, 60, "all blocks free again")
    body = {"model": "tiny", "prompt": 3 * TEXT, "max_tokens": 2}
    cached = [
        served.request("POST", "/v1/completions", body).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        for _ in range(2)
    ]
    assert cached[0] == 0 < cached[1]


def test_the_launcher_stays_light_while_it_serves(served: Served) -> None:
    """Small, with one thread, so that it can start children hours later."""
    assert served.complete([1, 2, 3], model="tiny", max_tokens=2)["usage"]["completion_tokens"] <= 2
    launcher, *children = served.tree()
    assert not heavy_libraries(launcher.pid) and launcher.num_threads() == 1
    found = {name for child in children for name in heavy_libraries(child.pid)}
    assert {"torch", "zmq"} <= found  # where it looks there is something to find
    assert launcher.memory_info().rss < min(psutil.Process(child.pid).memory_info().rss for child in children)


@pytest.mark.long
def test_a_launch_of_which_no_bytes_move_fails(model: str) -> None:  # G2
    done = run_program([str(HOSTILE), "launch", "--port", "0", *SMALL, model], computing=True)
    shown = done.stdout + done.stderr
    assert done.returncode == 1 and "ready on" not in shown and "Traceback" not in shown
    assert re.search(
        r"^Error: The self-test failed: no KV block moved from prefill:0 to decode:0 "
        r"\(the blocks that arrived are not the ones that were sent\)\. Mend that, or start with --no-self-test\.$",
        shown, re.MULTILINE,
    )  # fmt: skip
