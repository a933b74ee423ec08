# SPDX-License-Identifier: Apache-2.0
"""States within a forward pass, for another model that reads them."""

from torch import Tensor


class HiddenStates:
    """Receives the states of all rows of a tile, each float32 [rows, hidden_size]: `embedding`, by which they enter the
    first layer, and `hidden`, after the first `layers` layers, which are fewer than the model has.

    Like all results of the model, a row's are batch-invariant. A later pass replaces them.
    """

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self.embedding: Tensor | None = None
        self.hidden: Tensor | None = None

    def record(self, layer: int, entering: Tensor) -> None:
        """Take the rows that enter layer number `layer`, if they are wanted. Copies: a layer may change its input."""
        if layer == 0:
            self.embedding = entering.clone()
        if layer == self.layers:
            self.hidden = entering.clone()
