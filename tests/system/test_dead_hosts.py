# SPDX-License-Identifier: Apache-2.0
"""Hosts that die without a word, and whose address comes back as another machine: the others serve, streams go on, the
new machine is used, and nothing of the dead one is taken."""

import time
from pathlib import Path

import pytest
from books import requests_that_differ
from cut_load import LONG_CONTEXT, OpenStream, SteadyLoad, handoffs, one_more_handoff
from network_hosts import CONTROL, FAR, NAMES, Hosts
from served import START_TIMEOUT, wait_for
from tiny_llama import write_tiny_llama

# The second host of a seed of tests/world dies and comes back as another machine; test_links.py has real links.
pytestmark = pytest.mark.long
# Bounds for a machine that does much else: a dead host is noticed after about 4 s.
ANSWERED_WITHIN, NOTICED_WITHIN = 15.0, 15.0


class Parts:
    """A launch of each role on its host, with logs and a usage log in a folder."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts, self.folder, self.usage_log = hosts, folder, folder / "usage.db"
        write_tiny_llama(folder / "model", max_model_len=LONG_CONTEXT)
        self.small = ("--model", str(folder / "model"), "--served-model-name", "tiny", "--insecure")
        for name in NAMES:
            self.launch(name, name)
        wait_for(lambda: handoffs(hosts) > 0, START_TIMEOUT, "the handoff of the self-test")

    def launch(self, host: str, role: str) -> None:
        options = {
            "proxy": ("--control", CONTROL, "--disagg", "always", "--usage-log", str(self.usage_log)),
            "prefill": (*FAR, "--prefill", "cpu:0"),
            "decode": (*FAR, "--decode", "cpu:1"),
        }[role]
        self.hosts.launch(host, self.folder / f"log-{host}", *options, *self.small, role=role)

    def workers(self) -> dict[int, str]:
        """Return the roles of the workers that the proxy knows, by pid."""
        return {row["pid"]: row["role"] for row in self.hosts.processes() if row["role"] != "proxy"}

    def wait_for_worker(self, role: str, not_one_of: dict[int, str]) -> None:
        def came() -> bool:
            return any(pid not in not_one_of and one == role for pid, one in self.workers().items())

        wait_for(came, START_TIMEOUT, f"another {role} worker")


@pytest.fixture
def parts(hosts: Hosts, tmp_path: Path) -> Parts:
    return Parts(hosts, tmp_path)


def noticed(parts: Parts, load: SteadyLoad, before: dict[int, str], lost: str, lost_at: float) -> None:
    """Wait until the worker of a host that was lost is out of the registry, and others answer."""
    left = {pid: role for pid, role in before.items() if role != lost}
    wait_for(lambda: parts.workers() == left, START_TIMEOUT, "the removal of the dead worker")
    noticed_at = time.monotonic()
    answered = load.wait_for_answer(lost_at)
    print(f"{lost} lost: removed after {noticed_at - lost_at:.1f} s, answered after {answered - lost_at:.1f} s")
    assert noticed_at - lost_at < NOTICED_WITHIN and answered - lost_at < ANSWERED_WITHIN


@pytest.mark.parametrize(
    ("dead", "role"), [("decode", "decode"), ("prefill", "prefill"), ("decode", "prefill"), ("prefill", "decode")]
)
def test_another_machine_has_the_address_of_a_dead_one(parts: Parts, dead: str, role: str) -> None:
    hosts = parts.hosts
    uncut, before = OpenStream(hosts).whole(), parts.workers()
    with SteadyLoad(hosts) as load:
        one_more_handoff(hosts, 60)
        stream, lost_at = OpenStream(hosts).runs(), time.monotonic()
        hosts.replace(dead)
        assert not stream.ended.is_set()
        noticed(parts, load, before, dead, lost_at)
        parts.launch(dead, role)
        parts.wait_for_worker(role, before)
        if role == dead:
            one_more_handoff(hosts, 60)
        later = OpenStream(hosts)
        assert stream.whole() == later.whole() == uncut
        load.wait_for_answer(time.monotonic())
    assert all(whole for _, _, whole in load.between(lost_at, time.monotonic()))
    assert requests_that_differ(parts.usage_log) == []


def test_a_machine_wakes_up_whose_address_another_had(parts: Parts) -> None:
    """Messages about its requests, which others have ended meanwhile, are dropped."""
    hosts = parts.hosts
    uncut, before = OpenStream(hosts).whole(), parts.workers()
    with SteadyLoad(hosts) as load:
        one_more_handoff(hosts, 60)
        first, lost_at = OpenStream(hosts).runs(), time.monotonic()
        hosts.put_to_sleep("decode")
        noticed(parts, load, before, "decode", lost_at)
        parts.launch("decode", "decode")
        parts.wait_for_worker("decode", before)
        one_more_handoff(hosts, 60)
        second, between = OpenStream(hosts).runs(), parts.workers()
        hosts.wake("decode")
        assert not second.ended.is_set()
        parts.wait_for_worker("decode", between)
        assert first.whole() == second.whole() == uncut
        one_more_handoff(hosts, 60)
    assert all(whole for _, _, whole in load.between(lost_at, time.monotonic()))
    assert requests_that_differ(parts.usage_log) == []


def test_another_machine_has_the_address_of_a_dead_proxy(parts: Parts) -> None:
    """Workers register with it, and have dropped the requests of the dead one."""
    hosts = parts.hosts
    uncut, before = OpenStream(hosts).whole(), parts.workers()
    OpenStream(hosts).runs()
    hosts.replace("proxy")
    parts.launch("proxy", "proxy")
    wait_for(lambda: parts.workers() == before, START_TIMEOUT, "the workers")
    wait_for(lambda: handoffs(hosts) > 0, START_TIMEOUT, "a handoff")

    def idle() -> bool:
        loads = [row["load"] for row in hosts.processes() if row["role"] != "proxy"]
        return all(load["running"] == load["waiting"] == load["in_flight"] == 0 for load in loads)

    wait_for(idle, 30, "workers without the dead proxy's stream")
    assert OpenStream(hosts).whole() == uncut
