# SPDX-License-Identifier: Apache-2.0
"""Detection of a lost proxy by a worker, and not when only the worker itself was busy."""

import pytest

from pontil.runtime.wire.links.renewal import FIRST, LONGEST
from pontil.runtime.wire.messages import Heartbeat, Hello, Message, StillHere, Tokens, Welcome
from pontil.runtime.worker.links.proxy_link import BEAT, TTL, HeartbeatLoad, ProxyLink

HELLO = Hello("w", 1, "decode:0", "decode", 1, "cpu", "m", "f", "k", "ipc:///p", 16, 9, 4, 512, 256)


def load() -> HeartbeatLoad:
    return HeartbeatLoad(0, 0, 9, 0, {})


class RecordedLine:
    """A socket that accepts every message."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.broken = self.renewed = 0

    def send(self, message: Message) -> bool:
        self.sent.append(message)
        return True

    def breaks(self, now: float) -> int:
        return self.broken

    def renew(self, now: float) -> None:
        self.renewed += 1


@pytest.fixture
def link() -> ProxyLink:
    made = ProxyLink(RecordedLine(), HELLO)  # type: ignore[arg-type]
    made.tick(load, 100.0)
    made.heard(Welcome("p", "w"), 100.0)
    return made


def test_a_proxy_that_answers_no_beat_is_gone(link: ProxyLink) -> None:
    now = 100.0
    while now <= 100.0 + TTL:
        assert not link.tick(load, now)
        now += BEAT
    assert link.tick(load, now) and link.proxy is None


def test_a_step_that_takes_longer_than_that_is_not_the_proxys_silence(link: ProxyLink) -> None:
    assert not link.tick(load, 100.0 + 3 * TTL)
    assert isinstance(link.socket.sent[-1], Heartbeat)  # type: ignore[attr-defined]
    assert not link.tick(load, 100.0 + 3 * TTL + BEAT)
    link.heard(StillHere("p", "w"), 100.0 + 3 * TTL + BEAT)
    assert link.proxy == "p"


def line_of(link: ProxyLink) -> RecordedLine:
    assert isinstance(line := link.socket, RecordedLine)
    return line


def test_a_connection_that_breaks_before_the_welcome_ends_the_registration(link: ProxyLink) -> None:
    """The proxy may have heard the Hello, and sent requests that are lost with its Welcome."""
    line = line_of(link)
    line.broken = 1
    link.tick(load, 100.1)
    first = line.sent[-1]
    line.broken = 2
    assert link.tick(load, 100.11) is None
    again = line.sent[-1]
    assert isinstance(first, Hello) and isinstance(again, Hello) and again is not first
    assert (first.registration, again.registration) == (1, 2)
    link.tick(load, 100.12)
    assert line.sent[-1] is again


def test_a_connection_that_broke_ends_the_registration_and_is_replaced(link: ProxyLink) -> None:
    """Messages on their way may be lost, so the worker begins anew, and says so: on a fresh connection."""
    line = line_of(link)
    link.outbox.append(Tokens("w", "p", "r", 0, 0, [1]))
    line.sent.clear()
    line.broken = 1
    assert link.tick(load, 100.1) == "p" and link.proxy is None and line.renewed == 1
    hello = line.sent[-1]
    assert isinstance(hello, Hello) and hello.registration == 1 and not link.outbox
    assert link.tick(load, 100.2) is None and line.renewed == 1
    link.heard(Welcome("p", "w"), 100.3)
    assert link.tick(load, 100.4) is None and link.proxy == "p" and isinstance(line.sent[-1], Heartbeat)


def test_a_proxy_that_does_not_answer_hello_is_asked_on_new_connections(link: ProxyLink) -> None:
    """A link that is back is used within LONGEST, however long it was cut."""
    line = line_of(link)
    line.broken = 1
    link.tick(load, 100.0)
    for tick in range(1, 1201):
        link.tick(load, 100.0 + tick / 10)
    assert line.renewed >= 120.0 / LONGEST
    renewed = line.renewed
    link.heard(StillHere("other", "w"), 220.1)
    link.tick(load, 220.1 + 10 * LONGEST)
    assert line.renewed == renewed, "somebody answers"


def test_a_worker_that_comes_first_waits_on_new_connections_too() -> None:
    link = ProxyLink(RecordedLine(), HELLO)  # type: ignore[arg-type]
    for tick in range(31):
        link.tick(load, 100.0 + tick / 10)
    line = line_of(link)
    assert line.renewed == 1 + (3.0 - FIRST) // LONGEST


def test_a_replaced_connection_is_of_another_registration() -> None:
    """A slow proxy may have heard the Hello on the one before, and sent requests that nobody reads."""
    link = ProxyLink(RecordedLine(), HELLO)  # type: ignore[arg-type]
    line, connections = line_of(link), dict[int, set[int]]()
    for tick in range(31):
        link.tick(load, 100.0 + tick / 10)
        connections.setdefault(line.renewed, set()).add(link.hello.registration)
    assert len(connections) >= 3
    assert all(len(registrations) == 1 for registrations in connections.values()), "Hellos of one connection are equal"
    assert len(set.union(*connections.values())) == len(connections)


def test_a_worker_that_is_not_registered_any_more_begins_anew(link: ProxyLink) -> None:
    assert link.heard(StillHere("", "w"), 100.1) == "p"
    link.tick(load, 100.1)
    line = line_of(link)
    assert isinstance(hello := line.sent[-1], Hello) and hello.registration == 1 and line.renewed == 0
