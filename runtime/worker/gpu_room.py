# SPDX-License-Identifier: Apache-2.0
"""The memory of a GPU that is left for KV, measured before it is taken: what weights, the largest step and other
processes need must not be missing later."""

from dataclasses import dataclass
from typing import Protocol

import torch

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config import WorkerConfig
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.model_runner import ModelRunner
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.engine.sequence import Sequence
from pontil.runtime.errors import ModelError
from pontil.runtime.models.model import Model
from pontil.runtime.sampling_params import SamplingParams


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
    processes have, and `step` what the largest step needs."""

    allowed: int
    taken: int
    step: int

    @property
    def kv(self) -> int:
        return self.allowed - self.taken - self.step

    def check(self, share: float, block_bytes: int) -> None:
        """Raise ModelError if there is no room for two blocks, the least that a pool has."""
        if self.kv < 2 * block_bytes:
            parts = ", ".join(
                f"{name} {count >> 20} MiB"
                for name, count in (("weights and other processes", self.taken), ("the largest step", self.step))
            )
            raise ModelError(
                f"nothing is left for KV of the {self.allowed >> 20} MiB that --gpu-memory-share {share:g} allows "
                f"({parts}): raise it, lower --max-num-batched-tokens or --max-num-seqs, choose a smaller model or "
                "divide it over several GPUs"
            )


def measure_room(config: WorkerConfig, model: Model, layout: KVLayout, meter: MemoryMeter) -> GpuRoom:
    """Run the largest steps that the configuration allows with a small pool, and see what they need. All ranks of a
    worker do so together. Raises ModelError."""
    meter.reset()
    taken = meter.total - meter.free
    run_largest_steps(config, model, layout)
    room = GpuRoom(int(meter.total * config.gpu_memory_share), taken, meter.peak)
    room.check(config.gpu_memory_share, layout.block_bytes)
    return room


def run_largest_steps(config: WorkerConfig, model: Model, layout: KVLayout) -> None:
    """Compute a step full of a prompt, then one with as many sequences as may run."""
    longest = model.config.max_model_len - 1
    prompts = [min(config.max_num_batched_tokens, longest)] + [1] * (config.max_num_seqs - 1)
    # A sequence is let in if there is a block to spare for each that runs.
    num_blocks = 1 + sum(layout.blocks_for(length + 2) + 1 for length in prompts)
    storage = KVStorage(layout, num_blocks, model.device)
    budget = max(config.max_num_batched_tokens, config.max_num_seqs)
    scheduler = Scheduler(BlockPool(num_blocks), layout, config.max_num_seqs, budget, prefix_caching=False)
    engine = Engine(ModelRunner(model, storage), scheduler)
    # Masks and probabilities of the whole vocabulary are a part of what a step needs.
    params = SamplingParams(max_tokens=2, seed=0, temperature=1.0, top_p=0.9, top_k=50, ignore_eos=True)
    for number, length in enumerate(prompts):
        engine.add(Sequence(f"largest step {number}", [0] * length, params, frozenset()))
    while engine.has_work:
        engine.step()
