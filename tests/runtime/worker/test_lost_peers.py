# SPDX-License-Identifier: Apache-2.0
"""A link between two workers that is cut without a word: said at once, and used again as soon as it is back."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from relay import BACK, THERE, Relay
from workers import PromptWorker, ScriptedProxy, drawn, everyone_clean, greedy, open_worker, prompt

from pontil.runtime.config.worker_config import Deadlines
from pontil.runtime.disaggregation.sender import KVSender, SendTransfer
from pontil.runtime.disaggregation.states import SendState
from pontil.runtime.wire.messages import SCHEMA, Greet, Message, Withdrawn
from pontil.runtime.worker.links.peer_connection import HandshakeState, PeerConnection
from pontil.runtime.worker.links.peer_connections import LONGEST_LOSS, PeerConnections
from pontil.runtime.worker.process.worker_request import WorkerRequest

Pair = tuple[PromptWorker, PromptWorker]
BRIEF = Deadlines(link_timeout=0.6)


@pytest.fixture
def pair(proxy: ScriptedProxy, model: Path, tmp_path: Path) -> Pair:
    prefill = open_worker(
        model, tmp_path, "prefill:0", "prefill", peer_endpoint="tcp://127.0.0.1:*", deadlines=BRIEF, kv_connector="tcp"
    )
    decode = open_worker(model, tmp_path, "decode:0", "decode", deadlines=BRIEF, kv_connector="tcp")
    proxy.admit(prefill, decode)
    return prefill, decode


@pytest.fixture
def relay(pair: Pair) -> Iterator[Relay]:
    """Stand between the two workers."""
    made = Relay(("127.0.0.1", int(pair[0].peers_in.endpoint.rsplit(":", 1)[1])))
    pair[0].peers_in.endpoint = f"tcp://127.0.0.1:{made.address[1]}"
    yield made
    made.held = frozenset()
    made.close()


def lost(proxy: ScriptedProxy, decode: PromptWorker) -> list[str]:
    """Return the peers that the worker has said are lost."""
    beat = proxy.heartbeats.get(decode.incarnation)
    return [] if beat is None else beat.lost_peers


@pytest.mark.parametrize("held", [{THERE, BACK}, {THERE}, {BACK}], ids=["both", "there", "back"])
def test_a_cut_link_breaks_the_pair_until_it_is_back(
    proxy: ScriptedProxy, pair: Pair, relay: Relay, held: set[str]
) -> None:
    prefill, decode = pair
    proxy.submit_pair(prefill, decode, "before", prompt(30), drawn(4))
    assert len(proxy.finish("before")[0].ids) == 4
    everyone_clean(proxy)
    relay.held = frozenset(held)
    proxy.submit_pair(prefill, decode, "waits", prompt(30), drawn(4))
    proxy.turn_until(lambda: lost(proxy, decode) == [prefill.incarnation])
    (answer,) = proxy.finish("waits")
    assert "the connection to the prefill worker broke" in answer.failures[0].reason
    proxy.submit_pair(prefill, decode, "at-once", prompt(30), drawn(4))
    assert proxy.finish("at-once")[0].failures
    proxy.submit(decode, "alone", prompt(30), greedy(4, ignore_eos=True))
    assert len(proxy.finish("alone")[0].ids) == 4
    for name in ("waits", "at-once"):
        proxy.cancel(prefill, name)
    relay.held = frozenset()
    proxy.turn_until(lambda: not lost(proxy, decode))
    proxy.submit_pair(prefill, decode, "after", prompt(30), drawn(4))
    (answer,) = proxy.finish("after")
    assert len(answer.ids) == 4 and not answer.failures and decode.decode.counts.complete == 2
    everyone_clean(proxy)


def test_a_worker_that_was_never_heard_is_lost_until_it_answers(proxy: ScriptedProxy, pair: Pair, relay: Relay) -> None:
    prefill, decode = pair
    relay.held = frozenset((THERE, BACK))
    proxy.submit_pair(prefill, decode, "waits", prompt(30), drawn(4))
    proxy.turn_until(lambda: prefill.incarnation in decode.decode.peers)
    decode.decode.tick(decode.decode.peers[prefill.incarnation].deadline)
    proxy.turn_until(lambda: lost(proxy, decode) == [prefill.incarnation])
    assert "did not answer" in proxy.finish("waits")[0].failures[0].reason
    proxy.cancel(prefill, "waits")
    relay.held = frozenset()
    proxy.turn_until(lambda: not lost(proxy, decode))
    proxy.submit_pair(prefill, decode, "after", prompt(30), drawn(4))
    assert len(proxy.finish("after")[0].ids) == 4
    everyone_clean(proxy)


def lost_connection(proxy: ScriptedProxy, pair: Pair, relay: Relay) -> PeerConnection:
    """Cut the link after a handoff; return the connection once it is lost."""
    prefill, decode = pair
    proxy.submit_pair(prefill, decode, "before", prompt(30), drawn(4))
    proxy.finish("before")
    everyone_clean(proxy)
    connection = decode.decode.peers[prefill.incarnation]
    relay.held = frozenset((THERE, BACK))
    proxy.turn_until(lambda: connection.state is HandshakeState.LOST)
    return connection


def test_a_last_word_that_is_lost_with_its_connection_is_said_again(
    proxy: ScriptedProxy, pair: Pair, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = pair
    proxy.submit_pair(prefill, decode, "before", prompt(30), drawn(4))
    proxy.finish("before")
    everyone_clean(proxy)
    begin = KVSender.begin

    def begin_and_hear_no_more(*given: Any, **options: Any) -> SendTransfer | None:
        relay.held = frozenset((THERE,))
        return begin(*given, **options)

    monkeypatch.setattr(KVSender, "begin", begin_and_hear_no_more)
    proxy.submit_pair(prefill, decode, "fetched", prompt(30), drawn(4))
    assert len(proxy.finish("fetched")[0].ids) == 4
    proxy.turn_until(lambda: lost(proxy, decode) == [prefill.incarnation])
    (sent,) = prefill.prefill.kv_sender.open.values()
    relay.held = frozenset()
    proxy.turn_until(lambda: not prefill.prefill.kv_sender.open)
    assert sent.state is SendState.RELEASED and not prefill.prefill.expired
    everyone_clean(proxy)


def test_a_lost_worker_is_not_looked_for_for_ever(proxy: ScriptedProxy, pair: Pair, relay: Relay) -> None:
    prefill, decode = pair
    connection = lost_connection(proxy, pair, relay)
    decode.decode.tick(connection.lost_at + LONGEST_LOSS)
    assert prefill.incarnation not in decode.decode.peers and connection.socket is None


def test_what_names_a_worker_that_is_forgotten_fails(proxy: ScriptedProxy, pair: Pair, relay: Relay) -> None:
    """It comes in the very turn in which the other one has been lost for too long."""
    prefill, decode = pair
    connection = lost_connection(proxy, pair, relay)
    begin = decode.decode.submitted

    def late(request: WorkerRequest, now: float) -> None:
        begin(request, now)
        connection.lost_at = now - LONGEST_LOSS

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(decode.decode), "submitted", lambda side, request, now: late(request, now))
        proxy.submit_pair(prefill, decode, "late", prompt(30), drawn(4))
        assert "broke" in proxy.finish("late")[0].failures[0].reason
    assert prefill.incarnation not in decode.decode.peers
    proxy.cancel(prefill, "late")
    everyone_clean(proxy)


def test_a_lost_worker_is_greeted_on_every_new_connection() -> None:
    """Something else of it may be heard before a connection breaks that has its greeting, or the answer."""
    line, sockets = BreakingLine(), cast(Any, SimpleNamespace(config=SimpleNamespace(deadlines=Deadlines())))
    greeting = Greet("d", "", SCHEMA, "decode:0", "m", "k")
    peers = PeerConnections(sockets, cast(Any, None), greeting)
    peers.by_peer["p"] = PeerConnection("p", "tcp://p:1", cast(Any, line), 5.0, 5.0, state=HandshakeState.READY)
    for now, coming in ((10.0, ["p"]), (11.0, []), (12.0, [])):
        line.broken += 1
        assert peers.tick(now) == coming and line.renewed == line.broken == len(line.sent)
        list(peers.receive_all())


class BreakingLine:
    """A socket over which something comes each time, but no answer to a greeting."""

    def __init__(self) -> None:
        self.broken = self.renewed = 0
        self.sent: list[Message] = []

    def breaks(self, now: float) -> int:
        return self.broken

    def renew(self, now: float) -> None:
        self.renewed += 1

    def send(self, message: Message) -> bool:
        self.sent.append(message)
        return True

    def receive_all(self) -> list[Message]:
        return [Withdrawn("p", "d", "t", False, "any")]
