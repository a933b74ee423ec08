# SPDX-License-Identifier: Apache-2.0
"""Messages between workers that a socket does not take: none is lost, and a peer that takes none has a deadline."""

import time
from collections.abc import Callable

import pytest
from workers import PromptWorker, ScriptedProxy, drawn, everyone_clean, prompt

from pontil.runtime.config.worker_config import DEADLINES
from pontil.runtime.wire.links.outbox import PATIENCE
from pontil.runtime.wire.links.sockets import PeerClient, PeerServer
from pontil.runtime.wire.messages import (
    Abandon,
    Begin,
    ChunkReady,
    Fetched,
    Greet,
    Greeting,
    Handoff,
    Message,
    Renew,
    Withdrawn,
)
from pontil.runtime.worker.links.peer_connection import HandshakeState

Pair = tuple[PromptWorker, PromptWorker]
TIMES = 3


class Refusals:
    """A fault: sockets between workers refuse messages of one `kind`, so many `times`; accepted ones are in `taken`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type[Message], times: float = TIMES) -> None:
        self.kind, self.left, self.taken = kind, times, list[Message]()
        for socket in (PeerClient, PeerServer):
            monkeypatch.setattr(socket, "send", self.wrapped(socket.send))

    def wrapped(self, send: Callable[..., bool]) -> Callable[..., bool]:
        def refusing(socket: PeerClient | PeerServer, message: Message) -> bool:
            if isinstance(message, self.kind) and self.left > 0:
                self.left -= 1
                return False
            sent = send(socket, message)
            self.taken += [message] if sent else []
            return sent

        return refusing

    def sent(self) -> int:
        return sum(isinstance(message, self.kind) for message in self.taken)


@pytest.mark.parametrize("kind", [Greet, Greeting, Begin, ChunkReady, Handoff, Fetched])
def test_what_a_socket_refuses_is_sent_later_and_in_order(
    proxy: ScriptedProxy, pair: Pair, monkeypatch: pytest.MonkeyPatch, kind: type[Message]
) -> None:  # B12
    prefill, decode = pair
    refusals = Refusals(monkeypatch, kind)
    proxy.submit(decode, "whole", prompt(200), drawn(4))
    proxy.submit_pair(prefill, decode, "split", prompt(200), drawn(4))
    whole, split = proxy.finish("whole", "split")
    assert split.ids == whole.ids and not split.failures
    everyone_clean(proxy)
    assert not refusals.left and refusals.sent() == (3 if kind is ChunkReady else 1)
    chunks = [message.first for message in refusals.taken if isinstance(message, ChunkReady | Handoff)]
    assert chunks == sorted(chunks) and isinstance(refusals.taken[-1], Fetched)
    assert (prefill.prefill.expired, decode.decode.counts.complete, decode.decode.counts.failed) == (0, 1, 0)


@pytest.mark.parametrize(("kind", "tells"), [(Abandon, "decode"), (Withdrawn, "prefill")])
def test_the_other_side_hears_of_an_end_that_was_refused_at_first(
    proxy: ScriptedProxy, pair: Pair, monkeypatch: pytest.MonkeyPatch, kind: type[Message], tells: str
) -> None:  # B12
    prefill, decode = pair
    refusals = Refusals(monkeypatch, kind)
    proxy.submit_pair(prefill, decode, "r", prompt(250), drawn(4))
    proxy.turn_until(lambda: bool(prefill.prefill.jobs.open and decode.decode.parked))
    proxy.cancel(decode if tells == "decode" else prefill, "r")
    everyone_clean(proxy)
    assert not refusals.left and refusals.sent() == 1 and not prefill.prefill.expired


def test_a_lease_that_was_not_renewed_at_once_is_renewed_later(
    proxy: ScriptedProxy, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:  # B12
    prefill, decode = pair
    proxy.submit_pair(prefill, decode, "r", prompt(20), drawn(4))
    proxy.finish("r")
    refusals = Refusals(monkeypatch, Renew)
    decode.decode.peers.tell(prefill.incarnation, Renew(decode.incarnation, prefill.incarnation, "t", 7))
    decode.decode.peers.tell(prefill.incarnation, Abandon(decode.incarnation, prefill.incarnation, "t", "x"))
    assert not decode.is_idle
    proxy.turn_until(lambda: len(refusals.taken) == 2)
    assert [type(message) for message in refusals.taken] == [Renew, Abandon]
    everyone_clean(proxy)
    assert decode.is_idle


def test_a_prefill_worker_that_takes_nothing_fails_its_transfers_and_is_greeted_anew(
    proxy: ScriptedProxy, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:  # C14
    prefill, decode = pair
    refusals = Refusals(monkeypatch, Begin, times=float("inf"))
    proxy.submit_pair(prefill, decode, "r", prompt(100), drawn(4))
    proxy.turn_until(lambda: len(decode.decode.peers.outbox) > 0)
    first = decode.decode.peers[prefill.incarnation]
    decode.decode.tick(time.monotonic())
    decode.decode.tick(time.monotonic() + PATIENCE)
    (answer,) = proxy.finish("r")
    assert "the prefill worker took no message for 5 s" in answer.failures[0].reason
    assert first.socket is None and not len(decode.decode.peers.outbox)
    proxy.cancel(prefill, "r")
    refusals.left = 0
    proxy.submit_pair(prefill, decode, "again", prompt(40), drawn(4))
    assert len(proxy.finish("again")[0].ids) == 4
    assert decode.decode.peers[prefill.incarnation] is not first
    everyone_clean(proxy)


@pytest.mark.parametrize("kind", [ChunkReady, Handoff])
def test_a_decode_worker_that_takes_nothing_ends_what_is_computed_for_it(
    proxy: ScriptedProxy, pair: Pair, monkeypatch: pytest.MonkeyPatch, kind: type[Message]
) -> None:  # C14
    prefill, decode = pair
    Refusals(monkeypatch, kind, times=float("inf"))
    proxy.submit_pair(prefill, decode, "r", prompt(100), drawn(4))
    proxy.turn_until(lambda: len(prefill.prefill.outbox) > 0)
    prefill.prefill.tick(time.monotonic())
    assert prefill.prefill.kv_sender.open
    prefill.prefill.tick(time.monotonic() + PATIENCE)
    assert not prefill.prefill.kv_sender.open
    proxy.turn_until(lambda: "r" in proxy.answers and len(proxy.answers["r"].failures) == 2)
    reasons = [failure.reason for failure in proxy.answers["r"].failures]
    assert any("the decode worker took no message for 5 s" in reason for reason in reasons)
    assert any("the prefill worker withdrew" in reason for reason in reasons)
    everyone_clean(proxy)
    assert prefill.machine.pool.available == prefill.machine.pool.capacity


def test_a_handshake_that_is_not_answered_fails_its_requests_and_is_repeated(
    proxy: ScriptedProxy, pair: Pair
) -> None:  # C8
    prefill, decode = pair
    proxy.workers.remove(prefill)
    proxy.submit_pair(prefill, decode, "r", prompt(40), drawn(4))
    proxy.turn_until(lambda: prefill.incarnation in decode.decode.peers)
    connection = decode.decode.peers[prefill.incarnation]
    assert connection.socket is not None
    decode.decode.tick(connection.deadline)
    assert connection.state is HandshakeState.LOST
    assert f"did not answer within {DEADLINES.kv_handshake_timeout:g} s" in proxy.finish("r")[0].failures[0].reason
    proxy.workers.append(prefill)
    proxy.cancel(prefill, "r")
    proxy.turn_until(lambda: connection.state is HandshakeState.READY)
    proxy.submit_pair(prefill, decode, "again", prompt(40), drawn(4))
    assert len(proxy.finish("again")[0].ids) == 4
    everyone_clean(proxy)
