# SPDX-License-Identifier: Apache-2.0
"""A follower: a rank that computes and moves its part of what the driver plans, and decides nothing."""

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from pontil.runtime.cache.follower_records import FollowerRecords
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.disaggregation.joint_connector import JointConnector
from pontil.runtime.disaggregation.publisher import publisher_for
from pontil.runtime.disaggregation.rank_follower import FollowerTransfers
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.engine.tiles.plan_tables import PlanReader
from pontil.runtime.errors import TransferError
from pontil.runtime.reporting import Reporter
from pontil.runtime.transfer.connector import SliceConnector
from pontil.runtime.transfer.security import TransferSecurity
from pontil.runtime.wire.messages import (
    Message,
    RankDone,
    RankLoaded,
    RankPlan,
    RankPool,
    RankReady,
)
from pontil.runtime.worker.adapters.adapter_parts import FollowedAdapters
from pontil.runtime.worker.adapters.adapter_reader import AdapterReader
from pontil.runtime.worker.links.connectors import open_connector
from pontil.runtime.worker.links.proxy_link import Failure, HeartbeatLoad, ProxyLink
from pontil.runtime.worker.links.proxy_links import ProxyLinks
from pontil.runtime.worker.links.worker_sockets import LINGER, WorkerSockets
from pontil.runtime.worker.process.idle_work import IdleWork
from pontil.runtime.worker.process.loop import CONGESTION_PAUSE, WorkerLoop
from pontil.runtime.worker.process.workload import Outlook, Workload
from pontil.runtime.worker.ranks.rank_client import LOOK, RankClient
from pontil.runtime.worker.start.follower_tiles import open_tiles
from pontil.runtime.worker.start.loading import ModelPart, load, memory_errors
from pontil.runtime.worker.start.packed_guard import PackedGuard
from pontil.runtime.worker.start.prefault import Prefault


class FollowedTiles(Protocol):
    """Computes the driver's tiles in a follower's part of the KV memory."""

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (from, to) each, before the next tile."""

    def follow(self, plan: TilePlan) -> None:
        """Compute a tile together with the other ranks."""

    def take_accepted(self, counts: Sequence[int]) -> None:
        """Take the first so many positions of each span of the last tile that verified guesses into the states."""


class DriverLink(RankClient):
    """A follower's connection to its driver."""

    def __init__(self, sockets: WorkerSockets) -> None:
        config, self.sockets = sockets.config, sockets
        place = config.rank, config.ranks
        super().__init__(sockets.context, sockets.poller, sockets.incarnation, config, place)
        # Answers that the socket has not taken yet, in their order.
        self.unsent: deque[RankDone] = deque()
        sockets.closing.callback(self.socket.close, LINGER)
        sockets.closing.callback(self.leave)

    def plans(self) -> list[RankPlan]:
        """Return the plans that have arrived."""
        return [one for one in self.receive() if isinstance(one, RankPlan) and one.sender == self.driver]

    def answer(self, number: int, news: dict[str, Any]) -> None:
        """Report that this plan and those before it were followed, and what has ended of pulls."""
        self.unsent.append(RankDone(self.sockets.incarnation, self.driver, self.rank, number, **news))
        self.flush()

    def flush(self) -> None:
        """Send the answers that wait. A driver in a long computation reads none, and its queue may be full: what one
        says of a pull is said once (B12)."""
        while self.unsent and self.socket.send(self.unsent[0]):
            self.unsent.popleft()


