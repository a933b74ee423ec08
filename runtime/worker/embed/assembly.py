# SPDX-License-Identifier: Apache-2.0
"""Construction of the model of a worker that embeds or scores texts, up to a first run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.loaders.checkpoint import Checkpoint, open_checkpoint, open_classifier, without_head
from pontil.runtime.loaders.config import is_encoder
from pontil.runtime.loaders.hf.encoder_directory import EncoderCheckpoint, stated_pooling
from pontil.runtime.loaders.level_formats import embedding_quantization
from pontil.runtime.models.embedding_model import (
    DecoderEmbedding,
    EmbeddingModel,
    SequenceText,
    TextAnswers,
    TextVectors,
)
from pontil.runtime.models.families.bert import Bert
from pontil.runtime.models.families.registry import build_embedder
from pontil.runtime.models.layers.fused_block import kernels_fit
from pontil.runtime.models.pair_scores import DecoderHead, EncoderHead, PairScores
from pontil.runtime.models.partition import Arithmetic
from pontil.runtime.models.weights import Packing, Weights
from pontil.runtime.reporting import Reporter
from pontil.runtime.tokenizer.pair_encoder import judgement_ids
from pontil.runtime.tokenizer.tokenizer import load_tokenizer
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
# The rows by which a decoder scores, and the tensors that they may be of.
SCORE, EMBEDDING, HEAD = "score.weight", "model.embed_tokens.weight", "lm_head.weight"
# The role of workers that score pairs.
RERANK = "rerank"


@dataclass(frozen=True, slots=True)
class Embedder:
    """A model with its pooling, or the head by which it scores pairs, computed in `dtype`. Workers of one `identity`
    make equal numbers: to the bit, if their `kernels` are equal too. Types of tokens are below `types`. `guard` is for
    the file that has the weights."""

    answers: TextAnswers
    vocab_size: int
    max_model_len: int
    identity: str
    kernels: str
    dtype: str
    types: int = 1
    guard: PackedGuard = field(default_factory=PackedGuard)

    @torch.inference_mode()
    def vectors(self, texts: Sequence[SequenceText]) -> list[bytes]:
        """Return the numbers of each text as float32."""
        return [vector.cpu().numpy().astype("<f4").tobytes() for vector in self.answers.of(texts)]


def assemble_embedder(config: WorkerConfig, report: Reporter) -> Embedder:
    """Load the model onto the worker's device and run it once. Raises ModelError."""
    device, path = open_device(config), config.model_path
    # torch's order of addition may depend on its threads, and workers may have different numbers of cores.
    torch.set_num_threads(1)
    usual = (load_encoder if is_encoder(path) else load_decoder)(config, device, report)
    longest = min(usual.max_model_len, config.max_model_len or usual.max_model_len)
    embedder = replace(usual, max_model_len=longest)
    report.progress("warming up")
    embedder.vectors([SequenceText([0])])
    return embedder


def pooling_of(config: WorkerConfig, usual: str) -> str:
    """Return the pooling that was asked for, or that the model's files state, or that is usual for its kind."""
    return config.pooling if config.pooling != AUTO else stated_pooling(config.model_path) or usual


def load_encoder(config: WorkerConfig, device: torch.device, report: Reporter) -> Embedder:
    """Load an encoder, with its pooling or the layers by which it scores."""
    checkpoint = EncoderCheckpoint.open(config.model_path, scores=config.role == RERANK)
    shape = checkpoint.config
    fits = not (shape.hidden_size % ROW_GROUP or shape.intermediate_size % ROW_GROUP)
    kernels = find_kernels(config, fits, report)
    read = unchanged(checkpoint.tensors(), checkpoint.files)
    tensors = told(read, total=len(checkpoint.places), tell=report.progress)
    packing = packing_of(config, checkpoint, kernels, report)
    weights = Weights(tensors, device, DTYPE, packing, arithmetic=Arithmetic(config.deterministic))
    model = Bert(shape, weights, checkpoint.head)
    kind, guard = name_of_kernels(device, kernels, config.deterministic), PackedGuard(weights.shelf.mapped)
    answers, identity = answers_of(config, model, model.head, "mean", checkpoint.fingerprint)
    types = max(1, shape.type_vocab_size)
    return Embedder(answers, shape.vocab_size, shape.max_model_len, identity, kind, name_of(DTYPE), types, guard)


