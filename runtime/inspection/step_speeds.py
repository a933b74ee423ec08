# SPDX-License-Identifier: Apache-2.0
"""The speed of a model on some cores of this machine, from steps of its first layers with the kernels and the engine
that workers use."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch

from pontil.gpu_ops.kernels.compile.build import KernelError
from pontil.gpu_ops.kernels.kernel_set import AUTO, open_kernels
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.runtime.cache.layout import layout_for
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import TORCH_DTYPES, KVStorage
from pontil.runtime.config.worker_config import CPU_STEP
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.prompt_turns import StepBudget
from pontil.runtime.engine.runner.model_runner import ModelRunner
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.engine.sequences.sequence import FinishReason
from pontil.runtime.engine.sequences.sequence import Sequence as EngineSequence
from pontil.runtime.errors import ModelError
from pontil.runtime.inspection.capacity import Capacity
from pontil.runtime.inspection.first_layers import measured_layers, shortened_to
from pontil.runtime.loaders.checkpoint import Checkpoint
from pontil.runtime.loaders.gguf.file import GgufCheckpoint
from pontil.runtime.models.families.registry import build_model
from pontil.runtime.models.weights import Packing, Weights
from pontil.runtime.probe.host_memory import gibibytes, host_room
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.worker.start.assembly import warm_up

# Tokens of the prompt that is computed, and steps of one row behind it.
PROMPT, STEPS, PROMPT_NAME = 512, 16, "prompt"
BLOCK = 16
# The part of the memory that is left which the layers may take.
SHARE = 4


@dataclass(frozen=True, slots=True)
class StepSpeeds:
    """Seconds of a `step` of one row, and of each token of a `prompt`, of a whole model, by steps of so many `layers`
    of it with so many `cores`."""

    step: float
    prompt: float
    layers: int
    cores: int
    kernels: str


@contextmanager
def kernels_on(cores: Sequence[int], cache: Path, wanted: bool) -> Iterator[KernelLibrary | None]:
    """Open the kernels with a thread for each of the cores, where this thread stays meanwhile; None for torch's
    operations."""
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    try:
        os.sched_setaffinity(0, set(cores) & before or before)
        try:
            library = open_kernels(AUTO, len(cores), cache) if wanted else None
        except KernelError:
            library = None
        torch.set_num_threads(1 if library else len(cores))
        yield library
        if library is not None:
            library.close()
    finally:
        torch.set_num_threads(threads)
        os.sched_setaffinity(0, before)


def measure_speeds(
    checkpoint: Checkpoint,
    taken: Capacity,
    cells: str,
    cores: Sequence[int],
    cache: Path,
    wanted: bool,
) -> StepSpeeds:
    """Measure a model whose weights take so much, with KV in these cells. Raises ModelError where its layers do not fit
    the memory."""
    config = checkpoint.config
    counts = measured_layers(config, taken.read / config.num_layers)
    check_room(taken.weights * counts[-1] // config.num_layers)
    with torch.inference_mode(), kernels_on(cores, cache, wanted) as library:
        engines = [
            engine_of(checkpoint.narrowed(shortened_to(config, count)), taken, cells, library) for count in counts
        ]
        name = "torch's operations" if library is None else f"the kernels {library.name.partition('-')[0]}"
        tokens = max(1, min(PROMPT, config.max_model_len - STEPS - 1))
        prompts = [compute_prompt(engine, tokens, config.vocab_size) for engine in engines]
        # By turns: each finds the caches as the whole model would leave them, and what other work takes.
        rounds = [[seconds_of_step(engine) for engine in engines] for _ in range(STEPS)]
        for engine in engines:
            engine.end(PROMPT_NAME, FinishReason.ABORTED)
        steps = [median(one) for one in zip(*rounds, strict=True)]
        whole = partial(of_all, counts, config.num_layers)
        return StepSpeeds(whole(steps), whole(prompts) / tokens, counts[-1], len(cores), name)


def check_room(needed: int) -> None:
    """Raise ModelError where the layers would take more than a part of the memory that is left."""
    room = host_room().bytes
    if needed > room // SHARE:
        raise ModelError(
            f"its first layers would take {gibibytes(needed)} of the {gibibytes(room)} of memory that are left"
        )


def of_all(counts: Sequence[int], layers: int, seconds: Sequence[float]) -> float:
    """Return the seconds of all layers, and of what is around them, from those of so many first ones."""
    if len(counts) == 1:
        return seconds[0]
    each = max(0.0, (seconds[1] - seconds[0]) / (counts[1] - counts[0]))
    return seconds[1] + each * (layers - counts[1])


def engine_of(checkpoint: Checkpoint, taken: Capacity, cells: str, library: KernelLibrary | None) -> Engine:
    """Return an engine as a worker has it, with weights in the memory of this process."""
    dtype, has_levels, stored = TORCH_DTYPES[taken.dtype], taken.quantization == "gguf", None
    if library is not None and has_levels and isinstance(checkpoint, GgufCheckpoint):
        stored = checkpoint.embedding_type
    tensors = checkpoint.levels(dtype, stored_rows=library is not None) if has_levels else checkpoint.tensors(dtype)
    packing = None if library is None else Packing(library, taken.quantization == "int8", stored=stored)
    weights = Weights(tensors, torch.device("cpu"), dtype, packing, block=checkpoint.config.weight_block)
    model = build_model(checkpoint.config, weights)
    layout = layout_for(model.config, BLOCK, cells, library is not None)
    blocks = layout.blocks_for(PROMPT + STEPS) + 2
    scheduler = Scheduler(BlockPool(blocks), layout, 1, StepBudget(CPU_STEP.tokens), prefix_caching=False)
    return Engine(ModelRunner(model, KVStorage(layout, blocks, model.device)), scheduler)


def compute_prompt(engine: Engine, tokens: int, vocabulary: int) -> float:
    """Return the seconds of a prompt of so many tokens, whose answer goes on. The first steps of an engine, which set
    things up, are not among them."""
    warm_up(engine)
    chance = random.Random(1)
    prompt = [chance.randrange(vocabulary) for _ in range(tokens)]
    params = SamplingParams(max_tokens=STEPS + 1, seed=1, temperature=0.0, ignore_eos=True)
    engine.add(EngineSequence(PROMPT_NAME, prompt, params, frozenset()))
    start = time.perf_counter()
    while not engine.step():
        pass
    return time.perf_counter() - start


def seconds_of_step(engine: Engine) -> float:
    start = time.perf_counter()
    engine.step()
    return time.perf_counter() - start
