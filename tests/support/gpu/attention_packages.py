# SPDX-License-Identifier: Apache-2.0
"""Packages of attention that are not there: their functions take the arguments that the real ones document, check what
those check, and compute by loops in torch.

FlashAttention-3: `flash_attn_with_kvcache` of hopper/flash_attn_interface.py and the checks of `mha_fwd` in
hopper/flash_api.cpp, github.com/Dao-AILab/flash-attention at 0251105a (2026-08-15), version 3.0.0.
FlashInfer: flashinfer/decode.py and flashinfer/prefill.py of the wheel flashinfer-python 0.7.2.post1, and the checks of
strides in flashinfer/data/csrc/batch_decode.cu.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Masking:
    """The scale of scores; queries are the last positions of their keys, which come from `left` positions before."""

    scale: float
    causal: bool
    left: int


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Masking) -> Tensor:
    """Queries [queries, heads, dim] over keys [keys, KV heads, dim] in float32. A query that sees nothing is zeros."""
    group = q.shape[1] // k.shape[1]
    k, v = (one.float().repeat_interleave(group, 1) for one in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), k) * mask.scale
    own = torch.arange(len(k) - len(q), len(k)).view(-1, 1)
    seen, keys = torch.ones(len(q), len(k), dtype=torch.bool), torch.arange(len(k)).view(1, -1)
    if mask.causal:
        seen &= keys <= own
    if mask.left >= 0:
        seen &= keys >= own - mask.left
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num()
    return torch.einsum("hqk,khd->qhd", weights, v).to(q.dtype)


def known(one: Tensor) -> bool:
    """Return whether a tensor has numbers: those of a pretend device have none."""
    return type(one) is Tensor and one.device.type == "cpu"


class PlainHost:
    """The host of a device that is the host."""

    def numbers(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.int32)

    def mark(self) -> Any:
        return SimpleNamespace(wait=lambda: None)


class FakeFlashAttention:
    """The module flash_attn_interface. `skew` is the number of last positions that no query sees: a fault. `types` are
    those of numbers; with more than the real ones tokens can be compared."""

    def __init__(self, skew: int = 0, types: Sequence[torch.dtype] = HALVES) -> None:
        self.skew, self.types = skew, types

    def flash_attn_with_kvcache(
        self,
        q: Any,
        k_cache: Any,
        v_cache: Any,
        k: Any = None,
        v: Any = None,
        qv: Any = None,
        rotary_cos: Any = None,
        rotary_sin: Any = None,
        cache_seqlens: Any = None,
        cache_batch_idx: Any = None,
        cache_leftpad: Any = None,
        page_table: Any = None,
        cu_seqlens_q: Any = None,
        cu_seqlens_k_new: Any = None,
        max_seqlen_q: Any = None,
        rotary_seqlens: Any = None,
        q_descale: Any = None,
        k_descale: Any = None,
        v_descale: Any = None,
        softmax_scale: Any = None,
        causal: Any = False,
        window_size: Any = (-1, -1),
        attention_chunk: Any = 0,
        softcap: Any = 0.0,
        rotary_interleaved: Any = True,
        scheduler_metadata: Any = None,
        num_splits: Any = 0,
        pack_gqa: Any = None,
        sm_margin: Any = 0,
        return_softmax_lse: Any = False,
    ) -> Tensor:
        self.check(q, k_cache, v_cache, cache_seqlens, page_table, cu_seqlens_q, max_seqlen_q)
        if not known(q):
            return torch.empty_like(q)
        mask = Masking(float(softmax_scale), causal, window_size[0])
        ends = range(len(page_table) + 1) if cu_seqlens_q is None else cu_seqlens_q.tolist()
        rows = q[:, 0] if cu_seqlens_q is None else q
        out = torch.full_like(rows, torch.nan)
        for text, length in enumerate(cache_seqlens.tolist()):
            pages = page_table[text, : -(-length // k_cache.shape[1])].long()
            keys, values = (one[pages].flatten(0, 1)[: max(0, length - self.skew)] for one in (k_cache, v_cache))
            here = slice(ends[text], ends[text + 1])
            out[here] = attend(rows[here], keys, values, mask)
        return out.view_as(q)

    def check(self, q: Any, k: Any, v: Any, lengths: Any, table: Any, starts: Any, longest: Any) -> None:
        """Demand what mha_fwd does."""
        assert q.dtype in self.types and k.dtype == v.dtype == q.dtype
        assert q.stride(-1) == k.stride(-1) == v.stride(-1) == table.stride(-1) == 1
        assert table.dtype == lengths.dtype == torch.int32
        assert k.dim() == v.dim() == 4 and k.shape == v.shape
        batch = len(q) if starts is None else len(starts) - 1
        assert lengths.shape == (batch,) and table.shape[0] == batch
        heads, dim = q.shape[-2:]
        assert heads % k.shape[2] == 0 and dim == k.shape[3] and dim % 8 == 0 and dim <= 256
        if starts is None:
            assert q.dim() == 4
        else:
            assert q.dim() == 3 and starts.dtype == torch.int32 and isinstance(longest, int)


class FakeWrapper:
    """The common part of FlashInfer's wrappers. The division of work is one number, copied from pinned memory to the
    device as the real one is: a run demands that it is its own plan's."""

    def __init__(self, package: "FakeFlashInfer", parts: Tensor, layout: str) -> None:
        assert parts.dtype == torch.uint8 and layout in ("NHD", "HND")
        self.package, self.parts, self.layout = package, parts, layout
        self.division = torch.zeros(16, dtype=torch.int32, device=parts.device)
        self.pinned = package.pinned(16)

    def reset_workspace_buffer(self, float_workspace_buffer: Tensor, int_workspace_buffer: Tensor) -> None:
        assert int_workspace_buffer.dtype == torch.uint8
        self.division = int_workspace_buffer[:64].view(torch.int32)
        self.pinned = self.package.pinned(16)

    def divide(self, numbers: Sequence[Any], options: dict[str, Any]) -> None:
        """Take a plan: the indptr of pages, pages, positions of last pages, then sizes."""
        indptr, pages, last, self.heads, self.kv_heads, self.dim, self.page_size = numbers
        for one in (indptr, pages, last):
            assert one.dtype == torch.int32 and one.is_contiguous()
        assert indptr.device.type == last.device.type == "cpu", "lengths on a device would be waited for"
        assert len(indptr) == len(last) + 1 and len(pages) == int(indptr[-1])
        assert (last >= 1).all() and (last <= self.page_size).all() and (indptr[1:] > indptr[:-1]).all()
        assert self.heads % self.kv_heads == 0
        self.options = options
        self.lengths = ((indptr[1:] - indptr[:-1] - 1) * self.page_size + last).tolist()
        self.host_indptr = indptr.tolist()
        self.package.plans += 1
        self.number = self.package.plans
        self.pinned.fill_(self.number)
        self.division.copy_(self.pinned, non_blocking=True)

    def cache(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        k, v = paged_kv_cache
        assert k.stride() == v.stride() and k.stride(-1) == 1 and k.shape == v.shape and self.layout == "HND"
        assert k.shape[1:] == (self.kv_heads, self.page_size, self.dim) and q.shape[1:] == (self.heads, self.dim)
        assert q.dtype == self.options["q_data_type"] and k.dtype == self.options["kv_data_type"]
        assert q.dtype in self.package.types
        return k, v

    pages_buffer: Tensor

    def compute(self, q: Tensor, starts: Sequence[int], cache: tuple[Tensor, Tensor], causal: bool) -> Tensor:
        if not known(q):
            return torch.empty_like(q) + self.division[0]
        assert int(self.division[0]) == self.number, "another plan was made since"
        mask = Masking(self.options["sm_scale"], causal, self.options["window_left"])
        out = torch.full_like(q, torch.nan)
        for text, length in enumerate(self.lengths):
            pages = self.pages_buffer[self.host_indptr[text] : self.host_indptr[text + 1]].long()
            keys, values = (one.transpose(1, 2)[pages].flatten(0, 1)[:length] for one in cache)
            here = slice(starts[text], starts[text + 1])
            out[here] = attend(q[here], keys, values, mask)
        return out


class FakeDecodeWrapper(FakeWrapper):
    def __init__(
        self,
        package: "FakeFlashInfer",
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
        backend: str = "auto",
        jit_args: Any = None,
    ) -> None:
        super().__init__(package, float_workspace_buffer, kv_layout)
        assert use_cuda_graph and paged_kv_indptr_buffer is not None and paged_kv_last_page_len_buffer is not None
        assert len(paged_kv_indptr_buffer) == len(paged_kv_last_page_len_buffer) + 1
        assert paged_kv_indices_buffer is not None
        self.indptr_buffer, self.last_buffer = paged_kv_indptr_buffer, paged_kv_last_page_len_buffer
        self.pages_buffer = paged_kv_indices_buffer

    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        window_left: int = -1,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
        sm_scale: float | None = None,
    ) -> None:
        assert len(last_page_len) == len(self.last_buffer), "the batch size is fixed"
        assert len(indices) <= len(self.pages_buffer)
        self.indptr_buffer.copy_(indptr, non_blocking=True)
        self.last_buffer.copy_(last_page_len, non_blocking=True)
        assert indices.untyped_storage()._cdata == self.pages_buffer.untyped_storage()._cdata
        numbers = (indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size)
        options = {"window_left": window_left, "sm_scale": sm_scale}
        self.divide(numbers, {**options, "q_data_type": q_data_type, "kv_data_type": kv_data_type})

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        assert len(q) == len(self.last_buffer)
        return self.compute(q, range(len(q) + 1), self.cache(q, paged_kv_cache), causal=False)


