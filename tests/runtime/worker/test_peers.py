# SPDX-License-Identifier: Apache-2.0
"""Handshakes, deadlines and the blocks a transfer moves, between real workers."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from served import wait_for
from workers import (
    PromptWorker,
    ScriptedProxy,
    drawn,
    everyone_clean,
    greedy,
    is_clean,
    open_worker,
    prompt,
)

from pontil.runtime.config.worker_config import DEADLINES
from pontil.runtime.disaggregation.states import ReceiveAction, SendState
from pontil.runtime.wire.links.sockets import PeerClient
from pontil.runtime.wire.messages import Abandon, Begin, ChunkReady, Fetched, Greet, Greeting, Message, Submit
from pontil.runtime.worker.generate.prefill import LONGEST_ID, MOST_EARLY, PrefillSide
from pontil.runtime.worker.links.peer_connection import HandshakeState, PeerConnection

Pair = tuple[PromptWorker, PromptWorker]


def count(worker: PromptWorker, kind: type[Message], monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """Record the messages of a kind that reach a worker from now on."""
    seen: list[Message] = []
    is_mine = worker.sockets.is_mine

    def noting(message: Message) -> bool:
        if isinstance(message, kind):
            seen.append(message)
        return is_mine(message)

    monkeypatch.setattr(worker.sockets, "is_mine", noting)
    return seen


def test_many_requests_make_one_handshake(
    proxy: ScriptedProxy, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:  # C8
    prefill, decode = pair
    greets, greetings = count(prefill, Greet, monkeypatch), count(decode, Greeting, monkeypatch)
    names = [f"r{number}" for number in range(8)]
    for name in names:
        proxy.submit_pair(prefill, decode, name, prompt(30), drawn(4))
    proxy.finish(*names)
    proxy.submit_pair(prefill, decode, "later", prompt(30), drawn(4))
    proxy.finish("later")
    everyone_clean(proxy)
    assert (len(greets), len(greetings)) == (1, 1)


def test_a_peer_that_does_not_answer_holds_up_nobody_else_and_has_a_deadline(
    proxy: ScriptedProxy, pair: Pair, model: Path, tmp_path: Path
) -> None:  # C8, C14
    prefill, decode = pair
    silent = open_worker(model, tmp_path, "prefill:1", "prefill")
    proxy.admit(silent)
    proxy.workers.remove(silent)
    proxy.submit_pair(silent, decode, "waits", prompt(30), drawn(4))
    proxy.turn_until(lambda: silent.incarnation in decode.decode.peers)
    proxy.submit_pair(prefill, decode, "goes", prompt(30), drawn(4))
    assert len(proxy.finish("goes")[0].ids) == 4
    connection = decode.decode.peers[silent.incarnation]
    decode.decode.tick(connection.deadline - 0.01)
    assert connection.state is HandshakeState.GREETING and "waits" not in proxy.answers
    decode.decode.tick(connection.deadline)
    (answer,) = proxy.finish("waits")
    assert f"did not answer within {DEADLINES.kv_handshake_timeout:g} s" in answer.failures[0].reason
    proxy.workers.append(silent)
    proxy.cancel(silent, "waits")
    everyone_clean(proxy)


def test_a_peer_that_came_back_is_another_peer(
    proxy: ScriptedProxy, pair: Pair, model: Path, tmp_path: Path
) -> None:  # D11: lines, transfers and messages go by the incarnation, never by name or address
    prefill, decode = pair
    proxy.submit_pair(prefill, decode, "before", prompt(30), drawn(4))
    proxy.finish("before")
    everyone_clean(proxy)
    proxy.workers.remove(prefill)
    prefill.close()
    again = open_worker(model, tmp_path, "prefill:0", "prefill")
    proxy.admit(again)
    proxy.submit_pair(again, decode, "after", prompt(30), drawn(4))
    (answer,) = proxy.finish("after")
    assert len(answer.ids) == 4 and not answer.failures
    assert again.incarnation in decode.decode.peers and again.incarnation != prefill.incarnation
    everyone_clean(proxy)


def submit_late(proxy: ScriptedProxy, decode: PromptWorker, endpoint: str) -> None:
    """Submit a request that names an earlier process at this address."""
    late: dict[str, Any] = {"request_id": "late", "attempt": 0, "prompt": prompt(30), "sampling": drawn(4).to_wire()}
    assert proxy.server.send(
        Submit(
            proxy.incarnation, decode.incarnation, phase="decode", transfer_id="t-late",
            peer="that of before", peer_endpoint=endpoint, **late,
        )
    )  # fmt: skip


def test_late_word_of_an_earlier_process_at_an_address_harms_not_the_one_there(
    proxy: ScriptedProxy, pair: Pair
) -> None:  # D11
    """A proxy behind a silent link has not heard yet that a worker was replaced."""
    prefill, decode = pair
    proxy.submit_pair(prefill, decode, "before", prompt(30), drawn(4))
    proxy.finish("before")
    connection = decode.decode.peers[prefill.incarnation]
    submit_late(proxy, decode, connection.endpoint)
    (answer,) = proxy.finish("late")
    assert "another process has the prefill worker's address" in answer.failures[0].reason
    assert not decode.decode.peers.failed and decode.decode.peers[prefill.incarnation] is connection
    proxy.submit_pair(prefill, decode, "after", prompt(30), drawn(4))
    assert len(proxy.finish("after")[0].ids) == 4 and connection.renewal.count == 0
    everyone_clean(proxy)


@pytest.mark.parametrize("late_is_first", [False, True])
def test_of_two_that_are_named_at_an_address_the_one_that_answers_has_it(
    proxy: ScriptedProxy, pair: Pair, late_is_first: bool
) -> None:  # D11: neither word says which process came later
    prefill, decode = pair
    peers = decode.decode.peers
    proxy.workers.remove(prefill)
    for is_late in sorted((False, True), reverse=late_is_first):
        if is_late:
            submit_late(proxy, decode, prefill.peers_in.endpoint)
        else:
            proxy.submit_pair(prefill, decode, "r", prompt(30), drawn(4))
        named = "that of before" if is_late else prefill.incarnation
        proxy.turn_until(partial(peers.__contains__, named))
    assert not peers.failed and len(peers.sockets) == 1
    proxy.workers.append(prefill)
    answer, late = proxy.finish("r", "late")
    assert len(answer.ids) == 4 and not answer.failures
    assert "another process has the prefill worker's address" in late.failures[0].reason
    assert list(peers.failed) == ["that of before"] and peers[prefill.incarnation].state is HandshakeState.READY
    everyone_clean(proxy)


def test_a_connection_that_an_older_one_displaced_is_made_anew(proxy: ScriptedProxy, pair: Pair) -> None:  # C8, D11
    """An older socket to the same address, under our name, reaches the peer after ours: the peer lets go of ours."""
    prefill, decode = pair
    peers = decode.decode.peers
    proxy.workers.remove(prefill)
    proxy.submit_pair(prefill, decode, "r", prompt(30), drawn(4))
    proxy.turn_until(lambda: prefill.incarnation in peers)
    lost = wait_for(prefill.peers_in.receive_all, 60, "a greeting")
    connection = peers[prefill.incarnation]
    older = PeerClient(decode.context, decode.incarnation, connection.endpoint)
    assert older.send(lost[0])
    wait_for(prefill.peers_in.receive_all, 60, "the older socket's message")
    older.close()
    proxy.workers.append(prefill)
    peers.tick(connection.renewal.at)
    (answer,) = proxy.finish("r")
    assert len(answer.ids) == 4 and not answer.failures and connection.renewal.count == 1
    everyone_clean(proxy)


def test_transfers_go_on_when_there_is_nothing_to_compute(proxy: ScriptedProxy, pair: Pair) -> None:  # C5
    """A finished pull wakes a decode worker that sleeps: only the connector's wake-up tells it."""
    prefill, decode = pair
    proxy.workers.remove(decode)
    proxy.submit_pair(prefill, decode, "r", prompt(40), drawn(4))

    def pulling() -> bool:
        if not any(take.pending for take in decode.decode.kv_receiver.open.values()):
            decode.turn()
        return any(take.pending for take in decode.decode.kv_receiver.open.values())

    proxy.turn_until(pulling)
    assert not decode.machine.engine.has_work
    assert decode.poller.wait(30.0), "the end of a pull woke nobody"
    proxy.workers.append(decode)
    assert len(proxy.finish("r")[0].ids) == 4
    everyone_clean(proxy)


