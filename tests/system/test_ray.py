# SPDX-License-Identifier: Apache-2.0
"""`launch --on ray` on a Ray cluster of several nodes on this machine, which these tests start and stop."""

import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from served import APP, START_TIMEOUT, Served, free_port, wait_for
from tiny_llama import write_tiny_llama

from pontil.launcher.keys.key_file import make_key_file, read_key_file

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra `ray` is not installed"),
]
WORKERS = {"prefill:0", "decode:0", "decode:1"}
BODY = {"prompt": [5, 6, 7] * 20, "max_tokens": 400, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
STREAMS = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without cores, and a node with one for each worker."""
    from ray.cluster_utils import Cluster

    memory = {"object_store_memory": 80 << 20}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **memory})
    for _ in WORKERS:
        made.add_node(num_cpus=1, **memory)
    yield made
    made.shutdown()


@pytest.fixture
def launched(cluster: Any, tmp_path: Path) -> Iterator[Served]:
    write_tiny_llama(tmp_path / "model")
    make_key_file(tmp_path / "pontil.keys")
    port, output = free_port(), tmp_path / "output"
    command = [
        sys.executable, str(APP), "launch", "--on", "ray", "--ray-address", cluster.address, "--port", str(port),
        "--decode", "cpu*2", "--model", str(tmp_path / "model"), "--kv-cache-memory", "32MiB", "--worker-ttl", "4",
        "--keys", str(tmp_path / "pontil.keys"), "--usage-log", str(tmp_path / "usage.db"),
    ]  # fmt: skip
    with output.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    made = Served(process, port, output, tmp_path / "usage.db")
    try:
        wait_for(lambda: made.is_ready() and pids(made).keys() >= WORKERS, START_TIMEOUT, "all workers")
        yield made
    finally:
        process.kill()
        process.wait()


def pids(served: Served) -> dict[str, int]:
    """Return the processes of workers that are ready."""
    rows = served.topology().items()
    return {name: row["pid"] for name, row in rows if name in WORKERS and row["state"] == "READY"}


def node_of(cluster: Any, pid: int) -> Any:
    """Return the node below whose raylet a process runs."""
    above = {one.pid for one in psutil.Process(pid).parents()}
    return next(
        node for node in cluster.list_all_nodes()
        if any(info.process.pid in above for info in node.all_processes.get("raylet", []))
    )  # fmt: skip


def launches() -> list[psutil.Process]:
    """Return the processes on all nodes that are launches of workers, or their children."""
    mine = psutil.Process().children(recursive=True) + [one for one in psutil.process_iter() if one.ppid() == 1]
    found = []
    for one in mine:
        try:
            words = one.cmdline()
        except psutil.Error:
            continue
        if str(APP) in words and one.status() != psutil.STATUS_ZOMBIE and "--on" not in words:
            found.append(one)
    return found


def tokens(served: Served) -> list[int]:
    """Return the tokens of one stream, which must be whole."""
    events = served.stream("/v1/completions", {"model": served.get("/v1/models")["data"][0]["id"], **BODY})
    assert not [event for event in events if "error" in event], events[-1]
    return [token for event in events for choice in event["choices"] for token in choice["token_ids"]]


def test_a_killed_node_is_replaced_and_streams_go_on(cluster: Any, launched: Served, tmp_path: Path) -> None:
    expected, before = tokens(launched), pids(launched)
    assert len(expected) == 400
    lost = node_of(cluster, before["decode:1"])
    over = threading.Event()

    def stream_until_over() -> int:
        count = 0
        while not over.is_set():
            assert tokens(launched) == expected
            count += 1
        return count

    with ThreadPoolExecutor(STREAMS) as pool:
        streams = [pool.submit(stream_until_over) for _ in range(STREAMS)]
        try:
            wait_for(lambda: launched.topology()["decode:1"].get("load", {}).get("in_flight"), 60, "work on that node")
            cluster.remove_node(lost, allow_graceful=False)
            wait_for(lambda: pids(launched).keys() == WORKERS - {"decode:1"}, 60, "its absence")
            cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
            wait_for(lambda: pids(launched).keys() == WORKERS, START_TIMEOUT, "another decode:1")
        finally:
            over.set()
        assert all(one.result(120) for one in streams)
    after = pids(launched)
    assert after["decode:1"] != before["decode:1"] and after["prefill:0"] == before["prefill:0"]
    assert node_of(cluster, after["decode:1"]) is not lost
    assert "decode:1 was lost with its node or actor" in launched.output.read_text()
    assert tokens(launched) == expected
    moved = [
        line for line in launched.request("GET", "/metrics").text().splitlines() if "pontil_failovers_total{" in line
    ]
    assert sum(float(line.split()[-1]) for line in moved) >= 1, "a stream was on the node that was killed"
    secret_stays_secret(read_key_file(tmp_path / "pontil.keys"), launched)
    launched.process.send_signal(signal.SIGINT)
    assert launched.process.wait(60) == 130
    nothing_is_left(cluster)


def secret_stays_secret(secret: str, served: Served) -> None:
    """Check that no command line, environment or log of Ray has the keys."""
    for one in [*launches(), *served.tree()]:
        assert not any(secret in word for word in [*one.cmdline(), *one.environ().values()])
    logs = Path("/tmp/ray/session_latest/logs")
    assert logs.is_dir()
    held = [path for path in logs.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert not held and secret not in served.output.read_text()


def nothing_is_left(cluster: Any) -> None:
    """Check that neither processes nor the placement group of a launch exist."""
    wait_for(lambda: not launches(), 60, "the end of the workers' launches")
    import ray

    ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
    try:
        groups = ray.util.placement_group_table().values()
        wait_for(lambda: all(one["state"] == "REMOVED" for one in groups), 30, "the end of the group")
        wanted = {"CPU": float(len(WORKERS))}
        wait_for(lambda: wanted.items() <= ray.available_resources().items(), 60, "the resources")
    finally:
        ray.shutdown()


def test_workers_die_with_a_launch_that_is_killed(cluster: Any, launched: Served) -> None:
    assert len(launches()) >= len(WORKERS)
    os.kill(launched.process.pid, signal.SIGKILL)
    launched.process.wait(30)
    nothing_is_left(cluster)
