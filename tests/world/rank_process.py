# SPDX-License-Identifier: Apache-2.0
"""The processes of a worker of several ranks: the real driver with its worker, and real followers. Each runs as
`runtime/worker/entry.py` has it, and waits where that does."""

import signal
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol, cast

import torch
from copying import EventConnector
from engine_process import EngineProcess, TinyModel
from fibres import FibreProcess
from ghost_blocks import FollowerGuards, GhostPool, GhostRecords
from hash_adapters import HashAdapters
from hash_model import layout_of
from hash_ranks import DividedRunner, HashTiles, RoundsRunner, exchange_rows
from rank_meetings import MeetingCommunicator
from virtual_time import SeededWorld
from worker_process import step_seconds

from pontil.gpu_ops.collectives.communicator import CollectiveError, SingleRank
from pontil.launcher.host.device_list import JOIN
from pontil.launcher.roles import EXIT_CODES
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.errors import PontilError, RankLost
from pontil.runtime.reporting import Reporter
from pontil.runtime.transfer.connector import SliceConnector
from pontil.runtime.transfer.security import TransferSecurity
from pontil.runtime.wire.simulated.processes import FAILED
from pontil.runtime.worker.adapters.adapter_reader import put_adapters
from pontil.runtime.worker.follower import FollowedTiles, Follower, FollowerStart
from pontil.runtime.worker.process.loop import WorkerLoop
from pontil.runtime.worker.ranks.driver import Driver
from pontil.runtime.worker.ranks.rounds import open_rounds
from pontil.runtime.worker.start.assembly import WorkerResources, equip, warm_up
from pontil.runtime.worker.start.loading import ModelPart

CPU = torch.device("cpu")


class RankMember(Protocol):
    """A driver's worker, or a follower."""

    def run(self) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


class RankProcess(FibreProcess):
    """A rank from its start to its end. SIGTERM has its `member` stop, as in the product; one that loads dies."""

    member: RankMember | None = None

    def live(self, report: Reporter, make: Callable[[], RankMember]) -> None:
        """Make the member and have it run, and exit as `launcher/roles.py` does."""

        def lived() -> None:
            code = self.exit_code(report, make)
            self.acts(self.world.now(), lambda: self.kill(code))

        self.begin_fibre(lived)

    def exit_code(self, report: Reporter, make: Callable[[], RankMember]) -> int:
        try:
            try:
                self.member = make()
                with closing(self.member):
                    self.member.run()
            except CollectiveError as error:
                raise RankLost(f"{self.name} lost a rank: {error}") from error
        except PontilError as error:
            self.world.note("exit", self, error)
            report.failed(str(error))
            return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), FAILED)
        return 0

    def signal(self, number: signal.Signals) -> None:
        if number != signal.SIGTERM or self.member is None:
            self.kill(-number)
        else:
            self.member.stop()


class DriverProcess(RankProcess, EngineProcess):
    """The process of rank 0, or of any data-parallel one."""

    def begin(self, config: WorkerConfig, model: TinyModel, blocks: int, report: Reporter, commands: int) -> None:
        def made() -> WorkerLoop:
            if config.shares_experts:
                return self.make(config, shared_resources(config, model, blocks, report), report, commands)
            machine = divided_resources(config, model, blocks, report)
            loop = self.make(config, machine, report, commands)
            self.ghosts.guards[machine.storage.identity.hex()] = guards_of(machine.driver.communicator)
            return loop

        self.live(report, made)


def guards_of(communicator: object) -> FollowerGuards:
    assert isinstance(communicator, MeetingCommunicator), "the ranks of the world meet in it"
    return communicator.meetings.guards


def divided_resources(config: WorkerConfig, model: TinyModel, blocks: int, report: Reporter) -> WorkerResources:
    """Put a driver's engine together, as `runtime/worker/start/assembly.py` does."""
    driver = Driver(config, report)
    communicator = driver.join(model.config, None, CPU)
    held = HashAdapters(model.config)
    known = put_adapters(held, config, communicator)
    layout = layout_of(config.block_size, model.kv_heads, 0, config.ranks)
    blocks = driver.agree("hash", layout.fingerprint(), "hash", blocks)
    storage = KVStorage(layout, blocks, CPU)
    driver.wait_for_pools()
    pool = GhostPool(blocks, storage.epochs.numpy())
    runner = DividedRunner(storage, model.config.vocab_size, step_seconds, driver, communicator)
    runner.adapters = held
    engine = equip(config, runner, storage, pool)
    warm_up(engine)
    return WorkerResources(
        model.config, "hash", model.tokenizer, model.grammars, layout, storage, pool, engine, driver, "float32", "hash",
        adapters=known, model_adapters=held,
    )  # fmt: skip


