# SPDX-License-Identifier: Apache-2.0
"""Matrix products with a weight that never changes, laid out once for the device that runs them."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from pontil.gpu_ops.triton.device_weights import DeviceWeights


class Addition(Protocol):
    """Something added to the results of a product for some of its rows."""

    def add(self, x: Tensor, made: Tensor) -> Tensor:
        """Add to `made` [rows, outputs], which was made of x [rows, inputs]."""


class Linear:
    """`y = x W^T + b` for W of shape [out, in], x of shape [rows, in].

    On a CPU, weights are reordered once into oneDNN's own layout, which takes a half to two thirds off the time of a
    few rows; the original is not kept. The library decides whether a row's bits depend on the number of rows: see
    `batch_invariance`. On a GPU a `deterministic` product is computed by a kernel of our own, with which they do not;
    on a CPU the word changes nothing.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, deterministic: bool = False) -> None:
        self.out_features, self.in_features = weight.shape
        self.dtype = weight.dtype
        self.device = weight.device
        self.bias, self.deterministic = bias, deterministic
        self.adapters: Addition | None = None
        self.packed = can_pack(weight)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight) if self.packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        made = self.multiply(x)
        return made if self.adapters is None else self.adapters.add(x, made)

    def multiply(self, x: Tensor) -> Tensor:
        """The product without adapters."""
        if self.packed:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
            return product
        if self.has_invariant_rows:
            return self.by_kernel(x)
        return F.linear(x, self.weight, self.bias)

    @property
    def has_invariant_rows(self) -> bool:
        """Return whether a row's bits are known not to depend on the number of rows."""
        return self.deterministic and self.device.type != "cpu"

    @property
    def on_device(self) -> DeviceWeights:
        """The weight and its bias as kernels for devices read them."""
        return DeviceWeights(self.weight, self.bias)

    @property
    def as_numbers(self) -> DeviceWeights:
        """The same, with a weight of numbers of its type."""
        return DeviceWeights(self.weight, self.bias)

    def by_kernel(self, x: Tensor) -> Tensor:
        from pontil.gpu_ops.triton import products

        return products.product(x, self.on_device, by_rows=not self.deterministic)

    def twin(self, weight: Tensor) -> "Linear":
        """A product with another weight of the same shape, computed in the same way: with a bias if this one has a
        bias."""
        return Linear(weight, None if self.bias is None else torch.zeros_like(self.bias), self.deterministic)


class NumbersLinear(Linear):
    """`y = x W^T` for x float32 and W of 16 bits on a GPU, nearly as exact as in float32: a row is multiplied as the
    sum of two of 16 bits, about 17 bits of each number where W is bfloat16, all rows in one product of the library,
    which reads the weights once. A `deterministic` product is a kernel's, which does the same in tiles of one size. So
    is that of AMD: torch documents the other for CUDA alone."""

    def multiply(self, x: Tensor) -> Tensor:
        if self.deterministic or torch.version.hip is not None:
            return self.by_kernel(x)
        return added_halves(torch.mm(halves(x, self.dtype), self.weight.t(), out_dtype=torch.float32))


def halves(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows float32 [rows, inputs] in a type of 16 bits, and behind them the rest of each, [2 * rows, inputs]."""
    high = x.to(dtype)
    return torch.cat((high, (x - high).to(dtype)))


def added_halves(made: Tensor) -> Tensor:
    """The sum of the results for `halves`, in memory of its own: theirs is free when they are."""
    high, low = made.chunk(2)
    return high + low


def can_pack(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
