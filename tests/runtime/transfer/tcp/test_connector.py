# SPDX-License-Identifier: Apache-2.0
"""The TCP connector against peers that stall, send wrong data, close or return."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import DEADLINE, LAYOUT, Pool, wait_for

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config.worker_config import Deadlines
from pontil.runtime.transfer.connector import ConnectorOptions
from pontil.runtime.transfer.tcp.connector import TcpConnector
from pontil.runtime.transfer.tcp.frames import ANSWER, EPOCH, READ, REFUSED, REQUEST, RUN
from pontil.runtime.transfer.tcp.server import TcpConnection

STALL = 1.0
PAIRS = [(block, block) for block in range(1, 40)]
SIZE = 39 * LAYOUT.block_bytes


def open_prompt(storage: KVStorage, wake: Callable[[], None]) -> TcpConnector:
    return TcpConnector(storage, wake, ConnectorOptions(deadlines=Deadlines(kv_stall_timeout=STALL)))


def open_patient(storage: KVStorage, wake: Callable[[], None]) -> TcpConnector:
    """Open a connector whose stall timeout no test waits for."""
    return TcpConnector(storage, wake, ConnectorOptions(deadlines=Deadlines(kv_stall_timeout=10 * DEADLINE)))


class Liar:
    """A peer whose every answer is `says`; after it the connection is closed, or kept open in silence."""

    def __init__(self, says: bytes, stays: bool) -> None:
        self.says, self.stays = says, stays
        self.kept: list[socket.socket] = []
        self.pulls = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def descriptor(self) -> dict[str, Any]:
        return self.described(self.listener)

    @staticmethod
    def described(listener: socket.socket) -> dict[str, Any]:
        host, port = listener.getsockname()
        size = LAYOUT.block_bytes
        return {"kind": "tcp", "host": host, "port": port, "token": "00" * 16, "blocks": 40, "block_bytes": size}

    def serve(self) -> None:
        """Answer every test of the connection properly, and every pull with `says`."""
        while True:
            try:
                peer, _ = self.listener.accept()
                self.kept.append(peer)
                while (count := self.runs_asked(peer)) == 0:
                    peer.sendall(ANSWER.pack(READ, 0) + EPOCH.pack(0))
                if count is not None:
                    self.pulls += 1
                    peer.sendall(self.says)
            except ConnectionError:
                continue
            except OSError:
                return
            if not self.stays:
                peer.close()

    def runs_asked(self, peer: socket.socket) -> int | None:
        head = peer.recv(REQUEST.size, socket.MSG_WAITALL)
        if len(head) < REQUEST.size:
            return None
        count = int(REQUEST.unpack(head)[3])
        peer.recv(count * RUN.size, socket.MSG_WAITALL)
        return count

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join(5)
        for peer in [self.listener, *self.kept]:
            peer.close()


@pytest.fixture
def ours() -> Iterator[Pool]:
    made = Pool(open_prompt)
    yield made
    made.connector.close()


@pytest.fixture
def good(ours: Pool) -> Iterator[Pool]:
    made = Pool(open_prompt)
    ours.connector.attach("good", made.connector.register())
    yield made
    made.connector.close()


def lie_to(ours: Pool, says: bytes, stays: bool) -> Liar:
    liar = Liar(says, stays)
    ours.connector.attach("liar", liar.descriptor())
    return liar


HEAD = ANSWER.pack(READ, SIZE)


@pytest.mark.parametrize(
    "says",
    [b"", HEAD, HEAD + b"x" * 5000, ANSWER.pack(REFUSED, 0), ANSWER.pack(READ, SIZE + 1), ANSWER.pack(9, SIZE)],
    ids=["silence", "no data", "half", "refusal", "more", "nonsense"],
)
@pytest.mark.parametrize("stays", [True, False], ids=["stays", "closes"])
def test_a_peer_that_does_not_give_everything_is_an_error(ours: Pool, good: Pool, says: bytes, stays: bool) -> None:
    liar = lie_to(ours, says, stays)
    bad = ours.pull("liar", PAIRS, 0)
    (done,) = ours.finish(ours.pull("good", [(1, 1)], 0))  # C8: is not delayed
    assert done.error is None
    (done,) = ours.finish(bad)
    assert done.error and done.epoch is None and done.bytes == 0
    assert "liar" not in ours.connector.lost()
    liar.close()
    ours.finish(ours.pull("liar", PAIRS, 0))
    wait_for(lambda: ours.connector.lost() == ["liar"])


@settings(max_examples=20, deadline=None)
@given(says=st.binary(max_size=100), count=st.integers(0, 3))
def test_no_answer_writes_outside_the_blocks_that_were_asked_for(says: bytes, count: int) -> None:
    ours = Pool(open_prompt)
    liar = lie_to(ours, ANSWER.pack(READ, 3 * LAYOUT.block_bytes) * count + says * 50, False)
    before = ours.storage.shared.clone()
    ours.finish(ours.pull("liar", [(1, 5), (2, 6), (3, 7)], 0))
    ours.connector.close()
    liar.close()
    rest = [block for block in range(40) if block not in (5, 6, 7)]
    assert torch.equal(ours.storage.shared[rest], before[rest])


def test_a_cancelled_pull_does_not_wait_for_its_peer() -> None:
    ours = Pool(open_patient)
    liar = lie_to(ours, HEAD, True)
    first, second = ours.pull("liar", PAIRS, 0), ours.pull("liar", PAIRS, 0)
    wait_for(lambda: liar.pulls == 1)
    second.cancel()
    first.cancel()
    assert [done.error for done in ours.finish(first, second)] == ["cancelled", "cancelled"]
    third = ours.pull("liar", PAIRS, 0)
    ours.connector.close()
    ours.wakeup.set()
    assert ours.finish(third)[0].error == "this worker is closing"
    liar.close()


def test_bytes_that_only_trickle_in_have_a_deadline_too() -> None:  # C14
    brief = Deadlines(kv_stall_timeout=STALL, kv_transfer_timeout=1.5 * STALL)
    ours = Pool(lambda storage, wake: TcpConnector(storage, wake, ConnectorOptions(deadlines=brief)))
    liar = lie_to(ours, HEAD, True)
    pull = ours.pull("liar", PAIRS, 0)
    wait_for(lambda: liar.pulls == 1)
    ended = threading.Event()

    def trickle() -> None:
        while not ended.wait(STALL / 10):
            with contextlib.suppress(OSError):
                liar.kept[-1].sendall(b"x")

    thread = threading.Thread(target=trickle)
    thread.start()
    (done,) = ours.finish(pull)
    ended.set()
    thread.join()
    assert done.error == "the peer is too slow" and STALL < done.seconds < STALL + DEADLINE
    ours.connector.close()
    liar.close()


def test_a_connection_that_was_closed_while_idle_is_made_again(ours: Pool, good: Pool) -> None:
    assert isinstance(good.connector, TcpConnector)
    for _ in range(5):
        (done,) = ours.finish(ours.pull("good", PAIRS, 0))
        assert done.error is None and ours.has([1, 39], good, [1, 39])
        for connection in list(good.connector.server.connections):
            connection.close()
    assert ours.connector.lost() == []


def test_the_cell_is_read_after_the_data(ours: Pool, good: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that frees the blocks while they are sent shows the next epoch."""
    assert isinstance(good.connector, TcpConnector)
    server = good.connector.server
    sends = server.send

    def send_and_let_go(peer: TcpConnection, wanted: list[tuple[int, int]], heads: range) -> None:
        sends(peer, wanted, heads)
        good.storage.epochs[3] += bool(wanted)

    monkeypatch.setattr(server, "send", send_and_let_go)
    before = int(good.storage.epochs[3])
    ends = [ours.finish(ours.pull("good", PAIRS, 3))[0] for _ in range(3)]
    assert [done.epoch for done in ends] == [before + 1, before + 2, before + 3]


