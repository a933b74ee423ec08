# SPDX-License-Identifier: Apache-2.0
"""Construction of a worker's engine from its configuration, up to a first test run."""

import logging
import time
from contextlib import ExitStack
from dataclasses import dataclass, field

from pontil.gpu_ops.kernels.kernel_set import AUTO
from pontil.gpu_ops.kernels.lent_cores import LentCores
from pontil.runtime.cache.block_recorder import BlockRecorder
from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.engine.device.runner_choice import make_runner, record_steps
from pontil.runtime.engine.drafts.step_drafts import StepDrafts
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.prompt_turns import StepBudget
from pontil.runtime.engine.runner.runner import Runner
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.engine.sequences.known_adapters import KnownAdapters
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.grammar.grammar import GrammarCompiler
from pontil.runtime.models.adapters import NO_ADAPTERS, ModelAdapters
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.models.layers.draft_layer import DraftLayer
from pontil.runtime.reporting import Reporter
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer
from pontil.runtime.worker.ranks.driver import Driver
from pontil.runtime.worker.ranks.rounds import ExpertRounds, Rounds, open_rounds
from pontil.runtime.worker.start.draft_loading import load_draft, make_drafter
from pontil.runtime.worker.start.loading import PartWeights, fit, load, memory_errors
from pontil.runtime.worker.start.packed_guard import PackedGuard
from pontil.runtime.worker.start.stage_model import StageModel, load_stage

logger = logging.getLogger("pontil.worker")

CPU_INTERLEAVED_TOKENS = 64


@dataclass(frozen=True, slots=True)
class WorkerResources:
    """Everything a worker computes with. `config` is the model's, with the context length this worker can hold. `dtype`
    is the model's, which the layout's may differ from. `kernels` names the kernels in use, since others may round
    differently. `driver` drives the other ranks. `lent_cores` is the table of cores that idle workers lend. `stage` has
    the parts beside the decoder in a model of several stages. `recorder` records the blocks of a pool that outlives
    this process, if it does. `guard` is for the files that have the weights. `rounds` are made with workers that share
    the model's experts. It knows these `adapters`; the `model_adapters` are those of its model."""

    config: ModelConfig
    fingerprint: str
    tokenizer: Tokenizer
    grammars: GrammarCompiler
    layout: KVLayout
    storage: KVStorage
    pool: BlockPool
    engine: Engine
    driver: Driver
    dtype: str
    kernels: str
    lent_cores: LentCores | None = None
    stage: StageModel | None = None
    recorder: BlockRecorder | None = None
    guard: PackedGuard = field(default_factory=PackedGuard)
    rounds: Rounds = field(default_factory=Rounds)
    adapters: KnownAdapters = field(default_factory=KnownAdapters)
    model_adapters: ModelAdapters = NO_ADAPTERS

    @property
    def scheduler(self) -> Scheduler:
        return self.engine.scheduler

    @property
    def kv_cache_dtype(self) -> str:
        """The type of the KV cache's cells; `auto` if that is the model's."""
        return AUTO if self.layout.dtype == self.dtype else self.layout.dtype


def assemble(config: WorkerConfig, report: Reporter) -> WorkerResources:
    """Load the model onto the worker's devices and run it once. Raises ModelError."""
    driver, shared = Driver(config, report), open_rounds(config, report)
    with ExitStack() as undo, memory_errors(config.device):
        undo.callback(driver.close)
        if shared is not None:
            undo.callback(shared.close)
        made = put_together(config, report, driver, shared)
        undo.pop_all()
        return made


