# SPDX-License-Identifier: Apache-2.0
"""A worker in virtual time: the real one with its scheduler, pool, prefix cache and handoff, over a runner that only
lets pass the time that a step was measured to take."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import torch

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.engine.runner.runner import Launched
from pontil.runtime.engine.sampling.sampler import Sampled
from pontil.runtime.engine.sequences.batch import Batch, Span
from pontil.runtime.grammar.grammar import GrammarCompiler
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.planner.device_profile import DeviceProfile
from pontil.runtime.planner.planned_drafts import TOKEN, planned_drafter
from pontil.runtime.planner.planned_tiers import PlannedTierStore, TierBlocks
from pontil.runtime.planner.shared_cores import DECODE, PROMPT, CoreProcess, OwnCores
from pontil.runtime.planner.step_costs import StepCosts, StepWork
from pontil.runtime.reporting import NoReports
from pontil.runtime.threads import ThreadFailures
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.transfer.connector import ConnectorOptions
from pontil.runtime.transfer.security import TransferSecurity
from pontil.runtime.transfer.shm.connector import ShmConnector
from pontil.runtime.transfer.shm.copying_connector import CopyJob
from pontil.runtime.transfer.shm.peer_pool import PeerPool
from pontil.runtime.wire.simulated.processes import WorldProcess
from pontil.runtime.wire.simulated.virtual_time import VirtualWorld
from pontil.runtime.worker.generate.worker import Worker, make_worker
from pontil.runtime.worker.links.worker_sockets import WorkerSockets
from pontil.runtime.worker.ranks.driver import Driver
from pontil.runtime.worker.start.assembly import WorkerResources, equip

# The vocabulary of all prompts.
VOCABULARY = 40_000


def compute_alone() -> None:
    """Have torch compute by one thread: tensors of a plan are small, and a fork would wait for ever for others of this
    process."""
    torch.set_num_threads(1)


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """The things that all workers of a plan share: the profile with its costs, and a tokenizer of a few tokens. With
    `cores` they share as many of one machine, where proxy and, if it `has_clients`, these are too, and idle ones lend
    theirs to others if they `lend`. Each has tiers of so many blocks, and makes so many guesses at a time, of which the
    next one is right with this chance; the profile's draft model makes them if it `drafts`. A plan of several profiles
    has a model of each, which its `kind` names."""

    profile: DeviceProfile
    costs: StepCosts
    tokenizer: Tokenizer
    grammars: GrammarCompiler
    cores: int | None = None
    has_clients: bool = False
    lend: bool = False
    tier_blocks: TierBlocks = TierBlocks()
    guesses: int = 0
    accepted: float = 0.0
    drafts: bool = False
    kind: str = ""

    def blocks_of(self, role: str) -> int:
        """Return the blocks of a worker: one that decodes has as many of its draft model in the same memory."""
        sizes, draft = self.profile.sizes, self.profile.draft
        if not self.drafts_in(role):
            return sizes.blocks
        return sizes.blocks * sizes.block_bytes // (sizes.block_bytes + draft.block_bytes)

    def drafts_in(self, role: str) -> bool:
        return self.drafts and role != "prefill"


@dataclass(frozen=True, slots=True)
class PlannedPlace:
    """The place of a worker: its number among all, and the cores of which it has some."""

    number: int
    cores: OwnCores


class CostedRunner:
    """A Runner (runtime/engine/runner/runner.py) that computes nothing. `busy` are the seconds of its steps so far,
    `most_blocks` the most that sequences ever owned."""

    keeps_states, answers_are_found = False, True

    def __init__(self, process: CoreProcess, place: PlannedPlace, model: PlannedModel, pool: BlockPool) -> None:
        self.process, self.world, self.place = process, process.world, place
        self.model, self.pool = model, pool
        self.costs, self.host = model.costs, model.profile.host
        self.busy, self.most_blocks = 0.0, 0
        self.chance = self.world.random("guesses")
        times = model.profile.times
        self.variation = {DECODE: times.decode_variation, PROMPT: times.prompt_variation}
        self.luck = self.world.random(f"steps/{place.number}")

    def launch(self, batch: Batch) -> Launched:
        sampled = self.run(batch)
        return Launched(lambda: sampled)

    def run(self, batch: Batch) -> list[Sampled]:
        sampled = list[Sampled]()
        for span in batch.spans:
            if span.samples:
                for choice in span.sequence.choices:
                    sampled.append(self.sampled(span, choice))
        work = StepWork.of(batch.spans)
        beside = self.host.worker_row * len(sampled) + self.host.worker_token * work.tokens
        alone = self.costs.step(work) + beside / 1e3
        self.compute(PROMPT if work.tokens else DECODE, alone, self.costs.lent(work) if self.model.lend else 1.0)
        # As all but the available ones, without two calls.
        owned = len(self.pool.owners) + self.pool.credits
        if owned > self.most_blocks:
            self.most_blocks = owned
        return sampled

    def compute(self, kind: str, alone: float, lent: float = 1.0) -> None:
        """Let pass what takes so many seconds on cores of its own, and this part of them with lent ones too: in the
        mean, as steps of a kind vary. If they did not, streams that once end together would do so for ever."""
        if variation := self.variation[kind]:
            alone *= self.luck.lognormvariate(-variation * variation / 2, variation)
        seconds = self.place.cores.compute(self.process, self.place.number, kind, alone, lent)
        self.world.spend(seconds)
        self.busy += seconds

    def sampled(self, span: Span, choice: int) -> Sampled:
        if not span.drafts:
            return Sampled(span.sequence, choice, [TOKEN], 1, [], 0)
        guessed, right = len(span.drafts), 0
        while right < guessed and self.chance.random() < self.model.accepted:
            right += 1
        return Sampled(span.sequence, choice, [TOKEN] * (right + 1), right + 1, [], guessed)

    def beside(self, storage: KVStorage) -> "CostedRunner":
        return CostedRunner(self.process, self.place, self.model, self.pool)


class TimedConnector(ShmConnector):
    """The real shared-memory connector of one worker, whose pulls take the time that they were measured to take, one
    after the other."""

    def __init__(
        self, process: WorldProcess, model: PlannedModel, storage: KVStorage, wake: Callable[[], None],
        failures: ThreadFailures,
    ) -> None:  # fmt: skip
        super().__init__(storage, wake, ConnectorOptions(failures=failures))
        self.process, self.model = process, model
        self.free_at = 0.0

    def lost(self) -> list[str]:
        """Return the peers that died: all are in one process of the system, which goes on."""
        gone = [one for one in self.process.world.processes if one.ends is not None]
        return [peer for peer in self.peers if peer in incarnations_of(gone)] if gone else []

    def carry_out(self, job: CopyJob[PeerPool]) -> None:
        blocks = len(job.pull.pairs)
        seconds = self.model.costs.pull(blocks)
        begins = max(self.process.world.now(), self.free_at)
        self.free_at = begins + seconds

        def end() -> None:
            made = self.copy(job)
            size = 0 if made.error else blocks * self.model.profile.sizes.block_bytes
            self.finish(job.pull, replace(made, bytes=size, seconds=seconds), job.pool)

        self.process.job(self.free_at, end)


class PlannedWorker(CoreProcess):
    """The process of a worker."""

    def __init__(self, world: VirtualWorld, config: WorkerConfig, model: PlannedModel, place: PlannedPlace) -> None:
        super().__init__(world, config.name)
        with self.inside():
            self.loop = make_worker(
                config, self.resources(config, model, place), NoReports(), connect=self.connect(model)
            )
            # The memory of this machine is none of the plan.
            prefault = self.worker.idle_work.prefault
            assert prefault is not None
            prefault.possible = False
            if model.tier_blocks:
                tier = PlannedTierStore(self, self.worker, model.tier_blocks, model.costs, model.profile)
                self.worker.machine.scheduler.tier.use(tier)
            self.loop.begin()
        self.notify()

    @property
    def worker(self) -> Worker:
        assert isinstance(self.loop.workload, Worker)
        return self.loop.workload

    @property
    def role(self) -> str:
        return self.loop.sockets.config.role

    @property
    def runner(self) -> CostedRunner:
        runner = self.worker.machine.engine.runner
        assert isinstance(runner, CostedRunner)
        return runner

    @property
    def most_owned(self) -> float:
        """The most of its blocks that sequences ever owned at once."""
        return self.runner.most_blocks / self.worker.machine.pool.capacity

    def connect(
        self, model: PlannedModel
    ) -> Callable[[WorkerSockets, KVStorage, TransferSecurity | None], TimedConnector]:
        return lambda sockets, storage, _: TimedConnector(self, model, storage, sockets.poller.wake, sockets.failures)

    def resources(self, config: WorkerConfig, model: PlannedModel, place: PlannedPlace) -> WorkerResources:
        """Put a worker's engine together, as `runtime/worker/start/assembly.py` does around a model that it loaded. Its
        pool has as many blocks, with next to nothing in each."""
        about, sizes = model.profile.about, model.profile.sizes
        layout = KVLayout(sizes.block_tokens, 1, 1, 1, "float32")
        blocks, shape = model.blocks_of(config.role), config_of(sizes.max_model_len)
        storage, pool = KVStorage(layout, blocks, torch.device("cpu")), BlockPool(blocks)
        runner = CostedRunner(self, place, model, pool)
        engine = equip(config, runner, storage, pool)
        if model.drafts_in(config.role):
            spend, steps = partial(runner.compute, DECODE), map(model.costs.decode.at, range(1, model.guesses + 2))
            engine.scheduler.drafts.drafter = planned_drafter(
                model.profile.draft, model.accepted, tuple(steps), spend, BlockPool(blocks), layout, shape
            )
        return WorkerResources(
            shape, about.fingerprint, model.tokenizer, model.grammars, layout, storage, pool,
            engine, Driver(config, NoReports()), about.dtype, about.kernels,
        )  # fmt: skip

    def turn(self) -> float | None:
        self.loop.turn()
        self.ahead += self.runner.host.worker_turn / 1e3
        return self.world.time + self.ahead + self.loop.patience


def incarnations_of(processes: Iterable[WorldProcess]) -> set[str]:
    return {one.loop.sockets.incarnation for one in processes if isinstance(one, PlannedWorker)}


def config_of(max_model_len: int) -> ModelConfig:
    """Return the configuration of a model that nobody computes: its context and its vocabulary count."""
    return ModelConfig(
        "planned", VOCABULARY, 1, 1, 1, 1, 1, 1, max_model_len, 1e-6, 1e4, tie_word_embeddings=True, dtype="float32",
        eos_token_ids=(),
    )  # fmt: skip