def answers_of(
    config: WorkerConfig, model: EmbeddingModel, head: EncoderHead | DecoderHead | None, usual: str, fingerprint: str
) -> tuple[TextAnswers, str]:
    """Return what is made of a model's hidden states, by a `head` or by pooling, and the identity of both."""
    if head is not None:
        return PairScores(model, head), f"{fingerprint} score"
    pooling = pooling_of(config, usual)
    return TextVectors(model, pooling), f"{fingerprint} {pooling}"


def load_decoder(config: WorkerConfig, device: torch.device, report: Reporter) -> Embedder:
    """Load a model that generates in the same way; its last hidden states are taken instead of its logits, or of these
    only those of its judgement. Whole numbers of its files are multiplied as they are, where kernels can; one that
    scores has them in float32."""
    checkpoint, judgement = open_decoder(config)
    shape = checkpoint.config
    kernels = find_kernels(config, kernels_fit(shape, DTYPE), report)
    asked = "none" if judgement.count else config.quantization
    quantization = embedding_quantization(asked, checkpoint.has_levels, kernels is not None)
    has_levels, kind = quantization == "gguf", name_of_kernels(device, kernels, config.deterministic)
    dtype = torch.bfloat16 if has_levels else DTYPE
    stored = checkpoint.levels(dtype, stored_rows=True) if has_levels else checkpoint.tensors(dtype)
    read = judgement.rows_of(unchanged(stored, checkpoint.files))
    tensors = told(without_head(read), total=len(checkpoint.places), tell=report.progress)
    packing = packing_of(config, checkpoint, kernels, report, dtype, quantization)
    arithmetic = Arithmetic(config.deterministic)
    weights = Weights(tensors, device, dtype, packing, block=shape.weight_block, arithmetic=arithmetic)
    decoder, guard = build_embedder(shape, weights, judgement.count), PackedGuard(weights.shelf.mapped)
    head = None if decoder.score is None else DecoderHead(decoder.score)
    answers, identity = answers_of(config, DecoderEmbedding(decoder), head, "last", checkpoint.fingerprint)
    kind = f"{kind} {quantization}" if has_levels else kind
    return Embedder(answers, shape.vocab_size, shape.max_model_len, identity, kind, name_of(dtype), guard=guard)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Rows of a decoder's head by which it scores pairs: so many, those of these `ids` of the tensor `of`. Without
    `ids` its files have them as they are."""

    count: int = 0
    of: str = ""
    ids: Sequence[int] = ()

    def rows_of(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the same tensors, and the rows as one of their own."""
        for name, tensor in tensors:
            if name == self.of:
                yield SCORE, tensor[list(self.ids)]
            yield name, tensor


def open_decoder(config: WorkerConfig) -> tuple[Checkpoint, Judgement]:
    """Open a decoder, with what it scores by, if it does. Raises ModelError."""
    path = config.model_path
    if config.role != RERANK:
        return open_checkpoint(path), Judgement()
    if (classifier := open_classifier(path, SCORE)) is not None:
        return classifier, Judgement(1)
    checkpoint = open_checkpoint(path)
    tied = checkpoint.config.tie_word_embeddings
    ids = judgement_ids(load_tokenizer(path, config.cache_path))
    return checkpoint, Judgement(len(ids), EMBEDDING if tied else HEAD, ids)


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
    settings, part = replace(config, quantization=quantization), "reranker" if config.role == RERANK else "embedder"
    return open_packing(settings, checkpoint, name_of(dtype), kernels, report, part=part)