def shared_resources(config: WorkerConfig, model: TinyModel, blocks: int, report: Reporter) -> WorkerResources:
    """Put the engine of a data-parallel rank together, as `runtime/worker/start/assembly.py` does."""
    rounds = open_rounds(config, report)
    assert rounds is not None
    communicator = rounds.join(model.config, None, CPU)
    held = HashAdapters(model.config)
    known = put_adapters(held, config, SingleRank())
    layout = layout_of(config.block_size, model.kv_heads)
    rounds.agree(("hash", layout.fingerprint(), "hash"), blocks, lambda: exchange_rows(communicator))
    storage = KVStorage(layout, blocks, CPU)
    pool = GhostPool(blocks, storage.epochs.numpy())
    runner = RoundsRunner(storage, model.config.vocab_size, step_seconds, rounds, communicator)
    runner.adapters = held
    engine = equip(config, runner, storage, pool)
    warm_up(engine)
    rounds.settle()
    return WorkerResources(
        model.config, "hash", model.tokenizer, model.grammars, layout, storage, pool, engine, Driver(config, report),
        "float32", "hash", rounds=rounds, adapters=known, model_adapters=held,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class FollowerMachine:
    """A follower's process and what it computes with."""

    process: "FollowerProcess"
    ghosts: GhostRecords
    model: TinyModel
    blocks: int


class HashFollowerStart(FollowerStart):
    """The start of a real follower; only its part of the model is another."""

    def __init__(self, config: WorkerConfig, report: Reporter, machine: FollowerMachine) -> None:
        super().__init__(config, report)
        self.machine = machine

    def load_part(self) -> ModelPart:
        machine, config = self.machine, self.config
        self.communicator = self.driver.join(machine.model.config, None, CPU)
        layout = layout_of(config.block_size, machine.model.kv_heads, config.rank, config.ranks)
        adapters = HashAdapters(machine.model.config)
        put_adapters(adapters, config, self.communicator)
        held = cast(Any, SimpleNamespace(device=CPU, adapters=adapters))
        return ModelPart(machine.model.config, "hash", held, layout, machine.blocks, "float32", "hash", None)

    def open_tiles(self, loaded: ModelPart, storage: KVStorage) -> FollowedTiles:
        check = partial(guards_of(self.communicator).check_begin, self.machine.process, storage)
        return HashTiles(storage, step_seconds, self.communicator, check, loaded.model.adapters)

    def open_connector(self, storage: KVStorage, guard: TransferSecurity | None) -> SliceConnector:
        process = self.machine.process
        self.machine.ghosts.add(storage, None, process)
        made = process.copier = EventConnector(storage, self.sockets.poller.wake, self.sockets.failures, guard)
        return made


class FollowerProcess(RankProcess):
    """The process of another rank."""

    def __init__(self, world: SeededWorld, name: str, ghosts: GhostRecords) -> None:
        super().__init__(world, name)
        self.ghosts = ghosts
        self.follower: Follower | None = None
        self.copier: EventConnector | None = None
        self.rank = int(name.partition(JOIN)[2])

    @property
    def storage(self) -> KVStorage | None:
        return None if self.copier is None else self.copier.storage

    @property
    def connectors(self) -> list[EventConnector]:
        """The thread that carries out its pulls, once it has one."""
        return [] if self.copier is None else [self.copier]

    def begin(self, config: WorkerConfig, model: TinyModel, blocks: int, report: Reporter) -> None:
        def made() -> WorkerLoop:
            loop = HashFollowerStart(config, report, FollowerMachine(self, self.ghosts, model, blocks)).loop()
            assert isinstance(loop.workload, Follower)
            self.follower = loop.workload
            return loop

        self.live(report, made)
