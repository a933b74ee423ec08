# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts by the kernels."""

from collections.abc import Sequence
from ctypes import pointer
from dataclasses import dataclass

from torch import Tensor

from pontil.gpu_ops.kernels.layer import MlpHalf, Norms, address
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.weights.matrix import Matrix
from pontil.gpu_ops.kernels.weights.structures import (
    NOT_DISPATCHED,
    SIGMOID,
    SOFTMAX,
    ExpertFields,
    MatrixFields,
    MlpFields,
)
from pontil.gpu_ops.parameters.experts import ExpertChoice


@dataclass(frozen=True, slots=True)
class SharedHalf:
    """An expert of every row, which has the norm before, and the product that makes a row's factor, if there is one,
    float32."""

    mlp: MlpHalf
    gate: Matrix | None = None


@dataclass(frozen=True, slots=True)
class OwnExperts:
    """The experts of one rank, without norms, from number `first` on, the whole of each. The ranks exchange the results
    of all, or each makes a `partial` sum of its own ones' results, to which the others' are added, or rows are
    `dispatched`: a rank has SHARES of them, or OWN_TILES, and sends them to the ranks that hold their experts."""

    halves: Sequence[MlpHalf]
    first: int
    partial: bool = False
    dispatched: int = NOT_DISPATCHED


class ExpertHalf:
    """`result += after(sum of rating * expert, + shared expert)` of `before(x)`, where each row has its own experts.

    `router` is float32. A rank of several has some of the experts, and its part of the `shared` one."""

    def __init__(
        self,
        library: KernelLibrary,
        choice: ExpertChoice,
        router: Matrix,
        experts: OwnExperts,
        norms: Norms,
        shared: SharedHalf | None = None,
    ) -> None:
        self.library = library
        halves = (MlpFields * len(experts.halves))(*(expert.fields for expert in experts.halves))
        self.held = (choice, router, experts, halves, norms, shared)
        self.fields = ExpertFields(
            router.fields, MatrixFields() if shared is None or shared.gate is None else shared.gate.fields,
            MlpFields() if shared is None else shared.mlp.fields, halves, address(norms.before), address(norms.after),
            address(choice.bias), norms.epsilon, choice.factor, router.inputs, choice.count, experts.first, len(halves),
            choice.per_token, SIGMOID if choice.sigmoid else SOFTMAX, choice.normalize, choice.groups,
            choice.kept_groups, choice.group_best, experts.partial, experts.dispatched,
        )  # fmt: skip

    @property
    def pointers(self) -> dict[str, object]:
        return {"experts": pointer(self.fields)}

    def __call__(self, x: Tensor, result: Tensor) -> None:
        self.library.expert_half(self.fields, x, result)
