# SPDX-License-Identifier: Apache-2.0
"""Both sides of a handoff in one process, over the real connector and over one with faults."""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pair1p1d import DEADLINE, LAYOUT, Pair1P1D
from recording_callbacks import GivingNotes
from staged import MEMORIES

from pontil.runtime.cache.storage import EPOCH_SLOTS, KVStorage
from pontil.runtime.config.worker_config import DEADLINES
from pontil.runtime.disaggregation.rank_pools import RankPools
from pontil.runtime.disaggregation.receiver import DRAIN_TIMEOUT, KVReceiver, ReceiveTransfer
from pontil.runtime.disaggregation.sender import KVSender, PrefillResult
from pontil.runtime.disaggregation.states import (
    SENDING_ENDS,
    ReceiveEvent,
    ReceiveState,
    SendAction,
    SendEvent,
    SendState,
)
from pontil.runtime.errors import TransferError
from pontil.runtime.transfer.connector import Pull, PullResult, runs
from pontil.runtime.transfer.shm.connector import ShmConnector
from pontil.runtime.wire.messages import ChunkReady, Handoff

CPU = torch.device("cpu")
DONE = PrefillResult(computed=40, first_tokens=[7], prompt_tokens=40, cached_tokens=0, seconds=0.5, choices=[0])


@pytest.fixture(params=MEMORIES)
def both(request: pytest.FixtureRequest) -> Iterator[Pair1P1D]:
    made = Pair1P1D(request.param)
    yield made
    made.close()


def give(both: Pair1P1D) -> tuple[ChunkReady, Handoff]:
    """Hand over three blocks, two of them announced ahead."""
    sent = both.kv_sender.begin("t", "D", 0.0)
    assert sent is not None
    both.kv_sender.announce(sent, [3, 4], 0.0)
    both.kv_sender.hold(sent, [3, 4, 9], DONE, now=0.0)
    return announced(both)


def announced(both: Pair1P1D) -> tuple[ChunkReady, Handoff]:
    chunk, handoff = both.letting_go.announced
    assert isinstance(chunk, ChunkReady) and isinstance(handoff, Handoff)
    return chunk, handoff


def test_blocks_arrive_chunk_by_chunk(both: Pair1P1D) -> None:
    chunk, handoff = give(both)
    assert (chunk.first, chunk.block_ids, handoff.first, handoff.block_ids) == (0, [3, 4], 2, [9])
    take = both.kv_receiver.begin("t", "P", 3, 0.0)
    both.kv_receiver.announced(take, chunk, [5, 6], 0.0)
    both.kv_receiver.announced(take, handoff, [1], 0.0)
    assert both.wait() == [take]
    assert take.state is ReceiveState.COMPLETE and take.bytes == 3 * LAYOUT.block_bytes
    assert torch.equal(both.ours.tensor[[5, 6, 1]], both.theirs.tensor[[3, 4, 9]])
    assert both.receiving.notes == ["promote", "fetched"]
    for _ in range(2):  # C7: idempotent
        both.kv_sender.heard("t", handoff.epoch, SendEvent.FETCHED, 0.0)
        assert both.letting_go.freed == [3, 4, 9] and both.letting_go.notes == ["free_blocks"]
    assert not both.kv_sender.open and len(both.kv_sender.free_slots) == EPOCH_SLOTS


def test_a_step_that_finishes_no_block_announces_nothing(both: Pair1P1D) -> None:
    sent = both.kv_sender.begin("t", "D", 0.0)
    assert sent is not None
    for blocks in ([], [3, 4], [3, 4]):
        both.kv_sender.announce(sent, blocks, 0.0)
    both.kv_sender.hold(sent, [3, 4], DONE, now=0.0)
    chunk, handoff = announced(both)
    assert (handoff.first, handoff.block_ids, handoff.digests) == (2, [], [])
    take = both.kv_receiver.begin("t", "P", 2, 0.0)
    both.kv_receiver.announced(take, chunk, [5, 6], 0.0)
    both.kv_receiver.announced(take, handoff, [], 0.0)
    assert both.wait() == [take] and take.state is ReceiveState.COMPLETE
    assert torch.equal(both.ours.tensor[[5, 6]], both.theirs.tensor[[3, 4]])


