# SPDX-License-Identifier: Apache-2.0
"""Products in which what the ranks of a worker have divided comes together again."""

from dataclasses import dataclass

from torch import Tensor

from pontil.gpu_ops.collectives.communicator import Communicator
from pontil.gpu_ops.kernels.linear import Product


@dataclass(frozen=True, slots=True)
class JoiningProduct:
    """A product of columns that each rank has a part of, whose results all ranks have. A rank makes some of the
    results, of all columns, or if it is `partial` a part of each, of its own columns. `deterministic` sums are added in
    the order of ranks on every device."""

    product: Product
    communicator: Communicator
    partial: bool
    deterministic: bool

    def __call__(self, part: Tensor) -> Tensor:
        """Map this rank's columns [rows, columns] to whole results [rows, outputs]."""
        if self.partial:
            return self.communicator.all_reduce(self.product(part), self.deterministic)
        gather = self.communicator.gather_columns
        return gather(self.product(gather(part)))
