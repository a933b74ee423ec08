# SPDX-License-Identifier: Apache-2.0
"""A worker with several proxies: each gets what is its own, and one that is gone takes nothing else along."""

from collections.abc import Callable
from pathlib import Path

import pytest
from workers import DEADLINE, ScriptedProxy, greedy, open_worker, prompt

from pontil.runtime.errors import PontilError
from pontil.runtime.proxy.fleet.registered_worker import Contact, RegisteredWorker
from pontil.runtime.wire.links.outbox import PATIENCE
from pontil.runtime.wire.links.sockets import ControlServer, open_context
from pontil.runtime.wire.messages import Heartbeat, Hello, Message, StillHere, Submit, Tokens, Welcome
from pontil.runtime.worker.links.proxy_link import TTL, HeartbeatLoad, ProxyLink
from pontil.runtime.worker.links.proxy_links import COMPANY, ProxyLinks

HELLO = Hello("w", 1, "decode:0", "decode", 1, "cpu", "m", "f", "k", "ipc:///p", 16, 9, 4, 512, 256)


class TwoWayLine:
    """A socket that keeps what is sent, unless it is full, and brings what the test puts in."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.full = False
        self.broken = self.renewed = 0
        self.coming: list[Message] = []

    def send(self, message: Message) -> bool:
        if not self.full:
            self.sent.append(message)
        return not self.full

    def breaks(self, now: float) -> int:
        return self.broken

    def renew(self, now: float) -> None:
        self.renewed += 1

    def receive_all(self) -> list[Message]:
        coming, self.coming = self.coming, []
        return coming


def links_of(*welcomed: str) -> tuple[ProxyLinks, list[TwoWayLine]]:
    lines = [TwoWayLine() for _ in range(2)]
    made = ProxyLinks([ProxyLink(line, HELLO) for line in lines])  # type: ignore[arg-type]
    made.tick(lambda link: HeartbeatLoad(0, 0, 9, 0, {}), 100.0)
    for link, proxy in zip(made.links, welcomed, strict=False):
        link.heard(Welcome(proxy, "w", True), 100.0)
    return made, lines


def tokens(proxy: str) -> Tokens:
    return Tokens("w", proxy, f"r-{proxy}", 0, 0, [1])


def test_each_proxy_gets_its_own_and_a_stranger_nothing() -> None:
    links, lines = links_of("a", "b")
    links.send_tokens([tokens("a"), tokens("b"), tokens("c"), tokens("a")])
    sent = [[getattr(one, "receiver", "") for one in line.sent] for line in lines]
    assert [set(each) for each in sent] == [{"", "a"}, {"", "b"}]
    links.send(tokens("c"))
    assert [len(line.sent) for line in lines] == [len(each) for each in sent]
    assert links.of("b") is links.links[1] and links.of("c") is None and links.proxies == 2


def test_a_worker_is_ready_without_a_proxy_that_does_not_come() -> None:
    links, _ = links_of()
    assert not links.is_registered(100.0)
    links.links[1].heard(Welcome("b", "w"), 101.0)
    assert not links.is_registered(101.0) and links.is_registered(101.1 + COMPANY) and links.proxy == "b"
    links.links[0].heard(Welcome("a", "w"), 101.0)
    assert links.is_registered(101.0)


def test_silence_and_successors_are_of_one_proxy() -> None:
    links, _ = links_of("a", "b")
    assert links.links[0].heard(StillHere("a2", "w"), 100.1) == "a" and links.proxy == "b"
    now, gone = 100.0, list[str]()
    while not gone:
        now += 0.5
        gone = links.tick(lambda link: HeartbeatLoad(0, 0, 9, 0, {}), now)
    assert gone == ["b"] and now > 100.0 + TTL - 1


def test_a_proxy_that_takes_nothing_holds_up_the_others_for_a_bounded_time() -> None:
    """Steps have rows of all proxies: one that is stopped, its queues full, would halt them until it is killed."""
    links, lines = links_of("a", "b")
    lines[0].full = True
    links.send_tokens([tokens("a"), tokens("b")])
    assert links.congested
    now, gone = 100.0, list[str]()
    while not gone:
        now += 0.1
        gone = links.tick(lambda link: HeartbeatLoad(0, 0, 9, 0, {}), now)
    assert gone == ["a"] and not links.congested and 100.0 + PATIENCE <= now < 100.0 + PATIENCE + 1.0
    assert links.links[1].proxy == "b"
    lines[0].full = False
    links.tick(lambda link: HeartbeatLoad(0, 0, 9, 0, {}), now + 2.0)
    hello = lines[0].sent[-1]
    assert isinstance(hello, Hello) and hello.registration > 0 and lines[0].renewed


def test_a_proxy_alone_holds_up_only_its_own() -> None:
    line = TwoWayLine()
    links = ProxyLinks([ProxyLink(line, HELLO)])  # type: ignore[arg-type]
    links.links[0].heard(Welcome("a", "w", True), 100.0)
    line.full = True
    links.send_tokens([tokens("a")])
    for tick in range(200):
        links.links[0].last_heard = 100.0 + tick / 10
        assert not links.tick(lambda link: HeartbeatLoad(0, 0, 9, 0, {}), 100.0 + tick / 10)
    assert links.congested and links.proxy == "a"


def test_counts_and_loads_are_stated_to_each_proxy_by_itself(model: Path, tmp_path: Path) -> None:  # A11
    """Two proxies use one worker; the first one goes away, and the other's request ends as ever."""
    context = open_context()
    servers = [ControlServer(context, f"ipc://{tmp_path}/{name}") for name in ("control", "control-1")]
    worker = open_worker(model, tmp_path, "mixed:0", "mixed", more_controls=(servers[1].endpoint,))
    heard: dict[str, list[Message]] = {"a": [], "b": []}

    def turn_until(condition: Callable[[], object]) -> None:
        for _ in range(200_000):
            worker.turn()
            for name, server in zip("ab", servers, strict=True):
                for message in server.receive_all():
                    heard[name].append(message)
                    if isinstance(message, Hello):
                        server.send(Welcome(name, message.sender, True))
            if condition():
                return
        raise PontilError(f"nothing came within {DEADLINE} s")

    def last(name: str) -> Heartbeat | None:
        return next((one for one in reversed(heard[name]) if isinstance(one, Heartbeat)), None)

    def generated(name: str) -> int:
        beat = last(name)
        return -1 if beat is None else beat.counters["generated_tokens"]

    try:
        turn_until(lambda: worker.link.proxies == 2)
        for name, server, count in (("a", servers[0], 40), ("b", servers[1], 9)):
            wire = greedy(count, ignore_eos=True).to_wire()
            # Whichever comes first, the other finds nothing of it cached.
            assert server.send(Submit(name, worker.incarnation, f"r{name}", 0, prompt(20), wire, cache_salt=name))
        turn_until(lambda: len(worker.requests) == 2)
        assert worker.load(worker.link.links[1]).others == {
            "proxies": 1, "in_flight": 1, "taken": 1,
            "uncomputed": max(0, 20 - worker.requests["ra#0"].sequence.computed),
        }  # fmt: skip
        turn_until(lambda: generated("b") == 9)
        assert "rb#0" not in worker.requests
        worker.lose("b")
        assert "ra#0" in worker.requests or generated("a") == 40
        turn_until(lambda: generated("a") == 40 and generated("b") == 9)
        assert last("a").counters["prompt_tokens_computed"] == 20  # type: ignore[union-attr]
    finally:
        worker.close()
        for server in servers:
            server.close()
        context.term()


def test_a_proxy_alone_is_told_nothing_of_others(proxy: ScriptedProxy, model: Path, tmp_path: Path) -> None:
    worker = open_worker(model, tmp_path, "mixed:0", "mixed")
    proxy.admit(worker)
    assert worker.load().others is None
    with pytest.raises(KeyError):
        _ = worker.requests["none"]


def test_a_proxy_counts_as_many_blocks_as_the_worker_has(model: Path, tmp_path: Path) -> None:
    """One less would hide the leak of a block, and refuse the last tokens that fit."""
    worker = open_worker(model, tmp_path, "mixed:0", "mixed", max_model_len=None)
    known = RegisteredWorker(worker.link.links[0].hello, Contact(0.0))
    assert known.capacity == worker.machine.pool.capacity == worker.load().free_blocks
    worker.close()
