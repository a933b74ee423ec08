# SPDX-License-Identifier: Apache-2.0
"""The tensors of a checkpoint, handed out by name, each exactly once and in the shape the architecture expects."""

from collections.abc import Iterable

import torch
from torch import Tensor

from pontil.gpu_ops.kernels.library import Library
from pontil.gpu_ops.kernels.linear import PackedLinear, Product
from pontil.gpu_ops.kernels.matrix import Matrix, alternate
from pontil.gpu_ops.linear import Linear
from pontil.runtime.errors import ModelError


class Weights:
    """A model takes what it needs; `finish` then says what nobody took. Tensors are moved to `device` and `dtype`.

    With `kernels`, products are laid out for these; the model they are for must fit them.
    """

    def __init__(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        device: torch.device,
        dtype: torch.dtype,
        kernels: Library | None = None,
    ) -> None:
        self.left = dict(tensors)
        self.device = device
        self.dtype = dtype
        self.kernels = kernels
        self.missing: list[str] = []

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor of that name. A missing one is noted and stands in as zeros, so that `finish` names them all."""
        tensor = self.left.pop(name, None)
        if tensor is None:
            self.missing.append(name)
            return torch.zeros(shape)
        if tensor.shape != shape:
            raise ModelError(
                f"the tensor {name} has shape {list(tensor.shape)}, the configuration asks for {list(shape)}"
            )
        return tensor.to(device=self.device, dtype=dtype or self.dtype)

    def linear(self, inputs: int, *parts: tuple[str, int], bias: bool = False) -> Product:
        """One product for several weights with the same input, stacked in the given order of (name, outputs).

        A part's tensors are `name.weight` and, where there are biases, `name.bias`.
        """
        weight = torch.cat([self.take(f"{name}.weight", outputs, inputs) for name, outputs in parts])
        return self.product(weight, torch.cat([self.take(f"{name}.bias", n) for name, n in parts]) if bias else None)

    def gate_and_up(self, inputs: int, gate: str, up: str, outputs: int) -> Product:
        """Gates and ups in one product: side by side, or as the kernels want them."""
        if self.kernels is None:
            return self.linear(inputs, (gate, outputs), (up, outputs))
        both = (self.take(f"{name}.weight", outputs, inputs) for name in (gate, up))
        return self.product(alternate(*both))

    def product(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        return Linear(weight, bias) if self.kernels is None else PackedLinear(self.kernels, Matrix(weight, bias))

    def finish(self) -> None:
        """Raises ModelError when a tensor was missing or is left over."""
        if self.missing:
            missing = ", ".join(self.missing)
            raise ModelError(f"the checkpoint lacks {missing}: it is incomplete or of another architecture")
        if self.left:
            raise ModelError(f"the checkpoint has tensors this architecture does not know: {', '.join(self.left)}")
