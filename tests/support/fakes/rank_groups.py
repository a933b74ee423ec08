# SPDX-License-Identifier: Apache-2.0
"""Two workers of several ranks each in one process: their pools, connectors and protocol, without engines. Plans and
reports go through the codec, when the test says so."""

import threading
import time
from collections.abc import Callable, Iterator

import torch
from pools import DEADLINE, KINDS
from recording_callbacks import GivingNotes, TakingNotes

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.disaggregation.joint_connector import JointConnector
from pontil.runtime.disaggregation.rank_follower import FollowerTransfers
from pontil.runtime.disaggregation.rank_orders import RankOrders
from pontil.runtime.disaggregation.rank_pools import RankPools
from pontil.runtime.disaggregation.receiver import KVReceiver, ReceiveTransfer
from pontil.runtime.disaggregation.sender import KVSender, PrefillResult, SendTransfer
from pontil.runtime.transfer.connector import ConnectorOptions, SliceConnector
from pontil.runtime.transfer.grants import Grants
from pontil.runtime.transfer.security import TransferSecurity
from pontil.runtime.transfer.tcp.connector import TcpConnector
from pontil.runtime.wire.codec import decode, encode
from pontil.runtime.wire.messages import ChunkReady, Handoff, RankDone, RankPlan

BLOCKS = 12
SECRET = "ab" * 32
Open = Callable[[int, KVStorage, Callable[[], None], Grants], SliceConnector]


def opened(kind: str) -> Open:
    """Return a function that opens a rank's connector of that kind; "guarded" is TCP with keys."""

    def open_connector(rank: int, storage: KVStorage, wake: Callable[[], None], grants: Grants) -> SliceConnector:
        if kind == "guarded":
            return TcpConnector(storage, wake, ConnectorOptions(guard=TransferSecurity(b"s" * 32, grants)))
        return KINDS[kind](storage, wake)

    return open_connector


class FakeRanks:
    """The ranks of one worker. Followers get plans by `exchange`; those of `stopped` ones wait."""

    def __init__(self, ranks: int, heads: int, open_connector: Open, packed: bool = False, planes: int = 2) -> None:
        self.wakeup = threading.Event()
        layouts = [KVLayout(16, 3, heads, 8, "bfloat16", packed, rank, ranks, planes) for rank in range(ranks)]
        self.storages = [KVStorage(layout, BLOCKS, torch.device("cpu")) for layout in layouts]
        self.grants = [Grants() for _ in layouts]
        self.transports = [
            open_connector(rank, storage, self.wakeup.set, self.grants[rank])
            for rank, storage in enumerate(self.storages)
        ]
        self.followers = {
            rank: FollowerTransfers(storage, JointConnector(self.transports[rank], storage), self.grants[rank])
            for rank, storage in enumerate(self.storages[1:], 1)
        }
        self.orders = RankOrders(ranks)
        self.pools = RankPools(self.storages[0], self.orders, self.grants[0])
        described = [follower.connector.register() for follower in self.followers.values()]
        self.connector = JointConnector(
            self.transports[0], self.storages[0], self.orders, described, lambda: self.now
        )  # fmt: skip
        self.now = 0.0
        self.stopped: set[int] = set()
        self.late: set[int] = set()
        self.queued: dict[int, list[RankPlan]] = {rank: [] for rank in self.followers}

    def plan(self) -> RankPlan:
        number, fields = self.orders.take()
        made = decode(encode(RankPlan("driver", "follower", number, **fields)))
        assert isinstance(made, RankPlan)
        return made

    def exchange(self) -> list[RankDone]:
        """Send one plan to all followers, and return their reports, as a driver would take them. Those of followers
        that are `late` are about the plans before."""
        plan, reports = self.plan(), list[RankDone]()
        for rank, follower in self.followers.items():
            self.queued[rank].append(plan)
            while len(self.queued[rank]) > (rank in self.late) and rank not in self.stopped:
                told = self.queued[rank].pop(0)
                follower.obey(told)
                reports.append(self.report(rank, told.number))
        return reports

    def report(self, rank: int, number: int) -> RankDone:
        told = self.followers[rank].report()
        made = decode(encode(RankDone("follower", "driver", rank, number, **told)))
        assert isinstance(made, RankDone)
        return made

    def close(self) -> None:
        for transport in self.transports:
            transport.close()

    def whole(self, blocks: list[int]) -> torch.Tensor:
        """Return the blocks with all heads of the model [block, layer, plane, head, slot, dim]."""
        heads = self.storages[0].layout.num_kv_heads
        first = {head: rank for rank, one in reversed(list(enumerate(self.storages))) for head in one.layout.kv_heads}
        return torch.stack(
            [self.storages[first[head]].tensor[blocks][:, :, :, head - self.storages[first[head]].layout.kv_heads.start]
             for head in range(heads)], dim=3,
        )  # fmt: skip

    def fill(self, seed: int) -> None:
        """Fill the pools with the same random heads however these are divided."""
        layout = self.storages[0].layout
        generator = torch.Generator().manual_seed(seed)
        shape = (BLOCKS, layout.num_layers, layout.planes, layout.num_kv_heads, layout.block_size, layout.row_cells)
        data = torch.randn(shape, generator=generator).to(torch.bfloat16)
        for storage in self.storages:
            held = storage.layout.kv_heads
            storage.tensor.copy_(data[:, :, :, held.start : held.stop])


