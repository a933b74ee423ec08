# SPDX-License-Identifier: Apache-2.0
"""Models whose tensors are not on the CPU: their layers start kernels, and the host reads nothing. Tensors of the
device "meta" have shapes and no numbers, so that a read raises."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import VOCAB, hugging_model, read_model
from torch import Tensor

from pontil.gpu_ops.parameters.attention import LayerAttention
from pontil.gpu_ops.parameters.rotary import HeadTurn
from pontil.gpu_ops.rotary import turn_heads
from pontil.gpu_ops.triton import launch
from pontil.runtime.models.model import Model
from pontil.runtime.models.partition import Arithmetic
from pontil.runtime.models.weights import Weights

EXPERTS = {"choose_kernel", "sort_kernel", "gate_up_kernel", "down_kernel", "add_kernel"}
COMMON = {"rms_norm_kernel", "add_rms_norm_kernel", "turn_kernel", "gated_kernel"}


class Recorder:
    """Counts the kernels that would be started, and the sizes of their grids."""

    def __init__(self) -> None:
        self.started: Counter[str] = Counter()
        self.grids: list[launch.Grid] = []

    def __call__(self, kernel: Any, grid: launch.Grid, arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
        assert all(one.device.type == "meta" for one in arguments if isinstance(one, Tensor)), kernel
        self.started[kernel.fn.__name__] += 1
        self.grids.append(grid)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(launch, "starter", made)
    return made


def attend(layer: LayerAttention, q: Tensor, k: Tensor, v: Tensor | None, turn: HeadTurn | None = None) -> Tensor:
    return torch.empty_like(q if turn is None else turn_heads(q, k, turn)[0])


def forward(model: Model, rows: int) -> Tensor:
    ids = torch.zeros(rows, dtype=torch.int64, device="meta")
    return model.logits(model.forward(ids, ids, attend))


@pytest.mark.parametrize(
    ("name", "more"),
    [("gemma3_text", set()), ("glm4", set()), ("qwen3_moe", EXPERTS), ("gpt_oss", EXPERTS),
     ("deepseek_v3", EXPERTS | {"product_kernel"})],
)  # fmt: skip
def test_a_layer_starts_kernels_and_reads_nothing(
    name: str, more: set[str], recorder: Recorder, tmp_path: Path
) -> None:
    hugging_model(name).save_pretrained(tmp_path)
    model = read_model(tmp_path, torch.bfloat16, "meta")
    for rows in (1, 70):
        recorder.started.clear()
        assert forward(model, rows).shape == (rows, VOCAB)
        assert COMMON | more >= set(recorder.started) >= (COMMON | more) - {"gated_kernel"}
        # All rows and all experts together: none of them has a kernel of its own.
        assert recorder.started["gate_up_kernel"] <= model.config.num_layers
    assert all(min(grid) > 0 for grid in recorder.grids)


@pytest.mark.parametrize(("deterministic", "expected"), [(False, {"mm"}), (True, {"product_kernel"})])
def test_the_head_is_one_product_of_the_library_unless_it_is_deterministic(
    deterministic: bool, expected: set[str], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set[str]()
    multiply = torch.mm

    def noted(*given: Any, **named: Any) -> Tensor:
        seen.add("mm")
        assert given[0].dtype == torch.bfloat16 and named == {"out_dtype": torch.float32}
        return multiply(*given, **named)

    monkeypatch.setattr(torch, "mm", noted)
    weights = Weights(iter([]), torch.device("meta"), torch.bfloat16, arithmetic=Arithmetic(deterministic))
    head = weights.product_of_numbers(torch.empty(40, 24, dtype=torch.bfloat16, device="meta"))
    made = head(torch.empty(3, 24, device="meta"))
    assert made.shape == (3, 40) and made.dtype == torch.float32
    assert seen | set(recorder.started) == expected


def test_a_deterministic_product_is_computed_by_a_kernel(recorder: Recorder) -> None:
    device, x = torch.device("meta"), torch.empty(3, 24, device="meta")
    for deterministic in (False, True):
        tensors, arithmetic = iter([("a.weight", torch.ones(8, 24))]), Arithmetic(deterministic)
        weights = Weights(tensors, device, torch.float32, arithmetic=arithmetic)
        assert weights.linear(24, ("a", 8))(x).shape == (3, 8)
        assert recorder.started["product_kernel"] == deterministic