def put_together(
    config: WorkerConfig, report: Reporter, driver: Driver, shared: ExpertRounds | None
) -> WorkerResources:
    rounds = shared or Rounds()
    loaded = load(config, report, driver.join if shared is None else shared.join)
    layout = loaded.layout
    draft = load_draft(config, loaded, report)
    model = loaded.model
    memory = config.weights_memory[1 + bool(config.speculative_model) :]
    parts = PartWeights(config, model.device, model.dtype, model.kernels, report, memory)
    stage = load_stage(config, model, parts.read)
    room = loaded.num_blocks if draft is None else draft.shared_blocks(config, loaded)
    if loaded.kept is not None and loaded.kept.num_blocks is not None:
        room = loaded.kept.num_blocks
    first_epoch = first_epoch_of(config)
    num_blocks = driver.agree(loaded.fingerprint, layout.fingerprint(), loaded.kernels, room, first_epoch)
    block_bytes = layout.block_bytes + (0 if draft is None else draft.bytes_beside(layout))
    rounds.agree((loaded.fingerprint, layout.fingerprint(), loaded.kernels), num_blocks, model.serve_experts)
    model_config = fit(loaded.config, config, layout, num_blocks, block_bytes)
    storage = loaded.open_storage(num_blocks, first_epoch)
    pool = BlockPool(num_blocks)
    report.progress("warming up")
    maker = None if stage is None else stage.maker
    runner = make_runner(config, loaded.model, storage, model_config.max_model_len, shared or driver, maker)
    # The followers do so at this point, too, before they say that they are ready.
    record_steps(runner)
    driver.wait_for_pools()
    recorder = None if loaded.kept is None else loaded.kept.recorder(storage, pool, followers=driver.orders)
    if recorder is not None and recorder.restored:
        logger.info("%d blocks of KV are left from the process before", recorder.restored)
    engine = equip(config, runner, storage, pool)
    warm_up(engine)
    rounds.settle()
    if draft is not None:
        # The steps above were slower than any later one, and no measure of the model.
        engine.scheduler.drafts.drafter = make_drafter(config, draft, loaded, num_blocks)
        runner.keeps_states = isinstance(draft.model, DraftLayer)
    tokenizer = load_tokenizer(config.model_path, config.cache_path, encodes=False)
    grammars = GrammarCompiler(tokenizer, model_config.vocab_size)
    return WorkerResources(
        model_config, loaded.fingerprint, tokenizer, grammars, layout, storage, pool, engine, driver, loaded.dtype,
        loaded.kernels, loaded.lent_cores, stage, recorder,
        PackedGuard(loaded.mapped, None if draft is None else draft.mapped, *parts.mapped), rounds,
        loaded.adapters, model.adapters,
    )  # fmt: skip


def equip(config: WorkerConfig, runner: Runner, storage: KVStorage, pool: BlockPool) -> Engine:
    """Return the engine that a worker has over a runner and its pool. No weights are needed."""
    scheduler = Scheduler(
        pool,
        storage.layout,
        config.step_size.seats,
        StepBudget(config.step_size.tokens, interleaved(config)),
        config.prefix_caching,
        drafts=StepDrafts(config.speculative_tokens),
    )
    return Engine(runner, scheduler)


def first_epoch_of(config: WorkerConfig) -> int:
    """Return the first epoch of the pools of all ranks. Where an earlier process may have used them, it is later than
    any of that one's: epochs grow by one a transfer, far slower than nanoseconds. No such file outlives the clock."""
    return 0 if config.kept_memory is None else time.monotonic_ns()


def interleaved(config: WorkerConfig) -> int | None:
    """Return the most prompt tokens in a step that also decodes. A CPU's time is proportional to the rows, so small
    chunks cost it little and keep the latency of other requests low; a GPU would be mostly idle with so few."""
    return config.max_interleaved_tokens or (CPU_INTERLEAVED_TOKENS if config.device == "cpu" else None)


def warm_up(engine: Engine) -> None:
    """Run one prompt and one decode step, since the first call of an operation sets it up. The prefix cache does not
    notice: blocks may be left in it from the process before."""
    params, prefix = SamplingParams(max_tokens=2, seed=0, temperature=0.0), engine.scheduler.prefix
    enabled, prefix.enabled = prefix.enabled, False
    engine.add(Sequence("warm-up", [0], params, frozenset()))
    while engine.has_work:
        engine.step()
    prefix.enabled = enabled