def test_a_prompt_of_the_greatest_length(proxy: ScriptedProxy, pair: Pair) -> None:  # C10
    prefill, decode = pair
    longest = decode.machine.config.max_model_len
    tokens = prompt(longest - 4)
    proxy.submit(decode, "whole", tokens, greedy(4, ignore_eos=True))
    proxy.submit_pair(prefill, decode, "split", tokens, greedy(4, ignore_eos=True))
    whole, split = proxy.finish("whole", "split")
    assert split.ids == whole.ids and len(split.ids) == 4
    everyone_clean(proxy)
    proxy.submit_pair(prefill, decode, "longer", prompt(longest - 3), greedy(4))
    assert proxy.finish("longer")[0].failures[0].status == 400


@pytest.mark.parametrize("length", [31, 32, 33])
def test_a_prompt_that_is_here_already_moves_only_its_end(
    proxy: ScriptedProxy, pair: Pair, length: int
) -> None:  # C10: a full prefix hit
    prefill, decode = pair
    for name in ("first", "second"):
        proxy.submit_pair(prefill, decode, name, prompt(length), drawn(4, seed=5), salt="shared")
        proxy.finish(name)
        everyone_clean(proxy)
    assert proxy.answers["first"].ids == proxy.answers["second"].ids
    blocks = decode.decode.counts.bytes // decode.machine.layout.block_bytes
    assert -(-length // 16) <= blocks <= -(-length // 16) + 1


def late_halves(worker: PromptWorker) -> float:
    return min(half.deadline for half in worker.prefill.halves.values())


def test_each_half_of_a_request_waits_for_the_other_until_a_deadline(proxy: ScriptedProxy, pair: Pair) -> None:  # C14
    prefill, decode = pair
    before = prefill.idle_work.busy_at
    proxy.workers.remove(decode)
    proxy.submit_pair(prefill, decode, "r", prompt(40), drawn(4))
    proxy.turn_until(lambda: bool(prefill.prefill.halves))
    deadline = late_halves(prefill)
    prefill.prefill.tick(deadline - 0.01)
    assert prefill.prefill.halves and prefill.idle_work.busy_at == before
    prefill.prefill.tick(deadline)
    (answer,) = proxy.finish("r")
    assert f"within {DEADLINES.first_byte_timeout:g} s" in answer.failures[0].reason
    proxy.workers.append(decode)
    proxy.turn_until(lambda: bool(prefill.prefill.halves))
    prefill.prefill.tick(late_halves(prefill))
    proxy.turn_until(lambda: bool(proxy.answers["r"].failures[1:]))
    assert "never submitted" in proxy.answers["r"].failures[1].reason
    everyone_clean(proxy)


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_a_prompt_that_takes_too_long_fails_on_either_side(proxy: ScriptedProxy, pair: Pair, side: str) -> None:  # C14
    prefill, decode = pair
    proxy.submit_pair(prefill, decode, "r", prompt(250), drawn(4))
    proxy.turn_until(lambda: bool(prefill.prefill.jobs.open and decode.decode.parked))
    now = max(sent.deadline for sent in prefill.prefill.kv_sender.open.values())
    if side == "prefill":
        prefill.prefill.tick(now)
        says = f"not computed within {DEADLINES.kv_transfer_timeout:g} s"
    else:
        decode.decode.poll(now + 1.0)
        says = f"not complete within {DEADLINES.kv_transfer_timeout:g} s"
    proxy.turn_until(lambda: any(says in reason for reason in reasons(proxy, "r")))
    everyone_clean(proxy)


def reasons(proxy: ScriptedProxy, name: str) -> list[str]:
    return [failure.reason for failure in proxy.answers[name].failures] if name in proxy.answers else []


def test_a_message_about_a_transfer_that_is_over_changes_nothing(
    proxy: ScriptedProxy, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:  # C7
    prefill, decode = pair
    begins = count(prefill, Begin, monkeypatch)
    proxy.submit_pair(prefill, decode, "r", prompt(40), drawn(4))
    proxy.finish("r")
    everyone_clean(proxy)
    connection = decode.decode.peers[prefill.incarnation]
    transfer_id = getattr(begins[0], "transfer_id", "")
    for epoch in range(3):
        decode.decode.peers.tell(connection.peer, Fetched(decode.incarnation, prefill.incarnation, transfer_id, epoch))
    prefill.peers_in.send(ChunkReady(prefill.incarnation, decode.incarnation, transfer_id, 0, 0, 0, [1], [1]))
    decode.decode.peers.tell(connection.peer, Begin(decode.incarnation, prefill.incarnation, transfer_id, "r", 0))
    proxy.turn_until(lambda: bool(prefill.prefill.halves))
    prefill.prefill.tick(late_halves(prefill))
    everyone_clean(proxy)
    assert all(map(is_clean, proxy.workers))


@pytest.mark.parametrize("ranks", [0, -1, 3, 1 << 40])
def test_ranks_that_cannot_hold_the_heads_get_nothing(
    proxy: ScriptedProxy, pair: Pair, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = pair
    take = PrefillSide.take

    def mistaken(side: PrefillSide, message: Message, now: float) -> None:
        take(side, replace(message, ranks=ranks) if isinstance(message, Begin) else message, now)

    monkeypatch.setattr(PrefillSide, "take", mistaken)
    proxy.submit_pair(prefill, decode, "r", prompt(40), drawn(4))
    (answer,) = proxy.finish("r")
    assert any("ranks" in failure.reason for failure in answer.failures)
    everyone_clean(proxy)


def test_workers_of_several_ranks_refuse_those_that_know_none(pair: Pair) -> None:
    prefill, decode = pair
    connection = PeerConnection("p", "ipc://p", None, 1.0, 1.0)
    connection.greeted(Greeting("p", "d", pool={"kind": "shm"}), decode.transfers.connector, ranks=2)
    assert connection.state is HandshakeState.FAILED and "same version" in connection.reason
    greeting = decode.decode.peers.greeting
    assert greeting is not None
    greet = replace(greeting, receiver=prefill.incarnation)
    assert prefill.prefill.answer(greet).ranks == 1 and prefill.prefill.answer(replace(greet, ranks=None)).pool
    side = prefill.prefill
    side.machine = replace(side.machine, layout=replace(side.machine.layout, ranks=2))
    assert side.answer(greet).ranks == 2 and "same version" in str(side.answer(replace(greet, ranks=None)).reason)


def test_only_the_worker_that_a_transfer_is_for_can_end_it(proxy: ScriptedProxy, pair: Pair) -> None:
    prefill, decode = pair
    decode.decode.kv_receiver.acts[ReceiveAction.SEND_FETCHED] = lambda take: None
    proxy.submit_pair(prefill, decode, "r", prompt(40), drawn(4))
    proxy.finish("r")
    (sent,) = prefill.prefill.kv_sender.open.values()
    for stranger in (
        Fetched("stranger", prefill.incarnation, sent.transfer_id, sent.epoch),
        Abandon("stranger", prefill.incarnation, sent.transfer_id, "no"),
    ):
        prefill.prefill.take(stranger, 0.0)
        assert sent.state is SendState.HELD
    prefill.prefill.take(Fetched(decode.incarnation, prefill.incarnation, sent.transfer_id, sent.epoch), 0.0)
    everyone_clean(proxy)


def test_prompts_that_no_proxy_submits_take_a_bounded_room(proxy: ScriptedProxy, pair: Pair) -> None:
    """Names of transfers are a peer's: it may invent them. Those that the proxy has submitted always have room."""
    prefill, decode = pair
    side, now = prefill.prefill, prefill.now
    for number in range(MOST_EARLY + 5):
        side.take(Begin("d", prefill.incarnation, f"t{number}", "r", 0), now)
    side.take(Begin("d", prefill.incarnation, "t" * (LONGEST_ID + 1), "r", 0), now)
    assert len(side.halves) == MOST_EARLY
    side.outbox.drop("d")
    proxy.submit(prefill, "r", prompt(20), greedy(2), phase="prefill", transfer_id="late", peer=decode.incarnation)
    proxy.turn_until(lambda: "late" in side.halves)
    side.take(Begin(decode.incarnation, prefill.incarnation, "late", "r", 0), now)
    assert "late" not in side.halves and side.jobs.open
    proxy.cancel(prefill, "r")
    side.tick(now + DEADLINES.first_byte_timeout + 1.0)
    side.outbox.drop("d")
    everyone_clean(proxy)