def test_blocks_that_were_reused_are_refused(both: Pair1P1D) -> None:
    chunk, handoff = give(both)
    both.kv_sender.release("t", SendEvent.LATE, 0.0)
    take = both.kv_receiver.begin("t", "P", 3, 0.0)
    both.kv_receiver.announced(take, handoff_of_all(chunk, handoff), [5, 6, 7], 0.0)
    both.wait()
    assert take.state is ReceiveState.FAILED and "reused" in str(take.error)


def test_blocks_that_were_changed_are_refused(both: Pair1P1D) -> None:
    chunk, handoff = give(both)
    both.theirs.shared[4, -1] += 1
    take = both.kv_receiver.begin("t", "P", 3, 0.0)
    both.kv_receiver.announced(take, handoff_of_all(chunk, handoff), [5, 6, 7], 0.0)
    both.wait()
    assert take.state is ReceiveState.FAILED and "not the ones" in str(take.error)


def handoff_of_all(chunk: ChunkReady, handoff: Handoff) -> Handoff:
    ids, digests = chunk.block_ids + handoff.block_ids, chunk.digests + handoff.digests
    return replace(handoff, first=0, block_ids=ids, digests=digests)


@pytest.mark.parametrize(
    "change",
    [{"epoch": 5}, {"slot": 5}, {"first": 1}, {"digests": []}, {"kv_fingerprint": "other"}],
    ids=lambda change: next(iter(change)),
)
def test_a_peer_that_contradicts_itself_fails_the_transfer(both: Pair1P1D, change: dict[str, int]) -> None:
    chunk, handoff = give(both)
    take = both.kv_receiver.begin("t", "P", 3, 0.0)
    both.kv_receiver.announced(take, chunk, [5, 6], 0.0)
    both.kv_receiver.announced(take, replace(handoff, **change), [1], 0.0)  # type: ignore[arg-type]
    both.wait()
    assert take.state is ReceiveState.FAILED and not both.kv_receiver.open


@pytest.mark.parametrize(("ids", "slot"), [([0], 0), ([12], 0), ([-1], 0), ([3], -1), ([3], EPOCH_SLOTS)])
def test_blocks_outside_the_peers_pool_are_not_read(both: Pair1P1D, ids: list[int], slot: int) -> None:
    take = both.kv_receiver.begin("t", "P", 1, 0.0)
    both.kv_receiver.announced(take, ChunkReady("P", "D", "t", 0, slot, 0, ids, [0]), [1], 0.0)
    both.wait()
    assert take.state is ReceiveState.FAILED and "does not have" in str(take.error)


@pytest.mark.parametrize("epoch", [2**63, 2**64 - 1, -1])
def test_an_epoch_that_no_cell_holds_fails_the_transfer(both: Pair1P1D, epoch: int) -> None:
    """The grant of a pull across a network cannot hold it either."""
    take = both.kv_receiver.begin("t", "P", 1, 0.0)
    both.kv_receiver.announced(take, ChunkReady("P", "D", "t", epoch, 0, 0, [3], [0]), [1], 0.0)
    both.kv_receiver.poll(0.0)
    assert take.state is ReceiveState.FAILED and "epoch" in str(take.error)


def stuck_transfer(both: Pair1P1D) -> tuple["StuckConnector", KVReceiver, ReceiveTransfer]:
    """Return a transfer whose pull does not end."""
    stuck = StuckConnector()
    kv_receiver = KVReceiver(stuck, RankPools(both.ours), both.receiving)
    take = kv_receiver.begin("t", "P", 3, 0.0)
    chunk, _ = give(both)
    kv_receiver.announced(take, chunk, [5, 6], 0.0)
    return stuck, kv_receiver, take


def test_a_cancelled_transfer_ends_when_its_pull_has(both: Pair1P1D) -> None:
    stuck, kv_receiver, take = stuck_transfer(both)
    assert kv_receiver.end("t", ReceiveEvent.CANCELLED, 0.0) is take
    assert kv_receiver.end("t", ReceiveEvent.CANCELLED, 0.0) is None and stuck.cancelled == take.pending != []
    kv_receiver.poll(0.0)
    assert take.state.name == "DRAINING" and both.receiving.notes == ["keep_blocks", "abandon"]
    stuck.release = True
    kv_receiver.poll(0.0)
    assert take.state.name == "CANCELLED" and both.receiving.notes == ["keep_blocks", "abandon", "free_blocks"]