class Follower(Workload):
    """The plans of one rank other than 0. Those that have `arrived` are followed in the next step; `done` is the number
    of the last one."""

    def __init__(
        self,
        link: DriverLink,
        tiles: FollowedTiles,
        transfers: FollowerTransfers,
        adapters: FollowedAdapters,
        prefault: Prefault,
    ) -> None:
        super().__init__(link.sockets, ProxyLinks(()), IdleWork(prefault=prefault), {"rank": link.rank})
        self.driver, self.tiles, self.transfers, self.reader = link, tiles, transfers, PlanReader()
        self.adapters, self.prefault = adapters, prefault
        self.arrived: list[RankPlan] = []
        self.done = 0
        self.is_over = False

    def take(self, message: Message, now: float) -> bool:
        raise AssertionError("a follower has no proxy")

    def poll(self, now: float) -> None:
        self.driver.flush()
        self.arrived += self.driver.plans()
        if not self.arrived and (news := self.news()):
            self.driver.answer(self.done, news)

    def step(self, now: float) -> None:
        """Follow the plans that have arrived, and report what has ended."""
        plans, self.arrived = self.arrived, []
        for plan in plans:
            self.follow(plan)
        self.driver.answer(self.done, self.news())

    def news(self) -> dict[str, Any]:
        """Return the fields of an answer that have news."""
        return self.transfers.report() | self.adapters.report()

    def follow(self, plan: RankPlan) -> None:
        """Carry out one plan. Plans come in order, each once: the socket's queue keeps them so, or breaks."""
        if plan.number != self.done + 1:
            raise TransferError(f"plan {plan.number} came after plan {self.done}: this worker's ranks have parted")
        if plan.accepted:
            self.tiles.take_accepted(plan.accepted)
        self.transfers.obey(plan)
        self.tiles.copy([(source, target) for source, target in plan.copies])
        self.adapters.obey(plan.adapters)
        for fields in plan.tiles:
            self.tiles.follow(self.reader.read(fields))
            self.prefault.hear(self.reader.highest)
        self.done, self.is_over = plan.number, plan.stop

    def drop(self, failure: Failure | None, proxy: str | None, now: float) -> int:
        return 0

    def outlook(self) -> Outlook:
        has_work = bool(self.arrived)
        pause = CONGESTION_PAUSE if self.driver.unsent else LOOK
        return Outlook(has_work, True, 0.0 if has_work else pause, self.is_over)

    def load(self, link: ProxyLink) -> HeartbeatLoad:
        raise AssertionError("a follower has no proxy")


class FollowerStart:
    """The start of a follower, which loads its part of the model together with the driver."""

    def __init__(self, config: WorkerConfig, report: Reporter) -> None:
        self.config, self.report = config, report
        self.sockets = WorkerSockets(config)
        self.driver = DriverLink(self.sockets)

    def loop(self) -> WorkerLoop:
        """Load, say so, and return the loop that follows plans until the driver or the supervisor ends it. Raises
        PontilError for what a user can correct."""
        with self.sockets.opening():
            return WorkerLoop(self.ready(), self.report)

    def ready(self) -> Follower:
        link, incarnation, rank = self.driver, self.sockets.incarnation, self.config.rank
        with memory_errors(self.config.device):
            loaded = self.load_part()
            PackedGuard(loaded.mapped).begin(self.sockets.closing, self.sockets.failures)
            link.socket.send(
                RankLoaded(
                    incarnation,
                    link.driver,
                    rank,
                    loaded.fingerprint,
                    loaded.layout.fingerprint(),
                    loaded.kernels,
                    loaded.num_blocks,
                )
            )
            told = link.wait_for(RankPool)
            storage = loaded.open_storage(told.num_blocks, told.first_epoch)
            tiles = self.open_tiles(loaded, storage)
        records = None if loaded.kept is None else loaded.kept.follower_records(storage)
        transfers = self.open_transfers(storage, records)
        left, described = b"" if records is None else records.told(), transfers.connector.register()
        prefault = Prefault(storage, BlockPool(storage.num_blocks), self.config.kv_cache_ahead_memory)
        follower = Follower(link, tiles, transfers, self.open_adapters(loaded), prefault)
        link.socket.send(RankReady(incarnation, link.driver, rank, described, left))
        return follower

    def load_part(self) -> ModelPart:
        return load(self.config, self.report, self.driver.join)

    def open_tiles(self, loaded: ModelPart, storage: KVStorage) -> FollowedTiles:
        return open_tiles(self.config, loaded, storage)

    def open_connector(self, storage: KVStorage, guard: TransferSecurity | None) -> SliceConnector:
        return open_connector(self.sockets, storage, guard)

    def open_transfers(self, storage: KVStorage, records: FollowerRecords | None) -> FollowerTransfers:
        guard = self.sockets.guard()
        own = JointConnector(self.open_connector(storage, guard), storage)
        publisher = publisher_for(storage, self.sockets.poller.wake, self.sockets.failures)
        made = FollowerTransfers(storage, own, None if guard is None else guard.grants, publisher, records)
        self.sockets.closing.callback(made.close)
        return made

    def open_adapters(self, loaded: ModelPart) -> FollowedAdapters:
        model = loaded.model.adapters
        made = FollowedAdapters(model, AdapterReader(model, self.sockets.poller.wake, self.sockets.failures))
        self.sockets.closing.callback(made.close)
        return made
