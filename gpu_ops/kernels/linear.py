# SPDX-License-Identifier: Apache-2.0
"""Single products by the kernels."""

from torch import Tensor

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.weights.matrix import Matrix
from pontil.gpu_ops.parameters.draws import RankedRows
from pontil.gpu_ops.products.linear import Linear


class PackedLinear:
    """`y = x W^T + b` like `Linear`, with sums in float32, and always batch-invariant."""

    def __init__(self, library: KernelLibrary, matrix: Matrix) -> None:
        self.library, self.matrix = library, matrix

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply x [rows, inputs]; the result has the same dtype."""
        return self.library.linear(self.matrix, x.float()).to(x.dtype)


class Head:
    """The last norm and the vocabulary's projection: `y = (x / rms(x) * weight) W^T`, and the highest of each row."""

    def __init__(self, library: KernelLibrary, matrix: Matrix, norm: Tensor | None, epsilon: float) -> None:
        """norm float32 [inputs], a multiple of 16, or None where there is none."""
        self.library, self.matrix, self.epsilon = library, matrix, epsilon
        self.norm = None if norm is None else norm.contiguous()

    def __call__(self, x: Tensor) -> tuple[Tensor, RankedRows]:
        """Map x float32 [rows, inputs] to logits float32 [rows, outputs]."""
        return self.library.head(self.matrix, x, self.norm, self.epsilon)


Product = Linear | PackedLinear


def matrix_of(product: Product) -> Matrix:
    assert isinstance(product, PackedLinear)
    return product.matrix
