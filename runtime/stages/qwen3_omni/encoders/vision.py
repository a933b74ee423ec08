# SPDX-License-Identifier: Apache-2.0
"""The encoder of images: patches to rows, and for the Thinker's first layers rows that are added to its own."""

import torch
from torch import Tensor

from pontil.gpu_ops.rotary import rotary_frequencies
from pontil.runtime.models.layers.rotary import Angles
from pontil.runtime.models.weights import Weights
from pontil.runtime.stages.qwen3_omni.encoders.config import VisionConfig
from pontil.runtime.stages.qwen3_omni.encoders.layers import (
    IMAGES,
    RowProduct,
    TowerLayer,
    TowerNorm,
    rows_linear,
)

# Times, lines and columns of patches.
Grid = tuple[int, int, int]


class PatchMerger:
    """The patches of a square to one row. They are normed one by one, or as one."""

    def __init__(self, config: VisionConfig, name: str, weights: Weights, as_one: bool) -> None:
        self.whole, self.as_one = config.sizes.hidden_size * config.merge**2, as_one
        self.norm = TowerNorm(weights, f"{name}.ln_q", self.whole if as_one else config.sizes.hidden_size, IMAGES.eps)
        self.first = rows_linear(weights, self.whole, (f"{name}.mlp.0", self.whole))
        self.second = rows_linear(weights, self.whole, (f"{name}.mlp.2", config.output_size))

    def __call__(self, x: Tensor) -> Tensor:
        rows = self.norm(x.view(-1, self.whole) if self.as_one else x).view(-1, self.whole)
        return self.second(torch.nn.functional.gelu(self.first(rows)))


class VisionEncoder:
    """Layers over the patches of a picture, which see one another, with the positions of lines and columns. It holds no
    state."""

    def __init__(self, config: VisionConfig, weights: Weights) -> None:
        self.config, self.device, sizes = config, weights.device, config.sizes
        self.mergers = [
            PatchMerger(config, f"merger_list.{index}", weights, as_one=True)
            for index in range(len(config.deep_layers))
        ]
        self.spread = self.take_spread(weights)
        self.places = weights.take("pos_embed.weight", config.side**2, sizes.hidden_size, dtype=torch.float32)
        self.layers = [TowerLayer(IMAGES, sizes, f"blocks.{index}.", weights) for index in range(sizes.num_layers)]
        self.merger = PatchMerger(config, "merger", weights, as_one=False)
        self.frequencies = rotary_frequencies(sizes.head_dim // 2, config.rope_theta).to(self.device)
        weights.finish()

    def take_spread(self, weights: Weights) -> RowProduct:
        """Take the convolution of patches, which is a product: none of them overlap."""
        patch, hidden, name = self.config.patch, self.config.sizes.hidden_size, "patch_embed.proj"
        shape = hidden, 3, self.config.pictures, patch, patch
        made = weights.product(
            name, lambda: (weights.read(f"{name}.weight", *shape).flatten(1), weights.read(f"{name}.bias", hidden))
        )
        return RowProduct(made, weights.dtype)

    @torch.inference_mode()
    def encode(self, patches: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
        """Return the rows, float32 [rows, output_size], of an image's patches, float32 [patches, numbers_of_patch],
        and those for the Thinker's first layers, float32 [layers, rows, output_size].

        The patches of a square that makes a row follow one another, line by line; so do the squares."""
        times, lines, columns = grid
        places = square_places(lines, columns, self.config.merge).to(self.device)
        hidden = self.spread(patches) + self.learned_places(places, lines, columns).repeat(times, 1)
        angles = self.angles(places.repeat(times, 1))
        deep = list[Tensor]()
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, [lines * columns] * times, angles)
            if index in self.config.deep_layers:
                deep.append(self.mergers[len(deep)](hidden))
        rows = self.merger(hidden)
        return rows, torch.stack(deep) if deep else rows.new_zeros(0, *rows.shape)

    def learned_places(self, places: Tensor, lines: int, columns: int) -> Tensor:
        """Return the learned positions [patches, hidden_size], drawn out over this image: a mean of four each."""
        side = self.config.side
        made = torch.zeros(len(places), self.places.shape[1], device=self.device)
        (top, down), (left, right) = (
            stretched(places[:, axis], count, side) for axis, count in enumerate((lines, columns))
        )
        for line, weight in ((top, 1 - down), (torch.clamp(top + 1, max=side - 1), down)):
            for column, share in ((left, 1 - right), (torch.clamp(left + 1, max=side - 1), right)):
                made += (weight * share).unsqueeze(1) * self.places[line * side + column]
        return made

    def angles(self, places: Tensor) -> Angles:
        """Return the angles of patches at these lines and columns, [patches, 2]: half of them turn by the one, half by
        the other."""
        angles = (places.unsqueeze(2) * self.frequencies).flatten(1)
        return angles.cos(), angles.sin()


def square_places(lines: int, columns: int, merge: int) -> Tensor:
    """Return the line and the column of each patch of a picture, int64 [patches, 2], in the order of the patches."""
    places = torch.stack(torch.meshgrid(torch.arange(lines), torch.arange(columns), indexing="ij"), dim=-1)
    squares = places.view(lines // merge, merge, columns // merge, merge, 2)
    return squares.transpose(1, 2).reshape(-1, 2)


def stretched(places: Tensor, count: int, side: int) -> tuple[Tensor, Tensor]:
    """Return where places of `count` lie among `side`, ends at ends: the one before, and how far behind it."""
    exact = places.float() * ((side - 1) / (count - 1) if count > 1 else 0.0)
    before = exact.long()
    return before, exact - before
