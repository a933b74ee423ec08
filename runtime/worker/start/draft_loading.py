# SPDX-License-Identifier: Apache-2.0
"""Loading of a draft model beside the model that it guesses for."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.weights.file_memory import MappedFile
from pontil.runtime.cache.layout import KVLayout, choose_kv_dtype, layout_for
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import TORCH_DTYPES, KVStorage
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.engine.device.device_runner import DeviceRunner
from pontil.runtime.engine.device.link import CudaLink
from pontil.runtime.engine.device.runner_choice import estimate_recordings, limits_of, record_steps
from pontil.runtime.engine.drafts.device_head import DeviceLayerRunner
from pontil.runtime.engine.drafts.head import DraftHead, DraftLayerRunner
from pontil.runtime.engine.drafts.model import DraftModel
from pontil.runtime.engine.drafts.model_drafter import ModelDrafter
from pontil.runtime.engine.drafts.policy import WINDOWS, AdaptivePolicy
from pontil.runtime.engine.runner.model_runner import ModelRunner
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.checkpoint import Checkpoint, open_checkpoint
from pontil.runtime.loaders.draft_layers import DraftLayerSource, find_draft_layer, open_draft_layer
from pontil.runtime.models.families.registry import build_draft_layer, build_model
from pontil.runtime.models.layers.draft_layer import DraftLayer
from pontil.runtime.models.layers.fused_block import kernels_fit
from pontil.runtime.models.model import Model
from pontil.runtime.reporting import Reporter
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.worker.start.draft_pair import count_weights
from pontil.runtime.worker.start.gpu_room import MemoryMeter, TorchMeter
from pontil.runtime.worker.start.loading import ModelPart, for_its_device, quantization_of, read_weights

# The positions of the text that a draft model reads at its start: the policy goes by what they took until it has seen
# more, and may spend all that it has on the first text that it has read.
FIRST_READ = WINDOWS[-2]


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """A draft model on the target's device. `weight_bytes` is the memory that its `weights`,
    in number, take, or a little less, and `step_bytes` what its steps keep of a GPU's. `mapped` is the file that has
    the weights, if one does."""

    model: Model
    layout: KVLayout
    weight_bytes: int
    weights: int
    mapped: MappedFile | None = None
    step_bytes: int = 0

    def blocks_beside(self, target: KVLayout, count: int) -> int:
        """Return how many blocks hold as many tokens as so many of the target's."""
        return count * target.block_size // self.layout.block_size

    def bytes_beside(self, target: KVLayout) -> int:
        """The memory of as many tokens as a block of the target's has."""
        return self.blocks_beside(target, 1) * self.layout.block_bytes

    def shared_blocks(self, config: WorkerConfig, target: ModelPart) -> int:
        """Return how many blocks the target has of the memory that it had room for alone: the KV memory holds as many
        tokens of one model as of the other. A GPU's free memory was measured before the draft model was there."""
        size = target.num_blocks * target.layout.block_bytes
        if config.kv_cache_memory is None and config.device != "cpu":
            size -= self.weight_bytes + self.step_bytes
        return max(0, size) // (target.layout.block_bytes + self.bytes_beside(target.layout))


def load_draft(config: WorkerConfig, target: ModelPart, report: Reporter) -> LoadedDraft | None:
    """Load what guesses for this worker, if anything does. A draft layer is also loaded by a worker that only computes
    prompts: their states are there. Raises ModelError."""
    if config.speculative_model is None or not config.drafts:
        return None
    source, path = find_draft_layer(config.model_path, config.speculative_model), config.draft_model_path
    if source is not None:
        made = load_draft_layer(config, source, target, report)
    elif path is not None:
        made = load_draft_model(config, path, target, report)
    else:
        return None
    if config.kv_cache_memory is not None or config.device == "cpu":
        return made
    return replace(made, step_bytes=step_bytes_of(config, made.model, made.layout, TorchMeter(made.model.device)))


def load_draft_layer(
    config: WorkerConfig, source: DraftLayerSource, target: ModelPart, report: Reporter
) -> LoadedDraft:
    """Load a draft layer, in the target's type and, where they can compute both, by the target's kernels. Raises
    ModelError."""
    checkpoint = for_its_device(config, open_draft_layer(source))
    shape = replace(source.config, max_model_len=min(source.config.max_model_len, target.config.max_model_len))
    dtype = TORCH_DTYPES[target.dtype]
    kernels = target.model.kernels if kernels_fit(shape, dtype) else None
    settings = draft_settings(config, checkpoint, target.dtype, kernels)
    weights = read_weights(settings, checkpoint, target.model.device, target.dtype, kernels, report)
    layer = build_draft_layer(shape, weights, target.model, source.form)
    cells = choose_kv_dtype(config.kv_cache_dtype, target.dtype)
    layout = layout_for(replace(shape, num_layers=1), config.block_size, cells, packed=kernels is not None)
    number_bytes = 1 if settings.quantization != "none" else dtype.itemsize
    count = source.count_weights()
    return LoadedDraft(layer, layout, count * number_bytes, count, weights.shelf.mapped)


