# SPDX-License-Identifier: Apache-2.0
"""A follower: a rank that computes and moves its part of what the driver plans, and decides nothing."""

import logging
import os
import secrets
import time
from types import FrameType
from typing import Protocol, TypeVar

import torch

from pontil.gpu_ops.collectives.communicator import Communicator
from pontil.gpu_ops.collectives.factory import open_communicator
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.runtime.cache.follower_records import FollowerRecords
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.disaggregation.joint_connector import JointConnector
from pontil.runtime.disaggregation.publisher import publisher_for
from pontil.runtime.disaggregation.rank_follower import FollowerTransfers
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.engine.tiles.plan_tables import PlanReader
from pontil.runtime.engine.tiles.runner import TileRunner
from pontil.runtime.errors import RankLost, TransferError
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.reporting import Reporter
from pontil.runtime.threads import ThreadFailures
from pontil.runtime.transfer.connector import SliceConnector
from pontil.runtime.transfer.security import TransferSecurity
from pontil.runtime.wire.links.keys import Keys
from pontil.runtime.wire.links.sockets import PeerClient, Poller, open_context
from pontil.runtime.wire.messages import (
    RankDone,
    RankHello,
    RankLoaded,
    RankPlan,
    RankPool,
    RankReady,
    RankWelcome,
)
from pontil.runtime.worker.links.connectors import open_connector
from pontil.runtime.worker.process.step_reporter import StepReporter
from pontil.runtime.worker.start.loading import ModelPart, load, memory_errors
from pontil.runtime.worker.start.prefault import Prefault

logger = logging.getLogger("pontil.worker")

# Seconds between two looks at transfers while nothing arrives, and at whether the process is to stop.
LOOK = 1.0
# Seconds that the driver may take to answer while the worker starts.
START_WITHIN = 1800.0

M = TypeVar("M", RankWelcome, RankPool)


class FollowedTiles(Protocol):
    """Computes the driver's tiles in a follower's part of the KV memory."""

    storage: KVStorage

    def follow(self, plan: TilePlan) -> None:
        """Compute a tile together with the other ranks."""


class Follower:
    """One rank other than 0, from its start to its end. Raises PontilError for what a user can correct."""

    def __init__(self, config: WorkerConfig, report: Reporter) -> None:
        assert config.rank_endpoint is not None
        self.config, self.report = config, report
        self.incarnation = secrets.token_hex(8)
        self.stopping = False
        self.driver = ""
        self.done, self.plans = 0, PlanReader()
        self.steps = StepReporter(report)
        self.failures = ThreadFailures()
        self.context = open_context()
        self.poller = Poller()
        self.socket = PeerClient(self.context, self.incarnation, config.rank_endpoint)
        self.poller.register(self.socket)
        self.communicator: Communicator | None = None
        self.transfers: FollowerTransfers | None = None

    def stop(self, number: int = 0, frame: FrameType | None = None) -> None:
        """Stop before the next turn. A signal may also come when the process is ending already."""
        if not self.stopping:
            self.stopping = True
            self.poller.wake()

    def run(self) -> None:
        """Load, say so, and follow plans until the driver or the supervisor ends it."""
        with memory_errors(self.config.device):
            loaded = self.load_part()
            layout = loaded.layout
            self.socket.send(
                RankLoaded(
                    self.incarnation,
                    self.driver,
                    self.config.rank,
                    loaded.fingerprint,
                    layout.fingerprint(),
                    loaded.kernels,
                    loaded.num_blocks,
                )  # fmt: skip
            )
            told = self.wait_for(RankPool)
            storage = loaded.open_storage(told.num_blocks, told.first_epoch)
        tiles = self.open_tiles(loaded, storage)
        records = None if loaded.kept is None else loaded.kept.follower_records(storage)
        transfers = self.transfers = self.open_transfers(storage, records)
        prefault = Prefault(storage, BlockPool(storage.num_blocks))
        left, described = b"" if records is None else records.told(), transfers.connector.register()
        self.socket.send(RankReady(self.incarnation, self.driver, self.config.rank, described, left))
        self.report.ready(device=self.config.device, rank=self.config.rank)
        while not self.stopping:
            self.turn(tiles, transfers, prefault)

    def load_part(self) -> ModelPart:
        return load(self.config, self.report, self.join)

    def open_tiles(self, loaded: ModelPart, storage: KVStorage) -> FollowedTiles:
        return TileRunner(loaded.model, storage)

    def open_connector(self, storage: KVStorage, guard: TransferSecurity | None) -> SliceConnector:
        return open_connector(self.config, storage, self.poller.wake, guard, self.failures)

    def join(self, model: ModelConfig, kernels: KernelLibrary | None, device: torch.device) -> Communicator:
        self.socket.send(RankHello(self.incarnation, "", self.config.rank, self.config.ranks, os.getpid()))
        welcome = self.wait_for(RankWelcome)
        self.driver = welcome.sender
        self.communicator = open_communicator(kernels, device, welcome.communicator, self.config.rank)
        return self.communicator

    def wait_for(self, kind: type[M]) -> M:
        """Wait for the driver's next message, which is of this kind."""
        deadline = time.monotonic() + START_WITHIN
        while not self.stopping and time.monotonic() < deadline:
            self.poller.wait(LOOK)
            for message in self.socket.receive_all():
                if isinstance(message, kind):
                    return message
        raise RankLost("rank 0 of this worker did not start")

    def open_transfers(self, storage: KVStorage, records: FollowerRecords | None) -> FollowerTransfers:
        keys = None if self.config.keys is None else Keys.of(self.config.keys)
        guard = None if keys is None else TransferSecurity(keys.transfer)
        own = self.open_connector(storage, guard)
        grants = None if guard is None else guard.grants
        publisher = publisher_for(storage, self.poller.wake, self.failures)
        return FollowerTransfers(storage, JointConnector(own, storage), grants, publisher, records)

    def turn(self, tiles: FollowedTiles, transfers: FollowerTransfers, prefault: Prefault) -> None:
        """Follow the plans that have arrived, and report what has ended."""
        self.poller.wait(0.0 if prefault.is_due else LOOK)
        plans = [one for one in self.socket.receive_all() if isinstance(one, RankPlan) and one.sender == self.driver]
        for plan in plans:
            self.follow(plan, tiles, transfers)
        news = transfers.report()
        if plans or news:
            self.socket.send(RankDone(self.incarnation, self.driver, self.config.rank, self.done, **news))
        elif prefault.is_due:
            prefault.advance()

    def follow(self, plan: RankPlan, tiles: FollowedTiles, transfers: FollowerTransfers) -> None:
        """Carry out one plan. Plans come in order, each once: the socket's queue keeps them so, or breaks."""
        if plan.number != self.done + 1:
            raise TransferError(f"plan {plan.number} came after plan {self.done}: this worker's ranks have parted")
        self.steps.begin()
        transfers.obey(plan)
        tiles.storage.copy([(source, target) for source, target in plan.copies])
        for fields in plan.tiles:
            tiles.follow(self.plans.read(fields))
        self.done = plan.number
        self.steps.end(has_work=False)
        if plan.stop:
            self.stopping = True

    def close(self) -> None:
        self.stopping = True
        if self.transfers is not None:
            self.transfers.close()
        if self.communicator is not None:
            self.communicator.close()
        self.socket.close(linger=0.5)
        self.poller.close()
        self.context.term()
