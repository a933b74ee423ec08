# SPDX-License-Identifier: Apache-2.0
"""The codes of a frame after its first one, each drawn by a small decoder that has seen those before it.

A frame is a sequence of its own: position 0 holds the Talker's state, from which the first code was drawn, position g
the code of group g - 1. The logits at position g give the code of group g, by a head of its own. Keys and values are
forgotten with the frame.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from pontil.gpu_ops.draws.sampling import Shaping, greedy, sample
from pontil.gpu_ops.kernels.linear import Product
from pontil.gpu_ops.kernels.tile import KernelTile, TileSpan
from pontil.gpu_ops.kv.attention import KEY_STRIP, GeneratedAttention
from pontil.gpu_ops.products.batch_invariance import GENERATED_ROWS
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.models.families.qwen3 import Qwen3
from pontil.runtime.models.weights import Weights
from pontil.runtime.stages.qwen3_omni.config import OTHER_CODES, CodeSampling

BLOCK_SIZE = 16

# The numbers in [0, 1) by which the codes of one frame are drawn, one for each group but the first; None for the most
# likely codes.
FrameNumbers = Sequence[float] | None


class PredictorDecoder(Qwen3):
    """A Qwen3 with an embedding and a head for each group. Row g * vocab_size + c of the embedding is that of code c of
    group g + 1, and part g of the head gives the logits of group g + 1."""

    def __init__(self, config: ModelConfig, groups: int, weights: Weights) -> None:
        self.tables = groups - 1
        super().__init__(config, weights)

    def take_embedding(self, weights: Weights) -> Tensor:
        size = (self.config.vocab_size, self.config.hidden_size)
        names = [f"model.codec_embedding.{n}.weight" for n in range(self.tables)]
        return weights.shelf.tensor(names[0], lambda: torch.cat([weights.read(name, *size) for name in names]))

    def take_head(self, weights: Weights) -> list[Product]:
        size = (self.config.vocab_size, self.config.hidden_size)
        dtype = torch.float32 if self.kernels is None else self.dtype

        def part(name: str) -> Product:
            return weights.product(name, lambda: (weights.read(name, *size, dtype=dtype), None))

        return [part(f"lm_head.{n}.weight") for n in range(self.tables)]

    def embed_codes(self, codes: Tensor, group: int) -> Tensor:
        """Embeddings float32 [rows, hidden_size] of codes int64 [rows] of a group, 1 or more."""
        return self.embed(codes + (group - 1) * self.config.vocab_size)

    def group_logits(self, hidden: Tensor, group: int) -> Tensor:
        """Logits float32 [rows, vocab_size] of a group, 1 or more, from the results of a pass."""
        if self.fused_heads:
            return self.fused_heads[group - 1](hidden)[0]
        return self.head[group - 1](hidden)


class CodePredictor:
    """Completes frames. The codes of a frame depend on its own state, first code and numbers only, to the bit (C16):
    torch's products see full tiles, and the kernels' are batch-invariant by themselves."""

    def __init__(self, decoder: PredictorDecoder, groups: int, sampling: CodeSampling = OTHER_CODES) -> None:
        self.decoder, self.groups, self.sampling = decoder, groups, sampling
        config = decoder.config
        self.per_frame = -(-groups // BLOCK_SIZE)
        # Block 0 is padding, which no frame owns.
        blocks = 1 + GENERATED_ROWS * self.per_frame
        shape = (blocks, config.num_layers, 2, config.num_kv_heads, BLOCK_SIZE, config.head_dim)
        self.pool = torch.zeros(shape, dtype=decoder.dtype, device=decoder.device)

    @torch.inference_mode()
    def complete(self, states: Tensor, first: Tensor, entering: Tensor, numbers: Sequence[FrameNumbers]) -> Tensor:
        """Return the codes int64 [frames, groups] of frames with these first codes, int64 [frames].

        `states` are the Talker's normed states from which the first codes were drawn, and `entering` the Talker's
        embeddings of these codes, both float32 [frames, hidden_size]. `numbers` has an item for each frame.
        """
        size, done = GENERATED_ROWS, []
        for start in range(0, len(first), size):
            some = slice(start, start + size)
            done.append(self.complete_tile(states[some], first[some], entering[some], numbers[some]))
        return torch.cat(done) if done else first.new_empty(0, self.groups)

    def complete_tile(self, states: Tensor, first: Tensor, entering: Tensor, numbers: Sequence[FrameNumbers]) -> Tensor:
        # Numbers that are not finite must not stay in memory that another frame's masked products read.
        self.pool[1 : 1 + len(first) * self.per_frame].zero_()
        codes, hidden = [first], self.begin(states, entering)
        for group in range(1, self.groups):
            logits = self.decoder.group_logits(hidden, group)[: len(first)]
            codes.append(self.draw(logits, [None if number is None else number[group - 1] for number in numbers]))
            if group < self.groups - 1:
                hidden = self.step(self.decoder.embed_codes(codes[-1], group), group + 1)
        return torch.stack(codes, dim=1)

    def begin(self, states: Tensor, entering: Tensor) -> Tensor:
        """Compute positions 0 and 1; return the results of position 1."""
        if self.decoder.kernels is None:
            self.step(states, 0)
            return self.step(entering, 1)
        both = torch.stack([states, entering], dim=1).view(-1, states.shape[1])
        return self.fused(both, 0, 2)

    def step(self, inputs: Tensor, position: int) -> Tensor:
        """Compute one position of every frame. torch's results have the rows of a full tile."""
        if self.decoder.kernels is not None:
            return self.fused(inputs, position, 1)
        frames, device = len(inputs), inputs.device
        blocks = torch.tensor([self.blocks(frame)[position // BLOCK_SIZE] for frame in range(frames)], device=device)
        offsets = torch.full((frames,), position % BLOCK_SIZE, device=device)
        lengths = torch.full((frames,), position + 1, device=device)
        attend = GeneratedAttention(self.pool, blocks, offsets, self.tables(frames, position), lengths)
        padded = torch.nn.functional.pad(inputs, (0, 0, 0, GENERATED_ROWS - frames))
        return self.decoder.forward(padded, torch.full((GENERATED_ROWS,), position, device=device), attend)

    def fused(self, inputs: Tensor, start: int, count: int) -> Tensor:
        """Compute `count` positions of every frame; return the results of the last."""
        frames = len(inputs) // count
        spans = [TileSpan(start, count, self.blocks(frame)) for frame in range(frames)]
        tile = KernelTile(self.pool, spans, self.decoder.dtype)
        return self.decoder.forward_fused(inputs, tile, range(count - 1, len(inputs), count))

    def blocks(self, frame: int) -> list[int]:
        return list(range(1 + frame * self.per_frame, 1 + (frame + 1) * self.per_frame))

    def tables(self, frames: int, position: int) -> Tensor:
        """The blocks that each frame reads, padded with block 0: int64 [frames, strips, blocks per strip]."""
        strips, per_strip = position // KEY_STRIP + 1, KEY_STRIP // BLOCK_SIZE
        rows = [self.blocks(frame)[: strips * per_strip] for frame in range(frames)]
        padded = [row + [0] * (strips * per_strip - len(row)) for row in rows]
        return torch.tensor(padded, device=self.pool.device).view(frames, strips, per_strip)

    def draw(self, logits: Tensor, numbers: Sequence[float | None]) -> Tensor:
        """Draw a code from each row of logits: with its number, or the most likely one where it has none."""
        drawn = greedy(logits)
        rows = [row for row, number in enumerate(numbers) if number is not None]
        if rows:
            some = torch.tensor(rows, device=logits.device)
            uniform = torch.tensor([numbers[row] for row in rows], dtype=torch.float64, device=logits.device)
            places = torch.arange(len(rows), device=logits.device)
            drawn[some] = sample(logits[some], self.shaping(len(rows)), places, uniform)
        return drawn

    def shaping(self, rows: int) -> Shaping:
        one = self.sampling
        return Shaping(
            torch.full((rows,), one.temperature, dtype=torch.float64),
            torch.full((rows,), one.top_k, dtype=torch.int64),
            torch.full((rows,), one.top_p, dtype=torch.float64),
            torch.zeros(rows, dtype=torch.float64),
        )
