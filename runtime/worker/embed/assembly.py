# SPDX-License-Identifier: Apache-2.0
"""Construction of the model of a worker that embeds texts, up to a first run."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.loaders.checkpoint import open_checkpoint, without_head
from pontil.runtime.loaders.config import is_encoder
from pontil.runtime.loaders.hf.encoder_directory import EncoderCheckpoint, stated_pooling
from pontil.runtime.loaders.level_formats import embedding_quantization
from pontil.runtime.models.embedding_model import DecoderEmbedding, EmbeddingModel, text_vectors
from pontil.runtime.models.families.bert import Bert
from pontil.runtime.models.families.registry import build_embedder
from pontil.runtime.models.layers.fused_block import kernels_fit
from pontil.runtime.models.partition import Arithmetic
from pontil.runtime.models.weights import Packing, Weights
from pontil.runtime.reporting import Reporter
from pontil.runtime.worker.start.loading import (
    OnDisk,
    find_kernels,
    name_of_kernels,
    open_device,
    open_packing,
    unchanged,
)
from pontil.runtime.worker.start.packed_guard import PackedGuard
from pontil.runtime.worker.start.weights_progress import told

# The kernels read rows in groups of so many numbers.
ROW_GROUP = 16
DTYPE = torch.float32
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Embedder:
    """A model with its pooling, computed in `dtype`. Workers of one `identity` make equal vectors: to the bit, if their
    `kernels` are equal too. `guard` is for the file that has the weights."""

    model: EmbeddingModel
    pooling: str
    vocab_size: int
    max_model_len: int
    identity: str
    kernels: str
    dtype: str
    guard: PackedGuard = field(default_factory=PackedGuard)

    @torch.inference_mode()
    def vectors(self, texts: Sequence[tuple[Sequence[int], int | None]]) -> list[bytes]:
        """Return the vector of each text, given by its token ids and the wanted dimensions, as float32 numbers."""
        made = text_vectors(self.model, self.pooling, texts)
        return [vector.cpu().numpy().astype("<f4").tobytes() for vector in made]


def assemble_embedder(config: WorkerConfig, report: Reporter) -> Embedder:
    """Load the model onto the worker's device and run it once. Raises ModelError."""
    device, path = open_device(config), config.model_path
    # torch's order of addition may depend on its threads, and workers may have different numbers of cores.
    torch.set_num_threads(1)
    usual = (load_encoder if is_encoder(path) else load_decoder)(config, device, report)
    pooling = config.pooling if config.pooling != AUTO else stated_pooling(path) or usual.pooling
    longest = min(usual.max_model_len, config.max_model_len or usual.max_model_len)
    embedder = replace(usual, pooling=pooling, max_model_len=longest, identity=f"{usual.identity} {pooling}")
    report.progress("warming up")
    embedder.vectors([([0], None)])
    return embedder


def load_encoder(config: WorkerConfig, device: torch.device, report: Reporter) -> Embedder:
    """Load an encoder, with the usual pooling of its kind; the checkpoint alone is its identity yet."""
    checkpoint = EncoderCheckpoint.open(config.model_path)
    shape = checkpoint.config
    fits = not (shape.hidden_size % ROW_GROUP or shape.intermediate_size % ROW_GROUP)
    kernels = find_kernels(config, fits, report)
    read = unchanged(checkpoint.tensors(), checkpoint.files)
    tensors = told(read, total=len(checkpoint.places), tell=report.progress)
    packing = packing_of(config, checkpoint, kernels, report)
    weights = Weights(tensors, device, DTYPE, packing, arithmetic=Arithmetic(config.deterministic))
    model, guard = Bert(shape, weights), PackedGuard(weights.shelf.mapped)
    kind = name_of_kernels(device, kernels, config.deterministic)
    sizes = (shape.vocab_size, shape.max_model_len)
    return Embedder(model, "mean", *sizes, checkpoint.fingerprint, kind, name_of(DTYPE), guard)


def load_decoder(config: WorkerConfig, device: torch.device, report: Reporter) -> Embedder:
    """Load a model that generates in the same way; its last hidden states are taken instead of its logits. Whole
    numbers of its files are multiplied as they are, where kernels can."""
    checkpoint = open_checkpoint(config.model_path)
    shape = checkpoint.config
    kernels = find_kernels(config, kernels_fit(shape, DTYPE), report)
    quantization = embedding_quantization(config.quantization, checkpoint.has_levels, kernels is not None)
    has_levels, kind = quantization == "gguf", name_of_kernels(device, kernels, config.deterministic)
    dtype = torch.bfloat16 if has_levels else DTYPE
    stored = checkpoint.levels(dtype, stored_rows=True) if has_levels else checkpoint.tensors(dtype)
    read = unchanged(stored, checkpoint.files)
    tensors = told(without_head(read), total=len(checkpoint.places), tell=report.progress)
    packing = packing_of(config, checkpoint, kernels, report, dtype, quantization)
    arithmetic = Arithmetic(config.deterministic)
    weights = Weights(tensors, device, dtype, packing, block=shape.weight_block, arithmetic=arithmetic)
    model, guard = DecoderEmbedding(build_embedder(shape, weights)), PackedGuard(weights.shelf.mapped)
    sizes, kind = (shape.vocab_size, shape.max_model_len), f"{kind} {quantization}" if has_levels else kind
    return Embedder(model, "last", *sizes, checkpoint.fingerprint, kind, name_of(dtype), guard)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def packing_of(
    config: WorkerConfig,
    checkpoint: OnDisk,
    kernels: KernelLibrary | None,
    report: Reporter,
    dtype: torch.dtype = DTYPE,
    quantization: str = "none",
) -> Packing | None:
    if kernels is None:
        return None
    settings = replace(config, quantization=quantization)
    return open_packing(settings, checkpoint, name_of(dtype), kernels, report, part="embedder")
