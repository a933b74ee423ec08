# SPDX-License-Identifier: Apache-2.0
"""Functions of other packages that steps use, and no machine without a GPU has: they check what the real ones do.

FlashInfer: flashinfer/sampling.py of the wheel flashinfer-python 0.7.2.post1, the checks of data/csrc/renorm.cu
(CHECK_INPUT: contiguous, on the device) and data/csrc/sampling_utils.h, and the thresholds of
data/include/flashinfer/topk.cuh: what is not less than the last that stays, stays.
torch: `_scaled_mm` and `_grouped_mm` have their schemas, and most of their checks, on every device (torch 2.13,
torch/_meta_registrations.py). Those of CUDA alone are of aten/src/ATen/native/cuda/ScaledBlas.cpp (at 0174dfab) and
GroupedBlas.cpp (at 00d4eaf9).
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from attention_packages import known
from torch import Tensor

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class FakeSampling:
    """The module flashinfer.sampling. By number some more stay than was asked for, and of mass some less: faults."""

    def __init__(self, more: int = 0, less: float = 0.0) -> None:
        self.more, self.less, self.calls = more, less, list[str]()

    @property
    def package(self) -> Any:
        return SimpleNamespace(sampling=self)

    def top_k_mask_logits(self, logits: Tensor, top_k: Tensor) -> Tensor:
        self.check("top_k_mask_logits", logits, top_k)
        assert logits.dtype in FLOATS and top_k.dtype == torch.int32
        if not known(logits):
            return torch.empty_like(logits) + top_k.unsqueeze(1)
        assert (top_k > 0).all()
        made = logits.clone()
        for row, count in enumerate((top_k + self.more).clamp(max=logits.shape[1]).tolist()):
            made[row][logits[row] < logits[row].topk(count).values[-1]] = -torch.inf
        return made

    def top_p_renorm_probs(self, probs: Tensor, top_p: Tensor, is_deterministic: bool = False) -> Tensor:
        self.check("top_p_renorm_probs", probs, top_p)
        assert probs.dtype == torch.float32 and is_deterministic
        if not known(probs):
            return torch.empty_like(probs) + top_p.unsqueeze(1)
        ordered = probs.sort(-1, descending=True).values
        before = ordered.cumsum(-1) - ordered
        count = (before < (top_p - self.less).unsqueeze(1)).sum(-1, keepdim=True).clamp(min=1)
        kept = probs * (probs >= ordered.gather(1, count - 1))
        return kept / kept.sum(-1, keepdim=True)

    def check(self, name: str, rows: Tensor, numbers: Tensor) -> None:
        """Demand what CHECK_INPUT and check_tensor_param do."""
        self.calls.append(name)
        assert rows.dim() == 2 and rows.is_contiguous() and numbers.shape == rows.shape[:1]
        assert numbers.device == rows.device


def scaled_mm(rows: Tensor, weight: Tensor, *, scale_a: Tensor, scale_b: Tensor, bias: Any, out_dtype: Any) -> Tensor:
    """torch._scaled_mm as CUDA has it, by rows."""
    assert rows.stride() == (rows.shape[1], 1) and weight.stride() == (1, weight.shape[0]), "row-major by column-major"
    assert rows.shape[1] % 16 == 0 and weight.shape[1] % 16 == 0
    assert scale_a.shape == (len(rows), 1) and scale_b.shape == (1, weight.shape[1])
    assert scale_a.is_contiguous() and scale_b.is_contiguous() and scale_a.dtype == scale_b.dtype == torch.float32
    assert bias is None or (bias.dtype == out_dtype and bias.numel() == weight.shape[1])
    assert {one.device for one in (weight, scale_a, scale_b)} == {rows.device} and out_dtype == torch.bfloat16
    made: Tensor = torch.ops.aten._scaled_mm(rows, weight, scale_a, scale_b, bias, None, out_dtype)
    return made


def grouped_mm(rows: Tensor, weights: Tensor, *, offs: Tensor) -> Tensor:
    """torch._grouped_mm as its kernel has it: ends of groups are read on the device alone."""
    assert rows.dim() == 2 and weights.dim() == 3 and rows.dtype == weights.dtype == torch.bfloat16
    assert rows.stride(1) == 1 and weights.stride(1) == 1 and rows.stride(0) % 8 == weights.stride(2) % 8 == 0
    assert offs.dtype == torch.int32 and offs.shape == weights.shape[:1] and offs.device == rows.device
    made: Tensor = torch.ops.aten._grouped_mm(rows, weights, offs)
    return made


STRICT: dict[str, Callable[..., Tensor]] = {"_scaled_mm": scaled_mm, "_grouped_mm": grouped_mm}
