# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts by the kernels."""

from collections.abc import Sequence
from ctypes import pointer
from dataclasses import dataclass

from torch import Tensor

from pontil.gpu_ops.kernels.layer import MlpHalf, Norms, address
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.weights.matrix import Matrix
from pontil.gpu_ops.kernels.weights.structures import SIGMOID, SOFTMAX, ExpertFields, MatrixFields, MlpFields


@dataclass(frozen=True, slots=True)
class ExpertChoice:
    """The choice of experts: `per_token` of `count`. A router's products become scores by softmax, or each by a
    `sigmoid`. `bias` float32 [count] counts for the choice only. Of several `groups`, experts are those of the
    `kept_groups` whose `group_best` experts have the highest sum. Scores are divided by their sum if they are to be
    `normalize`d, and multiplied by `factor`."""

    count: int
    per_token: int
    sigmoid: bool = False
    normalize: bool = True
    bias: Tensor | None = None
    groups: int = 1
    kept_groups: int = 1
    group_best: int = 1
    factor: float = 1.0


class ExpertHalf:
    """`result += after(sum of rating * expert, + shared expert)` of `before(x)`, where each row has its own experts.

    `router` and the `shared_gate` are float32. `experts` have no norms; a rank of several has those from number `first`
    on, the whole of each, and its part of the `shared` expert, which has the norm before."""

    def __init__(
        self,
        library: KernelLibrary,
        choice: ExpertChoice,
        router: Matrix,
        experts: Sequence[MlpHalf],
        first: int,
        norms: Norms,
        shared: MlpHalf | None = None,
        shared_gate: Matrix | None = None,
    ) -> None:
        self.library = library
        own = (MlpFields * len(experts))(*(one.fields for one in experts))
        self.held = (choice, router, tuple(experts), own, norms, shared, shared_gate)
        self.fields = ExpertFields(
            router.fields, MatrixFields() if shared_gate is None else shared_gate.fields,
            MlpFields() if shared is None else shared.fields, own, address(norms.before), address(norms.after),
            address(choice.bias), norms.epsilon, choice.factor, router.inputs, choice.count, first, len(experts),
            choice.per_token, SIGMOID if choice.sigmoid else SOFTMAX, choice.normalize, choice.groups,
            choice.kept_groups, choice.group_best,
        )  # fmt: skip

    @property
    def pointers(self) -> dict[str, object]:
        return {"experts": pointer(self.fields)}

    def __call__(self, x: Tensor, result: Tensor) -> None:
        self.library.expert_half(self.fields, x, result)
