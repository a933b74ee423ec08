# SPDX-License-Identifier: Apache-2.0
"""Detection of a lost proxy by a worker, and not when only the worker itself was busy."""

import pytest

from pontil.runtime.wire.messages import Heartbeat, Hello, Message, StillHere, Welcome
from pontil.runtime.worker.proxy_link import BEAT, TTL, HeartbeatLoad, ProxyLink

HELLO = Hello("w", 1, "decode:0", "decode", 1, "cpu", "m", "f", "k", "ipc:///p", 16, 9, 4, 512, 256)


def load() -> HeartbeatLoad:
    return HeartbeatLoad(0, 0, 9, 0, {})


class RecordedLine:
    """A socket that accepts every message."""

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def send(self, message: Message) -> bool:
        self.sent.append(message)
        return True


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
