# SPDX-License-Identifier: Apache-2.0
"""The Talker beside its decoder: projections of the Thinker's states, the other codes of a frame, and the input that
follows it.

The decoder (`qwen3_omni_moe_talker_text` in the table of architectures) is an ordinary Model, which an engine runs over
embeddings. For each of its steps a stage makes these calls:

1. The engine computes the input rows and draws the first code of each frame from the logits, without the ids of
   `config.suppressed`. If it is the decoder's end token, speech ends, and that code makes no frame.
2. `frames(states, first, numbers)` gives the frames, which go to Code2Wav, and their embeddings. `states` are
   `decoder.normed` of the rows from which the first codes were drawn.
3. The next input row is a frame's embedding plus `TalkerInput.text(n)`, for frame number n from 0 on. While the latter
   is None, the Thinker is behind, and the row has to wait.

A code that was drawn last because a limit was reached makes no frame in the reference implementation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pontil.gpu_ops.elementwise import apply
from pontil.gpu_ops.products.full_tiles import in_full_tiles
from pontil.runtime.errors import ModelError
from pontil.runtime.models.layers.fused_block import kernels_fit
from pontil.runtime.models.model import Model
from pontil.runtime.models.partition import PANEL
from pontil.runtime.models.weights import Weights
from pontil.runtime.stages.qwen3_omni.code_predictor import CodePredictor, FrameNumbers, PredictorDecoder
from pontil.runtime.stages.qwen3_omni.config import TalkerConfig


class Projection:
    """An MLP from the Thinker's states to the Talker's, batch-invariant for any number of rows."""

    def __init__(self, config: TalkerConfig, name: str, weights: Weights) -> None:
        inner, outer = config.decoder.intermediate_size, config.decoder.hidden_size
        self.up = weights.linear(config.thinker_size, (f"{name}.linear_fc1", inner), bias=True)
        self.down = weights.linear(inner, (f"{name}.linear_fc2", outer), bias=True)
        self.dtype, self.by_kernels = weights.dtype, weights.kernels is not None

    def __call__(self, states: Tensor) -> Tensor:
        """Map float32 [rows, thinker_size] to float32 [rows, hidden_size]."""
        return self.project(states) if self.by_kernels else in_full_tiles(self.project, states)

    def project(self, states: Tensor) -> Tensor:
        return self.down(apply(F.silu, self.up(states.to(self.dtype)))).float()


@dataclass(frozen=True, slots=True)
class TextMarks:
    """The projected embeddings that mark the text's begin, its end, and its absence, each float32 [hidden_size]."""

    begin: Tensor
    end: Tensor
    padding: Tensor


class Talker:
    """A decoder and the parts beside it, all of one device and one type of weights."""

    def __init__(self, config: TalkerConfig, decoder: Model, predictor: CodePredictor, weights: Weights) -> None:
        """`weights` are those of the projections and of the text's marks."""
        self.config, self.decoder, self.predictor = config, decoder, predictor
        self.project_text = Projection(config, "text_projection", weights)
        self.project_hidden = Projection(config, "hidden_projection", weights)
        marks = weights.take("text_marks", 3, config.thinker_size).float()
        weights.finish()
        with torch.inference_mode():
            self.marks = TextMarks(*self.project_text(marks))

    @torch.inference_mode()
    def frames(self, states: Tensor, first: Tensor, numbers: Sequence[FrameNumbers]) -> tuple[Tensor, Tensor]:
        """Return the codes int64 [frames, groups] of frames with these first codes, int64 [frames], and the frames'
        embeddings, float32 [frames, hidden_size]: the sum of their codes'. Other arguments are those of
        `CodePredictor.complete`."""
        embedded = self.decoder.embed(first)
        codes = self.predictor.complete(states, first, embedded, numbers)
        for group in range(1, self.config.groups):
            embedded = embedded + self.predictor.decoder.embed_codes(codes[:, group], group)
        return codes, embedded

    @torch.inference_mode()
    def embed_frame(self, codes: Sequence[int]) -> Tensor:
        """Return the embedding of a frame, as `frames` returns it, float32 [hidden_size]."""
        given = torch.tensor([codes], dtype=torch.int64, device=self.decoder.device)
        embedded = self.decoder.embed(given[:, 0])
        for group in range(1, self.config.groups):
            embedded = embedded + self.predictor.decoder.embed_codes(given[:, group], group)
        return embedded[0]


def build_talker(config: TalkerConfig, decoder: Model, predictor: Weights, projections: Weights) -> Talker:
    """Build a Talker around its decoder, from the weights of its other parts. Raises ModelError for weights that are
    missing, or that the kernels cannot compute."""
    sizes = (config.thinker_size, config.decoder.intermediate_size)
    if predictor.kernels is not None and not (
        kernels_fit(config.predictor, predictor.dtype) and all(size % PANEL == 0 for size in sizes)
    ):
        raise ModelError(f"the kernels cannot compute this Talker in {predictor.dtype}: use --kernels torch")
    completing = CodePredictor(PredictorDecoder(config.predictor, config.groups, predictor), config.groups)
    return Talker(config, decoder, completing, projections)