def test_a_pull_without_bytes_is_a_stall(both: Pair1P1D) -> None:  # C14
    stuck, kv_receiver, take = stuck_transfer(both)
    kv_receiver.poll(DEADLINES.kv_stall_timeout)
    assert take.error is None
    kv_receiver.poll(DEADLINES.kv_stall_timeout + 0.1)
    assert stuck.cancelled == take.pending != [] and both.receiving.notes == []
    stuck.release = True
    kv_receiver.poll(DEADLINES.kv_stall_timeout + 0.2)
    assert take.state is ReceiveState.FAILED and both.receiving.notes == ["free_blocks", "abandon", "go_on_without"]


def test_a_long_pull_whose_bytes_come_is_no_stall(both: Pair1P1D) -> None:
    stuck, kv_receiver, take = stuck_transfer(both)
    for second in range(1, 60):
        stuck.received += second % 4 == 0
        kv_receiver.poll(float(second))
    assert take.error is None
    kv_receiver.poll(56 + DEADLINES.kv_stall_timeout + 0.1)
    assert "no bytes" in str(take.error)


def test_silence_before_anything_is_announced_is_no_stall_and_has_its_own_deadline(both: Pair1P1D) -> None:  # C14
    take = both.kv_receiver.begin("t", "P", 3, 0.0)
    both.kv_receiver.poll(DEADLINES.kv_transfer_timeout - 0.1)
    assert take.state is ReceiveState.RESERVED
    both.kv_receiver.poll(DEADLINES.kv_transfer_timeout)
    assert both.receiving.notes == ["free_blocks", "abandon", "go_on_without"] and not both.kv_receiver.open


@pytest.mark.parametrize("event", [None, ReceiveEvent.CANCELLED, ReceiveEvent.FINISHED])
def test_a_copier_that_does_not_end_stops_the_worker_and_keeps_the_blocks(
    both: Pair1P1D, event: ReceiveEvent | None
) -> None:  # C14
    _, kv_receiver, take = stuck_transfer(both)
    if event is None:
        kv_receiver.fail(take, "broken", 0.0)
    else:
        kv_receiver.end("t", event, 0.0)
    kv_receiver.poll(DRAIN_TIMEOUT - 0.1)
    assert "stop_worker" not in both.receiving.notes
    kv_receiver.poll(DRAIN_TIMEOUT)
    assert both.receiving.notes[-1] == "stop_worker" and "free_blocks" not in both.receiving.notes


@pytest.mark.parametrize("bad", [None, 0, 1])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_transfer_is_what_all_its_pulls_are(both: Pair1P1D, order: tuple[int, int], bad: int | None) -> None:  # C9
    """One bad pull fails it, in whatever order they end."""
    stuck = StuckConnector()
    kv_receiver = KVReceiver(stuck, RankPools(both.ours), both.receiving)
    take = kv_receiver.begin("t", "P", 3, 0.0)
    chunk, handoff = give(both)
    kv_receiver.announced(take, chunk, [5, 6], 0.0)
    kv_receiver.announced(take, handoff, [1], 0.0)
    for ticket in order:
        assert both.receiving.ended == []
        digests = (chunk, handoff)[ticket].digests
        error = "broken" if ticket == bad else None
        stuck.extra = [ended(stuck.open[ticket], PullResult(error, take.epoch, 0, 0.0, digests))]
        kv_receiver.poll(0.0)
    assert take.state is (ReceiveState.COMPLETE if bad is None else ReceiveState.FAILED)


def test_ends_of_unknown_pulls_and_second_ends_say_nothing(both: Pair1P1D) -> None:
    stuck, kv_receiver, take = stuck_transfer(both)
    (pull,) = stuck.open
    strangers = [replace(pull, result=PullResult(None, 0)), Pull("P", [], 0, result=PullResult(None, 0))]
    stuck.extra = [*strangers, ended(pull, PullResult("broken")), pull]
    kv_receiver.poll(0.0)
    stuck.extra = [ended(pull, PullResult(None, 0))]
    kv_receiver.poll(0.0)
    assert take.state is ReceiveState.FAILED and take.error == "broken" and not take.pending