def load_draft_model(config: WorkerConfig, path: Path, target: ModelPart, report: Reporter) -> LoadedDraft:
    """Load the draft model, in the target's type and, where they can compute it, by the target's kernels: two sets of
    threads must not share cores. Raises ModelError."""
    checkpoint = for_its_device(config, open_checkpoint(path))
    shape = replace(checkpoint.config, max_model_len=min(checkpoint.config.max_model_len, target.config.max_model_len))
    if shape.recurrent is not None:
        raise ModelError("a model with recurrent layers cannot guess for another: choose another --speculative-model")
    dtype = TORCH_DTYPES[target.dtype]
    kernels = target.model.kernels if kernels_fit(shape, dtype, 1) else None
    settings = draft_settings(config, checkpoint, target.dtype, kernels)
    weights = read_weights(settings, checkpoint, target.model.device, target.dtype, kernels, report)
    model = build_model(shape, weights)
    cells = choose_kv_dtype(config.kv_cache_dtype, target.dtype)
    layout = layout_for(shape, config.block_size, cells, packed=kernels is not None)
    number_bytes = 1 if settings.quantization != "none" else dtype.itemsize
    count = count_weights(shape)
    return LoadedDraft(model, layout, count * number_bytes, count, weights.shelf.mapped)


def draft_settings(
    config: WorkerConfig, checkpoint: Checkpoint, dtype: str, kernels: KernelLibrary | None
) -> WorkerConfig:
    """Return the configuration of what guesses: with the target's quantization where it is possible, without adapters,
    and without other kernels, which were compared with Triton's for the target's weights only."""
    kept = kernels is not None or config.device != "cpu"
    possible = kept and (config.quantization != "gguf" or checkpoint.has_levels)
    quantization = quantization_of(config, checkpoint, dtype, kernels) if possible else "none"
    weights_memory = config.weights_memory[1:]
    without = replace(config, kernel_backend=(), adapter=(), adapter_directory=())
    return replace(without, quantization=quantization, weights_memory=weights_memory)


def make_drafter(config: WorkerConfig, draft: LoadedDraft, target: ModelPart, num_blocks: int) -> ModelDrafter:
    """Open the memory of a draft model beside so many blocks of the target's, and have it guess once."""
    count = draft.blocks_beside(target.layout, num_blocks)
    storage, pool = KVStorage(draft.layout, count, draft.model.device), BlockPool(count)
    size, runner = target.config.vocab_size, draft_runner(config, draft.model, storage)
    record_steps(runner)
    if isinstance(runner, DraftLayerRunner | DeviceLayerRunner):
        made: DraftModel = DraftHead(runner, pool, draft.layout, size)
    else:
        made = DraftModel(runner, pool, draft.layout, size, config.prefix_caching)
    policy = AdaptivePolicy(draft.weights / count_weights(target.config))
    warm_up(made)
    for rows, seconds in warm_up(made):
        policy.drafted(rows, seconds)
    return ModelDrafter(made, policy)


def draft_runner(config: WorkerConfig, model: Model, storage: KVStorage) -> ModelRunner:
    """Return the runner of what guesses, on its device. Attention is Triton's there: another package was compared with
    it in the target's layers only."""
    if model.device.type == "cpu":
        return DraftLayerRunner(model, storage) if isinstance(model, DraftLayer) else ModelRunner(model, storage)
    limits, link = limits_of(config, storage, model.config.max_model_len), CudaLink(model.device)
    if isinstance(model, DraftLayer):
        return DeviceLayerRunner(model, storage, link, limits, AttentionBackend())
    return DeviceRunner(model, storage, link, limits, AttentionBackend())


def step_bytes_of(config: WorkerConfig, model: Model, layout: KVLayout, meter: MemoryMeter) -> int:
    """Return the memory that steps of what guesses take of a GPU and keep: their buffers, and recorded ones."""
    storage = KVStorage(layout, 2, model.device)

    def held() -> int:
        meter.reset()
        return meter.total - meter.free

    before = held()
    runner = draft_runner(config, model, storage)
    buffers = held() - before
    recorded = estimate_recordings(runner, held)
    storage.give_back()
    return buffers + recorded


def warm_up(model: DraftModel) -> list[tuple[int, float]]:
    """Have a text read and two guesses made, since the first call of an operation sets it up. Return their rows and
    seconds. A small memory has a shorter text."""
    room = min(model.shape.max_model_len, (model.pool.available - 1) * model.memory.layout.block_size)
    # Both guesses come behind it.
    count = max(2, min(FIRST_READ, room - 2)) - 1
    sequence = Sequence("warm-up", [0] * count, SamplingParams(max_tokens=4, seed=0, temperature=0.0), frozenset())
    sequence.output = [0]
    sequence.drafting.record(0, [torch.ones(model.shape.hidden_size, device=model.runner.model.device)] * count)
    model.propose([(sequence, 2)])
    model.forget(sequence)
    model.prefix.clear()
    runs, model.runs = model.runs, []
    return runs
