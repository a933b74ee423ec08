# SPDX-License-Identifier: Apache-2.0
"""Pulls that are open: what is mapped for them stays, what comes for them counts, and asking costs nothing."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.disaggregation.joint_connector import JointConnector
from pontil.runtime.disaggregation.joint_pull import JointPull
from pontil.runtime.disaggregation.rank_orders import RankOrders
from pontil.runtime.transfer.connector import Pull, PullResult
from pontil.runtime.transfer.shm.copying_connector import CopyingConnector, CopyJob
from pontil.runtime.transfer.shm.peer_pool import PeerPool

LAYOUT = KVLayout(16, 1, 1, 8, "float32")
DEADLINE = 60.0


class MappedPool:
    """A peer's memory on a device, which must not be closed under a copy."""

    num_blocks, ended = 9, False

    def __init__(self) -> None:
        self.heads, self.readers = LAYOUT.kv_heads, 0
        self.is_mapped = True

    def close(self) -> None:
        self.is_mapped = False


class HeldConnector(CopyingConnector[PeerPool]):
    """A connector whose copies go on until they are let go; `read` are what they found mapped at their end."""

    thread_name = "held-connector"

    def __init__(self, storage: KVStorage) -> None:
        self.go, self.begun, self.came = threading.Semaphore(0), threading.Semaphore(0), threading.Event()
        self.read: list[bool] = []
        super().__init__(storage, self.came.set)

    def register(self) -> dict[str, Any]:
        return {}

    def staged(self, peer: str) -> bool:
        return False

    def open_pool(self, descriptor: dict[str, Any], heads: range) -> PeerPool:
        return cast("PeerPool", MappedPool())

    def copy(self, job: CopyJob[PeerPool]) -> PullResult:
        self.begun.release()
        assert self.go.acquire(timeout=DEADLINE)
        self.read.append(cast("MappedPool", job.pool).is_mapped)
        self.received += len(job.pull.pairs)
        return PullResult(None, 0, 1, 0.0, [0])

    def finish_one(self) -> None:
        self.came.clear()
        self.go.release()
        assert self.came.wait(DEADLINE)


@pytest.fixture
def storage() -> KVStorage:
    return KVStorage(LAYOUT, 9, torch.device("cpu"))


@pytest.fixture
def held(storage: KVStorage) -> Iterator[HeldConnector]:
    made = HeldConnector(storage)
    yield made
    made.go.release(9)
    made.close()


def test_memory_of_a_detached_peer_stays_mapped_until_its_pulls_end(held: HeldConnector) -> None:
    held.attach("p", {})
    pool = cast("MappedPool", held.peers["p"])
    held.pull(Pull("p", [(1, 1)], 0))
    held.pull(Pull("p", [(2, 2)], 0))
    assert held.begun.acquire(timeout=DEADLINE)
    held.detach("p")
    assert pool.is_mapped and "p" not in held.peers
    held.finish_one()
    held.poll()
    assert pool.is_mapped, "the second pull has not ended"
    held.finish_one()
    assert len(held.poll()) == 1 and not pool.is_mapped and held.read == [True, True]


def test_memory_that_nobody_reads_is_closed_at_once(held: HeldConnector) -> None:
    held.attach("p", {})
    pool = cast("MappedPool", held.peers["p"])
    held.detach("p")
    assert not pool.is_mapped and not held.leaving


def test_a_cancel_that_comes_too_late_leaves_nothing(held: HeldConnector) -> None:
    held.attach("p", {})
    pull = Pull("p", [(1, 1)], 0)
    held.pull(pull)
    held.finish_one()
    for late in (*held.poll(), Pull("p", [(1, 1)], 0)):
        late.cancel()
    assert pull.end.error is None and not held.peers["p"].readers and not held.poll()


@pytest.mark.parametrize("rank", [0, 1], ids=["worker", "follower"])
def test_what_comes_for_a_detached_peer_counts_until_its_last_pull_ends(held: HeldConnector, rank: int) -> None:
    layout = replace(LAYOUT, rank=rank, ranks=1 + rank)
    connector = JointConnector(held, KVStorage(layout, 9, torch.device("cpu")))
    connector.attach("p", {})
    pulls = [Pull("p", [(1, 1)], 0), Pull("p", [(2, 2)], 0)]
    for pull in pulls:
        connector.pull(pull)
    seen = [pulls[1].received]
    connector.detach("p")
    for _ in range(2):
        seen.append(pulls[1].received)
        held.finish_one()
        seen.append(pulls[1].received)
        connector.poll()
    assert seen[0] == seen[1] < seen[2] <= seen[3] < seen[4]
    assert not connector.peers


class CountingDict(dict[int, JointPull]):
    """A dict that counts the entries that were looked at one after the other."""

    looked = 0

    def values(self) -> Any:
        self.looked += len(self)
        return super().values()

    def items(self) -> Any:
        self.looked += len(self)
        return super().items()


def test_asking_for_the_pulls_of_a_peer_looks_at_none_of_them() -> None:
    """Every transfer asks in every turn: 512 of them may be open."""
    storage = KVStorage(replace(LAYOUT, ranks=2), 9, torch.device("cpu"))
    connector = JointConnector(cast("Any", Mock()), storage, RankOrders(2))
    connector.ordered = counting = CountingDict()
    for number in range(4):
        connector.attach(f"p{number}", {})
    pulls = [Pull(f"p{number % 4}", [(1, 1)], 0) for number in range(512)]
    for pull in pulls:
        connector.pull(pull)
    peers = list(connector.peers.values())
    for number, pull in enumerate(pulls):
        assert pull.received == peers[number % 4].look() and set(peers[number % 4].waiting) == {f"p{number % 4}/0", 1}
    assert counting.looked == 0
    for ticket in range(1, 513):
        whole = counting[ticket]
        for part in (f"p{(ticket - 1) % 4}/0", 1, 1):
            connector.end(whole, part, PullResult(None, 0, 1, 0.0, [0]))
    connector.transport.poll.return_value = []  # type: ignore[attr-defined]
    assert not counting and not any(peer.waiting for peer in peers) and connector.poll() == pulls