def ended(pull: Pull, result: PullResult) -> Pull:
    pull.result = result
    return pull


class StuckConnector(ShmConnector):
    """A connector whose pulls end only when it is told to end them."""

    def __init__(self) -> None:
        self.open: list[Pull] = []
        self.cancelled: list[Pull] = []
        self.extra: list[Pull] = []
        self.release, self.received = False, 0

    def pull(self, pull: Pull) -> None:
        pull.reader = self
        self.open.append(pull)

    def cancel(self, pull: Pull) -> None:
        self.cancelled.append(pull)

    def poll(self) -> list[Pull]:
        done = self.open if self.release else []
        self.open = [] if self.release else self.open
        extra, self.extra = self.extra, []
        return [ended(pull, PullResult("cancelled")) for pull in done] + extra


def test_a_lease_expires_unless_renewed_and_never_lives_forever(both: Pair1P1D) -> None:  # C14
    give(both)
    renew = partial(both.kv_sender.heard, "t", event=SendEvent.RENEWED)
    assert both.kv_sender.late(DEADLINES.kv_lease - 0.1) == []
    renew(epoch=99, now=29.0)
    assert [sent.transfer_id for sent in both.kv_sender.late(DEADLINES.kv_lease)] == ["t"]
    renew(epoch=0, now=29.0)
    assert both.kv_sender.late(58.0) == []
    renew(epoch=0, now=DEADLINES.kv_transfer_timeout - 1)
    assert both.kv_sender.late(DEADLINES.kv_transfer_timeout - 0.1) == []
    assert len(both.kv_sender.late(DEADLINES.kv_transfer_timeout)) == 1


def test_a_prompt_that_is_not_computed_in_time_is_given_up(both: Pair1P1D) -> None:  # C14
    sent = both.kv_sender.begin("t", "D", 5.0)
    assert sent is not None and both.kv_sender.late(4.9 + DEADLINES.kv_transfer_timeout) == []
    assert both.kv_sender.late(5.0 + DEADLINES.kv_transfer_timeout) == [sent]
    both.kv_sender.release("t", SendEvent.LATE, 200.0)
    assert sent.state is SendState.EXPIRED and both.letting_go.notes == ["free_blocks", "withdrawn"]


