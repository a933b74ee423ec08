# SPDX-License-Identifier: Apache-2.0
"""A worker whose ranks are on two hosts, each with a launch of its own (docs/decisions/099): network namespaces, with
keys, and KV blocks over TCP."""

import json
import re
from pathlib import Path
from typing import Any

import psutil
import pytest
from disturbed import DRAWN, MODEL, OPTIONS, STORY
from network_hosts import CONTROL, NET, Hosts
from served import START_TIMEOUT, launched, wait_for
from tiny_llama import write_tiny_llama

from pontil.launcher.keys.key_file import make_key_file

pytestmark = pytest.mark.long
MASTER = f"{NET}.2:7100"
ASKED: list[dict[str, Any]] = [
    *({"prompt": [20 + 13 * i % 240 for i in range(length)], "temperature": 0} for length in (1, 16, 17, 300)),
    {"prompt": STORY, "seed": 7, "n": 2, "logprobs": 2, **DRAWN},
]


def small_model(folder: Path) -> tuple[str, ...]:
    write_tiny_llama(folder / "small", num_layers=4, num_kv_heads=2, max_model_len=2048, dtype="bfloat16")
    named = ("--model", str(folder / "small"), "--served-model-name", MODEL)
    return (*named, *OPTIONS, "--kv-cache-memory", "32MiB", "--kernels", "torch")


def body(number: int, salt: str) -> dict[str, Any]:
    told = {"model": MODEL, "max_tokens": 12, "ignore_eos": True, "return_token_ids": True}
    return told | {"cache_salt": f"{salt}{number}"} | ASKED[number]


def kept(answer: dict[str, Any]) -> Any:
    choices = [{name: one.get(name) for name in ("token_ids", "logprobs")} for one in answer["choices"]]
    return choices, answer["usage"]["completion_tokens"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The responses of one process."""
    folder = tmp_path_factory.mktemp("alone")
    with launched(folder, "--role", "mixed", "--mixed", "cpu:0", *small_model(folder)) as served:
        return [
            kept(served.request("POST", "/v1/completions", body(number, "alone")).json())
            for number in range(len(ASKED))
        ]


class NodeGroup:
    """A worker of two ranks in `role`, one on the host `first` and one on `second`, beside one of one process in the
    other role."""

    def __init__(self, hosts: Hosts, folder: Path, role: str) -> None:
        self.hosts, self.folder, self.role = hosts, folder, role
        other, keys = {"prefill": "decode", "decode": "prefill"}[role], folder / "keys"
        make_key_file(keys)
        # A namespace has the host's memory: only TCP goes as between machines.
        model = (*small_model(folder), "--keys", str(keys), "--link-timeout", "2", "--kv-connector", "tcp")
        joined = (*model, "--join", CONTROL)
        for node, name in enumerate(("first", "second")):
            group = ("--nnodes", "2", "--node-rank", str(node), "--master-addr", MASTER, f"--{role}", f"cpu:{node}")
            hosts.launch(name, folder / name, *joined, *group, role=role)
        hosts.launch("single", folder / "single", *joined, f"--{other}", "cpu:0", role=other)
        hosts.launch("proxy", folder / "proxy", *model, "--control", CONTROL, "--disagg", "always")

    def driver(self) -> int:
        """Return the pid of the rank that registered last."""
        return self.named("proxy", rf"{self.role}:0 \(pid (\d+)\) registered")

    def follower(self) -> int:
        """Return the pid of the other rank at first."""
        return self.named("second", rf"\|   {self.role}:0\+1 +cpu +1 +- +- +(\d+)")

    def named(self, host: str, pattern: str) -> int:
        """Return the last pid that a launch has named so; 0 for none."""
        found = re.findall(pattern, (self.folder / host).read_text())
        return int(found[-1]) if found else 0

    def kill(self, host: str, pid: int) -> None:
        """Kill a process of a launch."""
        launcher = psutil.Process(self.hosts.running[host][0].pid)
        (process,) = (child for child in launcher.children(recursive=True) if child.pid == pid)
        process.kill()

    def wait_for_pair(self, after: int = 0) -> None:
        """Wait until both workers serve, and the group's driver is another one than that of this pid."""

        def serves() -> bool:
            answer = self.hosts.fetch("/admin/topology")
            routes = json.loads(answer)["routes"] if answer else []
            is_whole = [(one["route"], one["state"]) for one in routes] == [("prefill:0>decode:0", "PASSED")]
            return is_whole and self.driver() != after

        wait_for(serves, START_TIMEOUT, "a pair that was tested")

    def answers(self, salt: str) -> list[Any]:
        return [
            kept(json.loads(self.hosts.fetch("/v1/completions", body(number, salt)) or "{}"))
            for number in range(len(ASKED))
        ]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_ranks_on_two_hosts_answer_like_one_process_also_after_faults(
    node_hosts: Hosts, tmp_path: Path, alone: list[Any], role: str
) -> None:  # H1, H5, H7
    group = NodeGroup(node_hosts, tmp_path, role)
    group.wait_for_pair()
    assert group.answers("begin") == alone
    for host, find in (("second", group.follower), ("first", group.driver)):
        before = group.driver()
        group.kill(host, find())
        group.wait_for_pair(after=before)
        assert group.answers(host) == alone
    # A host that goes quiet: rank 0 finds it by itself, and waits for it to come back.
    before = group.driver()
    node_hosts.cut("second")
    wait_for(
        lambda: group.named("proxy", rf"{role}:0 \(pid (\d+)\) lost its connection") == before,
        60,
        "the end of the driver",
    )
    node_hosts.cut("second", "up")
    group.wait_for_pair(after=before)
    assert group.answers("cut") == alone
    assert "not encrypted" in (tmp_path / "second").read_text()


def test_a_host_that_does_not_come_is_named(node_hosts: Hosts, tmp_path: Path) -> None:
    """On either side, and within the deadline of a meeting."""
    options = (*small_model(tmp_path), "--insecure", "--nnodes", "2", "--rendezvous-timeout", "3", "--mixed", "cpu:0")
    for node, name, words in (
        (0, "first", rf"host 1 of 2, with rank 1 .*did not come to tcp://{MASTER} within 3 s"),
        (1, "second", rf"rank 0 of this worker did not come to tcp://{MASTER} within 3 s"),
    ):
        place = ("--node-rank", str(node), "--master-addr", MASTER, "--join", CONTROL)
        launch = node_hosts.launch(name, tmp_path / name, *options, *place, role="mixed")
        assert launch.wait(START_TIMEOUT) == 1
        assert re.search(words, (tmp_path / name).read_text())