def test_a_process_with_another_token_gives_nothing(ours: Pool, good: Pool) -> None:
    """The port of a peer that ended may belong to another process by now."""
    ours.connector.attach("old", good.connector.register() | {"token": "00" * 16})
    (done,) = ours.finish(ours.pull("old", PAIRS, 0))
    assert done.error and ours.connector.lost() == []


def test_an_idle_peer_that_ends_is_lost(ours: Pool, good: Pool) -> None:
    ours.finish(ours.pull("good", PAIRS, 0))
    good.connector.close()
    wait_for(lambda: ours.connector.lost() == ["good"])
    (done,) = ours.finish(ours.pull("good", PAIRS, 0))
    assert "cannot be reached" in str(done.error)


def test_a_peer_that_always_closes_is_tried_a_few_times_only(ours: Pool) -> None:
    trials = 0
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(DEADLINE)
        ours.connector.attach("P", Liar.described(listener))
        with pytest.raises(TimeoutError):
            while True:
                peer, _ = listener.accept()
                peer.close()
                listener.settimeout(1.5)  # from the first on, to see whether it goes on
                trials += 1
                assert trials < 10
    assert trials >= 1


def test_a_cancelled_pull_that_waits_for_another_ends_at_once() -> None:
    ours = Pool(open_patient)
    liar = lie_to(ours, HEAD, True)
    first, second = ours.pull("liar", PAIRS, 0), ours.pull("liar", PAIRS, 0)
    wait_for(lambda: liar.pulls == 1)
    second.cancel()
    assert [(pull, pull.end.error) for pull in ours.connector.poll()] == [(second, "cancelled")]
    second.cancel()  # has ended already
    first.cancel()
    assert ours.finish(first)[0].error == "cancelled"
    ours.connector.close()
    liar.close()


def test_bytes_are_counted_as_they_come(ours: Pool) -> None:
    liar = lie_to(ours, HEAD, True)
    assert ours.pull("nobody", PAIRS, 0).received == 0
    pull = ours.pull("liar", PAIRS, 0)
    wait_for(lambda: liar.pulls == 1)
    before = pull.received
    liar.kept[-1].sendall(b"x" * 100)
    wait_for(lambda: pull.received >= before + 100)
    pull.cancel()
    ours.finish(pull)
    liar.close()