def test_the_epoch_moves_before_the_blocks_are_given_back(both: Pair1P1D, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = both.kv_sender.begin("t", "D", 0.0)
    assert sent is not None and both.kv_sender.begin("t", "E", 0.0) is None
    seen: list[int] = []
    monkeypatch.setattr(both.letting_go, "free_blocks", lambda sent: seen.append(int(both.theirs.epochs[sent.slot])))
    both.kv_sender.acts[SendAction.FREE_BLOCKS] = lambda sent, now: both.letting_go.free_blocks(sent)
    assert both.kv_sender.release("t", SendEvent.DROPPED, 0.0) is sent
    assert len(seen) == 1 and seen[0] > sent.epoch
    assert both.kv_sender.release("t", SendEvent.DROPPED, 0.0) is None
    for number in range(EPOCH_SLOTS):  # the slot is used again, under its next epoch
        again = both.kv_sender.begin(f"n{number}", "D", 0.0)
    assert again is not None and again.slot == sent.slot and again.epoch == int(both.theirs.epochs[sent.slot])
    assert len({sent.epoch, *(one.epoch for one in both.kv_sender.open.values())}) == EPOCH_SLOTS + 1
    assert both.kv_sender.begin("one too many", "D", 0.0) is None


def test_what_a_peer_says_of_another_epoch_changes_nothing(both: Pair1P1D) -> None:  # C2
    _, handoff = give(both)
    both.kv_sender.heard("t", handoff.epoch - 1, SendEvent.FETCHED, 0.0)
    both.kv_sender.heard("t", handoff.epoch + 1, SendEvent.FETCHED, 0.0)
    both.kv_sender.heard("other", handoff.epoch, SendEvent.FETCHED, 0.0)
    assert list(both.kv_sender.open) == ["t"] and both.letting_go.notes == []


def test_a_prompt_that_is_not_computed_yet_cannot_have_been_fetched(both: Pair1P1D) -> None:
    sent = both.kv_sender.begin("t", "D", 0.0)
    both.kv_sender.heard("t", 0, SendEvent.FETCHED, 0.0)
    assert sent is not None and sent.state is SendState.COMPUTING


@pytest.mark.parametrize(
    "descriptor",
    [
        {},
        {"pid": 0},
        {"pid": "x"},
        {"pid": 1 << 40},
        {"fd": None},
        {"identity": "zz"},
        {"block_bytes": 7},
        {"kind": "tcp"},
    ],
)
def test_a_descriptor_that_cannot_be_opened_is_refused(both: Pair1P1D, descriptor: dict[str, object]) -> None:
    with pytest.raises(TransferError):
        both.connector.attach("other", both.source.register() | descriptor if descriptor else {})
    with pytest.raises(TransferError, match="another size"):
        both.connector.attach("other", both.source.register() | {"blocks": 13})


def test_memory_that_is_not_the_peers_is_refused(both: Pair1P1D) -> None:
    """This host may have a process and a descriptor with these numbers although the peer is on another one."""
    elsewhere = ShmConnector(KVStorage(LAYOUT, 12, CPU), lambda: None)
    with pytest.raises(TransferError, match="not this host's"):
        both.connector.attach("other", both.source.register() | {"identity": elsewhere.register()["identity"]})
    elsewhere.close()
    reading, writing = os.pipe()  # a blocking open for reading would wait for a writer
    with pytest.raises(TransferError, match="another size"):
        both.connector.attach("other", both.source.register() | {"fd": reading})
    os.close(reading)
    os.close(writing)


class LettingGo:
    """Blocks that their owner frees while they are read."""

    def __init__(self, storage: KVStorage) -> None:
        self.storage = storage

    def __getitem__(self, place: slice) -> NDArray[np.uint8]:
        self.storage.epochs[3] += 1
        return self.storage.shared.numpy()[place]


def test_the_cell_is_read_after_the_data(both: Pair1P1D) -> None:
    both.connector.peers["P"].blocks = LettingGo(both.theirs)  # type: ignore[assignment]
    before = int(both.theirs.epochs[3])
    both.connector.pull(Pull("P", [(1, 1), (5, 6)], 3))
    assert both.wakeup.wait(DEADLINE)
    assert [(pull.end.error, pull.end.epoch) for pull in both.connector.poll()] == [(None, before + 2)]


def test_neighbours_are_merged() -> None:
    assert runs([(1, 5), (2, 6), (3, 9), (7, 10), (8, 11)]) == [(1, 5, 2), (3, 9, 1), (7, 10, 2)]
    assert runs([]) == []


@settings(max_examples=examples(40, 200), deadline=None)
@given(events=st.lists(st.tuples(st.sampled_from(SendEvent), st.integers(-1, 1)), max_size=12))
def test_a_gift_lets_go_exactly_once_whatever_happens(events: list[tuple[SendEvent, int]]) -> None:
    """C7: finish, abort, failure, expiry and late messages in any order."""
    notes, storage = GivingNotes(), KVStorage(LAYOUT, 12, CPU)
    kv_sender = KVSender(RankPools(storage), "P", notes)
    sent = kv_sender.begin("t", "D", 0.0)
    assert sent is not None
    for event, off in events:
        if event in (SendEvent.FETCHED, SendEvent.RENEWED):
            kv_sender.heard("t", sent.epoch + off, event, 1.0)
        elif event in (SendEvent.LATE, SendEvent.DROPPED):
            kv_sender.release("t", event, 1.0)
        elif sent.state is SendState.COMPUTING:
            kv_sender.hold(sent, [3, 4], DONE, 1.0)
    ended = sent.state in SENDING_ENDS
    assert notes.notes.count("free_blocks") == ended == ("t" not in kv_sender.open)
    assert (int(storage.epochs[sent.slot]) > sent.epoch) == ended
    assert len(kv_sender.free_slots) + len(kv_sender.open) == EPOCH_SLOTS
