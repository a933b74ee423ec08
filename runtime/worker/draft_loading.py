# SPDX-License-Identifier: Apache-2.0
"""Loading of a draft model beside the model that it guesses for."""

from dataclasses import dataclass, replace
from pathlib import Path

from pontil.runtime.cache.layout import KVLayout, choose_kv_dtype
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import TORCH_DTYPES, KVStorage
from pontil.runtime.config import WorkerConfig
from pontil.runtime.engine.draft_model import DraftModel
from pontil.runtime.engine.draft_policy import AdaptivePolicy
from pontil.runtime.engine.model_drafter import ModelDrafter
from pontil.runtime.engine.model_runner import ModelRunner
from pontil.runtime.engine.sequence import Sequence
from pontil.runtime.loaders.checkpoint import Checkpoint, open_checkpoint
from pontil.runtime.loaders.gguf_file import GgufCheckpoint
from pontil.runtime.models.fused_block import kernels_fit
from pontil.runtime.models.model import Model
from pontil.runtime.models.registry import build_model
from pontil.runtime.reporting import Reporter
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.worker.draft_pair import count_weights
from pontil.runtime.worker.loading import ModelPart, read_weights


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """A draft model on the target's device. `weight_bytes` is the memory that its weights take, or a little less."""

    model: Model
    layout: KVLayout
    weight_bytes: int

    def shared_blocks(self, config: WorkerConfig, target: ModelPart) -> int:
        """Return how many blocks both models have, of the memory that the target had room for: the KV memory holds as
        many tokens of one as of the other. A GPU's free memory was measured before the draft model was there."""
        size = target.num_blocks * target.layout.block_bytes
        if config.kv_cache_memory is None and config.device != "cpu":
            size -= self.weight_bytes
        return max(0, size) // (target.layout.block_bytes + self.layout.block_bytes)


def load_draft(config: WorkerConfig, path: Path, target: ModelPart, report: Reporter) -> LoadedDraft:
    """Load the draft model, in the target's type and, where they can compute it, by the target's kernels: two sets of
    threads must not share cores. Raises ModelError."""
    checkpoint = open_checkpoint(path)
    shape = replace(checkpoint.config, max_model_len=min(checkpoint.config.max_model_len, target.config.max_model_len))
    dtype = TORCH_DTYPES[target.dtype]
    kernels = target.model.kernels if kernels_fit(shape, dtype, 1) else None
    settings = replace(config, quantization=quantization_of(config, checkpoint, kernels is not None))
    weights = read_weights(settings, checkpoint, target.model.device, target.dtype, kernels, report)
    model = build_model(shape, weights)
    cells = choose_kv_dtype(config.kv_cache_dtype, target.dtype)
    layout = KVLayout(
        config.block_size, shape.num_layers, shape.num_kv_heads, shape.head_dim, cells, packed=kernels is not None
    )
    number_bytes = 1 if settings.quantization != "none" else dtype.itemsize
    return LoadedDraft(model, layout, count_weights(shape) * number_bytes)


def quantization_of(config: WorkerConfig, checkpoint: Checkpoint, has_kernels: bool) -> str:
    """Return the draft model's quantization: the target's, where it is possible."""
    possible = has_kernels and (config.quantization != "gguf" or isinstance(checkpoint, GgufCheckpoint))
    return config.quantization if possible else "none"


def make_drafter(config: WorkerConfig, draft: LoadedDraft, target: ModelPart, num_blocks: int) -> ModelDrafter:
    runner = ModelRunner(draft.model, KVStorage(draft.layout, num_blocks, draft.model.device))
    model = DraftModel(runner, BlockPool(num_blocks), draft.layout, target.config.vocab_size, config.prefix_caching)
    warm_up(model)
    ratio = count_weights(draft.model.config) / count_weights(target.config)
    return ModelDrafter(model, AdaptivePolicy(ratio))


def warm_up(model: DraftModel) -> None:
    """Have two guesses made, since the first call of an operation sets it up."""
    sequence = Sequence("warm-up", [0], SamplingParams(max_tokens=4, seed=0, temperature=0.0), frozenset())
    sequence.output = [0]
    model.propose([(sequence, 2)])
    model.forget(sequence)
    model.prefix.clear()
    model.runs.clear()