class RankPair:
    """A KV sender over `giving` ranks and a KV receiver over `taking` ranks. Messages between them wait in
    `letting_go.announced`."""

    def __init__(
        self, giving: int, taking: int, heads: int = 4, kind: str = "shm", packed: bool = False,
        open_taking: Open | None = None, planes: int = 2,
    ) -> None:  # fmt: skip
        self.theirs = FakeRanks(giving, heads, opened(kind), packed, planes)
        self.ours = FakeRanks(taking, heads, open_taking or opened(kind), packed, planes)
        self.theirs.fill(1)
        self.ours.fill(2)
        self.letting_go, self.receiving = GivingNotes(), TakingNotes()
        self.kv_sender = KVSender(self.theirs.pools, "P", self.letting_go)
        self.kv_receiver = KVReceiver(self.ours.connector, self.ours.pools, self.receiving)
        self.ours.connector.attach("P", self.theirs.connector.register())
        self.secret = SECRET if kind == "guarded" else None

    def close(self) -> None:
        self.theirs.close()
        self.ours.close()

    def begin(self, name: str = "t", blocks: int = 3) -> tuple[SendTransfer, ReceiveTransfer]:
        ranks = self.ours.orders.ranks
        sent = self.kv_sender.begin(name, "D", 0.0, secret=self.secret, ranks=ranks)
        assert sent is not None
        return sent, self.kv_receiver.begin(name, "P", blocks, 0.0, secret=self.secret)

    def give(self) -> None:
        """Let the giving followers carry out what was ordered."""
        for done in self.theirs.exchange():
            self.theirs.pools.take(done)
        self.kv_sender.flush()

    def take(self, now: float = 0.0) -> None:
        self.ours.now = now
        for done in self.ours.exchange():
            self.ours.connector.take(done)
        self.kv_receiver.poll(now)

    def messages(self) -> Iterator[ChunkReady | Handoff]:
        told, self.letting_go.announced = self.letting_go.announced, []
        yield from told

    def hand_over(self, sent: SendTransfer, taken: ReceiveTransfer, theirs: list[int], ours: list[int]) -> None:
        """Announce the first block ahead and hand over all; let the receiver hear of it."""
        done = PrefillResult(16 * len(theirs), [7], 16 * len(theirs), 0, 0.5, [0])
        self.kv_sender.announce(sent, theirs[:1], 0.0)
        self.kv_sender.hold(sent, theirs, done, 0.0)
        self.give()
        for message in self.messages():
            first = message.first
            self.kv_receiver.announced(taken, message, ours[first : first + len(message.block_ids)], 0.0)

    def settle(self, now: float = 0.0) -> None:
        """Exchange plans and reports until no transfer is open here."""
        self.exchange_until(lambda: not self.kv_receiver.open, now)

    def exchange_until(self, condition: Callable[[], bool], now: float = 0.0) -> None:
        until = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < until, "a transfer did not end"
            self.take(now)
            self.ours.wakeup.wait(0.005)  # followers report at intervals, too
            self.ours.wakeup.clear()
