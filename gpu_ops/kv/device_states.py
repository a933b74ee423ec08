# SPDX-License-Identifier: Apache-2.0
"""The states of recurrent layers on a device, computed by kernels. The operations of gpu_ops/recurrence.py, on the
pieces of TileStates, are their reference."""

from torch import Tensor

from pontil.gpu_ops.parameters.recurrent import RecurrentSizes, StateTile
from pontil.gpu_ops.recurrence import NORM_EPSILON


class DeviceStates:
    """The states of the sequences of a tile, in a pool float32 [block, number]. All that is started follows from
    shapes: it can be recorded once and started again for other numbers in the same memory."""

    def __init__(self, pool: Tensor, tile: StateTile) -> None:
        self.pool, self.tile = pool, tile

    def of(self, layer: int, sizes: RecurrentSizes) -> Tensor:
        """The states of layer number `layer`."""
        numbers = sizes.matrices + (sizes.width - 1) * sizes.channels
        return self.pool[:, layer * numbers : (layer + 1) * numbers]

    def gated_delta(
        self, layer: int, sizes: RecurrentSizes, x: Tensor, weight: Tensor, decay: Tensor, strength: Tensor
    ) -> Tensor:
        """The gated delta rule for x [rows, channels] behind its convolution with a weight [channels, width]: float32
        [rows, value_heads, value_dim]. All are float32."""
        from pontil.gpu_ops.triton.per_sequence.recurrent import convolve, recur

        states = self.of(layer, sizes)
        convolved = convolve(x, weight, None, states, self.tile, sizes)
        return recur(convolved, decay, strength, states, self.tile, sizes, NORM_EPSILON)

    def state_space(
        self,
        layer: int,
        sizes: RecurrentSizes,
        x: Tensor,
        channels: tuple[Tensor, Tensor],
        decay: Tensor,
        time: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The state space for x [rows, channels] behind its convolution with a weight [channels, width] and a bias
        [channels], and the values that went into it, both float32 [rows, value_heads, value_dim]."""
        from pontil.gpu_ops.triton.per_sequence.recurrent import convolve, recur

        states = self.of(layer, sizes)
        convolved = convolve(x, *channels, states, self.tile, sizes)
        made = recur(convolved, decay, time, states, self.tile, sizes, None)
        return made, convolved[:, 2 * sizes.keys :].view(made.shape)
