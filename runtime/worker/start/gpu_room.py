# SPDX-License-Identifier: Apache-2.0
"""The memory of a GPU that is left for KV, measured before it is taken: what weights, the largest step and other
processes need must not be missing later."""

import gc
import logging
from dataclasses import dataclass
from typing import Protocol

import torch

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.engine.device.runner_choice import estimate_recordings, make_runner
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.prompt_turns import StepBudget
from pontil.runtime.engine.runner.memory_errors import is_out_of_memory
from pontil.runtime.engine.runner.model_runner import NONE, ModelRunner
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.engine.sequences.known_adapters import KnownAdapters
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.errors import ModelError
from pontil.runtime.models.model import Model
from pontil.runtime.sampling_params import SamplingParams

logger = logging.getLogger("pontil.worker")


class MemoryMeter(Protocol):
    """A GPU's memory in bytes: all of it, what is free of it, and the most that this process had taken at a time since
    `reset`, beyond what it had then."""

    @property
    def total(self) -> int: ...
    @property
    def free(self) -> int: ...
    @property
    def peak(self) -> int: ...
    def reset(self) -> None: ...


class TorchMeter:
    def __init__(self, device: torch.device) -> None:
        self.device, self.before = device, 0

    @property
    def total(self) -> int:
        return int(torch.cuda.mem_get_info(self.device)[1])

    @property
    def free(self) -> int:
        return int(torch.cuda.mem_get_info(self.device)[0])

    @property
    def peak(self) -> int:
        return int(torch.cuda.max_memory_allocated(self.device)) - self.before

    def reset(self) -> None:
        # Memory that torch keeps for later without using it would count as taken.
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        self.before = int(torch.cuda.memory_allocated(self.device))


@dataclass(frozen=True, slots=True)
class GpuRoom:
    """The division of a GPU's memory in bytes: `allowed` is what all of this may take, `taken` what weights and other
    processes have, `step` what the largest step needs, `recorded` what recorded steps do, and `adapters` what may still
    be loaded."""

    allowed: int
    taken: int
    step: int
    recorded: int
    adapters: int = 0

    @property
    def kv(self) -> int:
        return self.allowed - self.taken - self.step - self.recorded - self.adapters

    @property
    def parts(self) -> str:
        """The parts that are not for KV, in words."""
        named = (
            ("weights and other processes", self.taken),
            ("the largest step", self.step),
            ("recorded steps", self.recorded),
            *((("further adapters", self.adapters),) if self.adapters else ()),
        )
        return ", ".join(f"{name} {count >> 20} MiB" for name, count in named)

    def check(self, share: float, block_bytes: int) -> None:
        """Raise ModelError if there is no room for two blocks, the least that a pool has."""
        if self.kv < 2 * block_bytes:
            raise ModelError(
                f"nothing is left for KV of the {self.allowed >> 20} MiB that --gpu-memory-share {share:g} allows "
                f"({self.parts}): raise it, lower --max-num-batched-tokens or --max-num-seqs, choose a smaller "
                "model or divide it over several GPUs"
            )


def room_of_adapters(config: WorkerConfig, adapters: KnownAdapters) -> int:
    """Return the bytes that adapters may take besides those in memory: what is left of a limit, and one more, which is
    read before others leave."""
    if config.adapter_memory is None or not (config.adapter or config.adapter_directory):
        return 0
    largest = max((one.nbytes for one in adapters.by_digest.values()), default=0)
    return max(0, config.adapter_memory - adapters.nbytes) + largest


def measure_room(
    config: WorkerConfig, model: Model, layout: KVLayout, meter: MemoryMeter, adapters: int = 0
) -> GpuRoom:
    """Run the largest steps that the configuration allows with a small pool, then record some of those that will be
    recorded, and see what they need. So many bytes are kept for `adapters` besides. All ranks of a worker do so
    together. Raises ModelError."""

    def held() -> int:
        meter.reset()
        return meter.total - meter.free

    # One rank may have read its weights long before another.
    model.communicator.meet()
    taken = held()
    runner = run_largest_steps(config, model, layout)
    step = meter.peak
    allowed = int(meter.total * config.gpu_memory_share)
    room = GpuRoom(allowed, taken, step, estimate_recordings(runner, held), adapters)
    # The pool that is made next gets this memory.
    runner.storage.give_back()
    del runner
    gc.collect()
    meter.reset()
    room.check(config.gpu_memory_share, layout.block_bytes)
    logger.info(
        "memory of the device: %s, KV %d MiB, which together are the %d MiB that --gpu-memory-share %g allows",
        room.parts,
        room.kv >> 20,
        room.allowed >> 20,
        config.gpu_memory_share,
    )
    return room


def run_largest_steps(config: WorkerConfig, model: Model, layout: KVLayout) -> ModelRunner:
    """Compute a step full of a prompt, then one with as many sequences as may run, by the runner of this device. Return
    that."""
    longest, size = model.config.max_model_len - 1, config.step_size
    prompts = [min(size.tokens, longest)] + [1] * (size.seats - 1)
    # A sequence is let in if there is a block to spare for each that runs.
    num_blocks = 1 + sum(layout.blocks_for(length + 2) + 1 for length in prompts)
    storage = KVStorage(layout, num_blocks, model.device)
    budget = max(size.tokens, size.seats)
    scheduler = Scheduler(BlockPool(num_blocks), layout, size.seats, StepBudget(budget), prefix_caching=False)
    # The ranks of a worker run this together, with no driver among them.
    runner = make_runner(config, model, storage, model.config.max_model_len, NONE, None)
    engine = Engine(runner, scheduler)
    # Edited logits, probabilities and logprobs of the whole vocabulary are a part of what a step needs.
    params = SamplingParams(
        max_tokens=2, seed=0, temperature=1.0, top_p=0.9, top_k=50, ignore_eos=True, logit_bias=((0, 1.0),), logprobs=1
    )
    for number, length in enumerate(prompts):
        engine.add(Sequence(f"largest step {number}", [0] * length, params, frozenset()))
    too_large = ModelError(
        f"the largest step does not fit the memory of {config.device} beside the weights: lower "
        "--max-num-batched-tokens or --max-num-seqs, choose a smaller model or divide it over several GPUs"
    )
    while engine.has_work:
        try:
            outputs = engine.step()
        except (MemoryError, RuntimeError) as error:
            # A rank of several, whose steps are not begun anew. The others would only say that it did not come.
            if not is_out_of_memory(error):
                raise
            raise too_large from error
        if any(output.failure is not None for output in outputs):
            raise too_large
    return runner
