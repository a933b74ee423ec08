# SPDX-License-Identifier: Apache-2.0
"""A worker's process: the real worker with its scheduler, pool, prefix cache and handoff, over a model that hashes."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from copying import EventConnector
from ghost_blocks import GhostPool, GhostRecords
from hash_adapters import HashAdapters
from hash_model import NEXT_SALT, HashRunner, StepCost, layout_of, salt_of_model
from hash_stages import SPEECH_IDS, parts_of
from kept_memory import TornRunner, recording_clock, take_over
from stream_memory import connectors_of, left_in
from virtual_time import HERE, SeededWorld
from worker_process import WorkerProcess

from pontil.gpu_ops.collectives.communicator import SingleRank
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.command_pipe import CommandPipe
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.grammar.grammar import GrammarCompiler
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.reporting import Reporter
from pontil.runtime.stages.worker.stage_side import StageSide
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.transfer.security import TransferSecurity
from pontil.runtime.worker.adapters.adapter_reader import put_adapters
from pontil.runtime.worker.generate.worker import Worker, make_worker
from pontil.runtime.worker.links.worker_sockets import WorkerSockets
from pontil.runtime.worker.process.loop import WorkerLoop
from pontil.runtime.worker.ranks.driver import Driver
from pontil.runtime.worker.start import kv_tiers
from pontil.runtime.worker.start.assembly import WorkerResources, equip, first_epoch_of

# Seconds to read a block from a tier.
TIER_BLOCK = 0.1e-3


@dataclass(frozen=True, slots=True)
class TinyModel:
    """The model that every worker of a world shares with its predecessors: read once, before the first seed. Its KV has
    so many heads, and its `folder` its adapters."""

    config: ModelConfig
    tokenizer: Tokenizer
    grammars: GrammarCompiler
    folder: Path
    kv_heads: int = 1


def event_connector(sockets: WorkerSockets, storage: KVStorage, guard: TransferSecurity | None) -> EventConnector:
    """Stands for `open_transport`: only pulls take another time."""
    return EventConnector(storage, sockets.poller.wake, sockets.failures, guard)


class EngineProcess(WorkerProcess):
    """The process of a worker that generates."""

    worker: Worker | None = None

    def __init__(self, world: SeededWorld, name: str, ghosts: GhostRecords) -> None:
        super().__init__(world, name)
        self.ghosts = ghosts

    def begin(self, config: WorkerConfig, model: TinyModel, blocks: int, report: Reporter, commands: int) -> None:
        """Make the worker, as `runtime/worker/entry.py` does, and take the first turn."""
        self.report = report
        with self.inside():
            self.make(config, resources(config, model, blocks, report, self.cost), report, commands).begin()
        self.notify()

    def make(self, config: WorkerConfig, machine: WorkerResources, report: Reporter, commands: int) -> WorkerLoop:
        pipe = CommandPipe(commands, logging.getLogger("pontil.worker"))
        loop = self.loop = make_worker(config, machine, report, pipe, event_connector)
        worker, pool = loop.workload, machine.pool
        assert isinstance(worker, Worker) and isinstance(pool, GhostPool)
        self.worker = worker
        self.ghosts.add(machine.storage, pool, self)
        self.ghosts.watch_sender(machine.storage, pool, worker.prefill.kv_sender)
        self.ghosts.watch_receiver(worker.decode.kv_receiver)
        if isinstance(worker.stage, StageSide):
            self.ghosts.add(worker.stage.ports.memory.storage, None, self)
        # The memory that the machine has left is none of the seed.
        assert worker.idle_work.prefault is not None
        worker.idle_work.prefault.possible = False
        return loop

    @property
    def connectors(self) -> list[EventConnector]:
        worker = self.worker
        transport = None if worker is None else worker.transfers.transport
        if worker is None or not isinstance(transport, EventConnector):
            return []
        return [transport, *(connectors_of(worker.stage.ports) if isinstance(worker.stage, StageSide) else [])]

    @property
    def left(self) -> dict[str, int]:
        worker = self.worker
        assert worker is not None
        pool = worker.machine.pool
        pool.check()
        return {
            "requests": len(worker.requests),
            "sequences": len(worker.machine.engine.sequences),
            "leases": len(worker.prefill.kv_sender.open),
            "pulls": len(worker.decode.kv_receiver.open),
            "draining": len(worker.decode.draining),
            "blocks": pool.capacity - pool.available - len(worker.leases.book.pins.owned),
            **(left_in(worker.stage.ports) if isinstance(worker.stage, StageSide) else {}),
        }

    @property
    def has_requests(self) -> bool:
        return self.worker is not None and bool(self.worker.requests)


def measure_tiers_at_once() -> None:
    """Have all workers be of one version without reading its files, and know how long a block of a tier takes: in a
    turn nothing is to be measured."""
    untyped: Any = kv_tiers
    untyped.code_identity = lambda: "code"
    untyped.seconds_of_block = lambda tier, storage: TIER_BLOCK
    untyped.seconds_of_turn = lambda store: TIER_BLOCK


def resources(
    config: WorkerConfig, model: TinyModel, blocks: int, report: Reporter, cost: StepCost
) -> WorkerResources:  # fmt: skip
    """Put a worker's engine together, as `runtime/worker/start/assembly.py` does around a model that it loaded."""
    layout = layout_of(config.block_size, model.kv_heads)
    runs: type[HashRunner] = HashRunner
    device, kept, recorder = torch.device("cpu"), None, None
    if config.kept_memory is None:
        storage = KVStorage(layout, blocks, device)
    else:
        kept, runs = take_over(config.kept_memory), TornRunner
        storage = kept.open(layout, blocks, device, first_epoch_of(config))
    pool = GhostPool(blocks, storage.epochs.numpy())
    if kept is not None:
        recorder = kept.recorder(storage, pool, recording_clock)
        HERE.world.note("restored", recorder.restored)
    parts = parts_of(config.graph, config.node)
    talker = parts.talker
    vocab, maker = (model.config.vocab_size, None) if talker is None else (SPEECH_IDS, talker.maker)
    runner = runs(storage, vocab, cost, maker)
    if config.revision is not None:
        runner.salt = NEXT_SALT
    if config.further_model is not None:
        runner.salt = salt_of_model(config.further_model)
    runner.is_wrong = HERE.world.current in HERE.world.wrong
    held = runner.adapters = HashAdapters(model.config)
    engine = equip(config, runner, storage, pool)
    fingerprint = f"hash{config.revision or config.further_model or ''}"
    return WorkerResources(
        model.config, fingerprint, model.tokenizer, model.grammars, layout, storage, pool, engine,
        Driver(config, report), "float32", "hash", stage=parts if config.node else None, recorder=recorder,
        adapters=put_adapters(held, config, SingleRank()), model_adapters=held,
    )  # fmt: skip