class FakePrefillWrapper(FakeWrapper):
    def __init__(
        self,
        package: "FakeFlashInfer",
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
    ) -> None:
        super().__init__(package, float_workspace_buffer, kv_layout)
        assert not use_cuda_graph

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: Any = None,
        packed_custom_mask: Any = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
    ) -> None:
        assert qo_indptr.device.type == "cpu" and len(qo_indptr) == len(paged_kv_indptr) and causal
        self.starts, self.pages_buffer = qo_indptr.tolist(), paged_kv_indices
        numbers = (
            paged_kv_indptr,
            paged_kv_indices,
            paged_kv_last_page_len,
            num_qo_heads,
            num_kv_heads,
            head_dim_qk,
            page_size,
        )
        options = {"window_left": window_left, "sm_scale": sm_scale}
        self.divide(numbers, {**options, "q_data_type": q_data_type, "kv_data_type": kv_data_type})

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        assert len(q) == self.starts[-1], "q has the rows of the plan"
        return self.compute(q, self.starts, self.cache(q, paged_kv_cache), causal=True)


class FakeFlashInfer:
    """The module flashinfer."""

    def __init__(self, pinned: Any = None, types: Sequence[torch.dtype] = HALVES) -> None:
        self.plans, self.types = 0, types
        self.pinned = pinned or (lambda count: torch.zeros(count, dtype=torch.int32))

    def BatchDecodeWithPagedKVCacheWrapper(self, *given: Any, **named: Any) -> FakeDecodeWrapper:  # noqa: N802
        return FakeDecodeWrapper(self, *given, **named)

    def BatchPrefillWithPagedKVCacheWrapper(self, *given: Any, **named: Any) -> FakePrefillWrapper:  # noqa: N802
        return FakePrefillWrapper(self, *given, **named)
