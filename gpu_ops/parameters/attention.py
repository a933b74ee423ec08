# SPDX-License-Identifier: Apache-2.0
"""The parameters of one layer's attention, as everything that computes it takes them."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LayerAttention:
    """The attention of layer number `layer` of a pool.

    `scale` multiplies the product of a query and a key. With a `window` a query sees at most that many positions, its
    own being the last. With `sinks` float32 [heads] each head has a score more, of no key: what it weighs is taken from
    the keys. Where keys are the values, the result has their first `value_dim` numbers (None: all).
    """

    layer: int
    scale: float
    window: int | None = None
    sinks: Tensor | None = None
    value_dim: int | None = None
