# SPDX-License-Identifier: Apache-2.0
"""The common parts of all architectures: an embedding, blocks, a norm and a head.

The residual stream and the logits are float32 for every type of weights.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pontil.gpu_ops.kernels.layer import Rotation
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.linear import Head, Product, matrix_of
from pontil.gpu_ops.kernels.tile import KernelTile
from pontil.gpu_ops.kernels.weights.quantized import QuantizedWeights
from pontil.gpu_ops.kernels.weights.structures import TileFields
from pontil.gpu_ops.kv.attention import PagedAttention
from pontil.gpu_ops.parameters.draws import RankedRows
from pontil.runtime.models.adapters import ModelAdapters
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.models.hidden_states import HiddenStates
from pontil.runtime.models.layers.blocks import Block
from pontil.runtime.models.layers.fused_block import FusedBlock, FusedStack
from pontil.runtime.models.layers.norm import Norm, Unnormed
from pontil.runtime.models.layers.rotary import global_rotary, local_rotary
from pontil.runtime.models.media_rows import MediaRows
from pontil.runtime.models.partition import Partition, by_vocabulary
from pontil.runtime.models.stored_rows import DeviceRows, Table
from pontil.runtime.models.weights import Weights

HEAD_ROWS = 1 << 16
"""Rows of one part of the head's layout: in one piece a large vocabulary would take seconds to load, most of them for
the memory of a copy."""


@dataclass(frozen=True, slots=True)
class SharedParts:
    """The parts that a decoder uses instead of its own: those of another model, or no head, and norms that do not
    exist. With `one_place` its layers write keys and values of a whole text to the same place, one after the other. One
    that scores has so many `score_rows` in the place of a head."""

    embedding: Table | None
    head: list[Product]
    without_norms: Set[str] = frozenset()
    one_place: bool = False
    score_rows: int = 0


class Decoder(ABC):
    """A Model. An architecture adds its blocks and its other peculiarities. Tensor names are Hugging Face's. Norm
    weights are stored less `norm_offset`."""

    norm_offset = 0.0

    def __init__(self, config: ModelConfig, weights: Weights, shared: SharedParts | None = None) -> None:
        self.config, self.shared = config, shared
        self.dtype, self.device, self.kernels = weights.dtype, weights.device, weights.kernels
        self.communicator, self.partition = weights.communicator, weights.partition
        given = shared.embedding if shared else None
        self.embedding: Table = self.take_embedding(weights) if given is None else given
        self.blocks = [self.block(index, weights) for index in range(config.num_layers)]
        if shared and shared.one_place:
            for block in self.blocks:
                block.attention.layer = replace(block.attention.layer, layer=0)
        self.norm = self.make_norm("model.norm", weights)
        self.head = self.take_head(weights) if shared is None else shared.head
        rows = shared.score_rows if shared else 0
        self.score = weights.take("score.weight", rows, config.hidden_size) if rows else None
        self.global_rotary = global_rotary(config, weights)
        theta = config.local_rope_theta
        self.local_rotary = self.global_rotary if theta is None else local_rotary(config, theta, weights)
        weights.finish()
        self.adapters = ModelAdapters(weights.places.rows, weights.places.products, config)
        self.fused = [] if self.kernels is None else [self.fuse(block) for block in self.blocks]
        # The last layer is apart: only some of its rows are needed.
        self.stack = None if self.kernels is None else FusedStack(self.fused[:-1], self.kernels)
        self.fused_heads = [] if self.kernels is None else [self.fuse_head(part, self.kernels) for part in self.head]

    @abstractmethod
    def block(self, index: int, weights: Weights) -> Block:
        """Build the layer of that index."""

    def make_norm(self, name: str, weights: Weights) -> Norm:
        if self.shared is not None and name in self.shared.without_norms:
            return Unnormed()
        return Norm(weights, name, self.config.hidden_size, self.config.rms_norm_eps, self.norm_offset)

    def fuse(self, block: Block) -> FusedBlock:
        rotary = self.global_rotary if block.attention.layer.window is None else self.local_rotary
        assert self.kernels is not None
        return FusedBlock(self.kernels, block, Rotation(rotary.cos, rotary.sin, self.config.interleaved))

    def take_embedding(self, weights: Weights) -> Table:
        return weights.table("model.embed_tokens.weight", self.config.vocab_size, self.config.hidden_size)

    def take_head(self, weights: Weights) -> list[Product]:
        """Take the vocabulary's projection, whose results are float32: in bfloat16 distinct logits would round to ties.
        torch's products have one type, so its weights are float32 too; kernels read those of the model's type."""
        if self.kernels is not None:
            return [weights.product("head", lambda: (self.head_weight(weights), None))]
        if isinstance(self.embedding, DeviceRows) and self.config.tie_word_embeddings:
            weights.read_on()
            weights.left.pop("lm_head.weight", None)
            own = self.embedding.weights.rows(by_vocabulary(self.partition, self.config.vocab_size))
            return [weights.product_of_numbers(own)]
        weight = self.head_weight(weights)
        if weights.keeps_head or not isinstance(weight, Tensor):
            return [weights.product_of_numbers(weight)]
        return [weights.plain(part.float()) for part in weight.split(HEAD_ROWS)]

    def head_weight(self, weights: Weights) -> Tensor | QuantizedWeights:
        """Read this rank's part of the vocabulary's projection, or take it from the embedding to which it is tied."""
        tied, shape = self.config.tie_word_embeddings, (self.config.vocab_size, self.config.hidden_size)
        name = "model.embed_tokens.weight" if tied else "lm_head.weight"
        levels = weights.levels(name, *shape)
        if tied:
            weights.left.pop("lm_head.weight", None)
        kept = self.kernels is not None or weights.keeps_head
        dtype = self.dtype if kept else torch.float32
        if levels is not None:
            part = levels.rows(by_vocabulary(self.partition, self.config.vocab_size))
            return part if kept or weights.device.type != "cpu" else part.dense().to(dtype)
        dense = self.embedding if tied else weights.read(name, *shape, dtype=dtype)
        assert isinstance(dense, Tensor)
        return weights.rounded(weights.part(dense, by_vocabulary))

    @property
    def linears(self) -> list[Product]:
        return [linear for block in self.blocks for linear in block.linears]

    def fuse_head(self, part: Product, library: KernelLibrary) -> Head:
        return Head(library, matrix_of(part), self.norm.for_kernels, self.norm.eps)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Look up embeddings, float32 [rows, hidden_size]."""
        return self.embedding[token_ids].float()

    def entering(self, inputs: Tensor) -> Tensor:
        """The rows of the first layer, in memory of their own, from token ids or embeddings."""
        return inputs.clone() if inputs.is_floating_point() else self.embed(inputs)

    def forward(
        self,
        inputs: Tensor,
        positions: Tensor,
        attend: PagedAttention,
        states: HiddenStates | None = None,
        media: MediaRows | None = None,
    ) -> Tensor:
        assert not self.fused
        if media is None:
            everywhere = self.global_rotary(positions)
            nearby = everywhere if self.local_rotary is self.global_rotary else self.local_rotary(positions)
        else:
            assert self.local_rotary is self.global_rotary
            everywhere = nearby = media.angles
        hidden, deep = self.entering(inputs), () if media is None else media.deep
        for index, block in enumerate(self.blocks):
            if states is not None:
                states.record(index, hidden)
            angles = everywhere if self.config.window(index) is None else nearby
            hidden = block(hidden, angles, attend)
            if index < len(deep):
                hidden = hidden + deep[index]
        return self.norm(hidden)

    def forward_fused(
        self,
        inputs: Tensor,
        tile: KernelTile,
        rows: Sequence[int],
        states: HiddenStates | None = None,
        deep: Tensor | None = None,
    ) -> Tensor:
        """Run all blocks, in as few calls as what happens between them allows."""
        assert self.stack is not None and (tile.angles is None or self.local_rotary is self.global_rotary)
        added = 0 if deep is None else len(deep)
        assert added < len(self.blocks)
        hidden = self.entering(inputs)
        if states is not None:
            states.record(0, hidden)
        done, rest = 0, self.stack
        for layers in sorted({*range(1, added + 1), *(() if states is None else (states.layers,))}):
            first, rest = rest.parts(layers - done)
            hidden, done = first(hidden, tile), layers
            if deep is not None and 0 < layers <= added:
                hidden += deep[layers - 1]
            if states is not None:
                states.record(layers, hidden)
        return self.fused[-1].only(rest(hidden, tile), tile, rows)

    def take_kept(self, accepted: TileFields) -> None:
        assert self.stack is not None
        self.stack.layers.take_kept(accepted)
        self.fused[-1].layer.take_kept(accepted)

    @torch.inference_mode()
    def serve_experts(self) -> None:
        none = torch.zeros(0, self.config.hidden_size, device=self.device)
        for index, block in enumerate(self.blocks):
            if not block.feed_forward.takes_rows:
                continue
            if self.fused:
                self.fused[index].feed_forward(none, none)
            else:
                block.feed_forward(none.to(self.dtype))

    def normed(self, hidden: Tensor) -> Tensor:
        return self.norm(hidden) if self.fused else hidden

    def logits(self, hidden: Tensor) -> Tensor:
        if self.fused_heads:
            return self.whole_vocabulary(self.fused_heads[0](hidden)[0])
        parts = [part(hidden) for part in self.head]
        return self.whole_vocabulary(parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1))

    def ranked_logits(self, hidden: Tensor) -> tuple[Tensor, RankedRows]:
        (head,) = self.fused_heads
        logits, ranked = head(hidden)
        if self.partition.size == 1:
            return logits, ranked
        ids = ranked.highest.unsqueeze(1)
        tops = self.communicator.gather_columns(logits.gather(1, ids))
        offset = self.partition.vocabulary(self.config.vocab_size).start
        ids = self.communicator.gather_columns(ids + offset)
        # Of equal ones the lowest id.
        ids = ids.where(tops == tops.amax(1, keepdim=True), self.config.vocab_size)
        return self.whole_vocabulary(logits), RankedRows(ids.amin(1))

    def whole_vocabulary(self, logits: Tensor) -> Tensor:
        """Join the ranks' parts of the vocabulary. The last part may be smaller than the others."""
        if self.partition.size == 1:
            return logits
        share = len(Partition(0, self.partition.size).vocabulary(self.config.vocab_size))
        part = torch.nn.functional.pad(logits, (0, share - logits.shape[1]))
        return self.communicator.gather_columns(part)[:, : self.config.vocab_size]
