# SPDX-License-Identifier: Apache-2.0
"""Kernels with planted faults, except those of attention, which cases must show."""

from dataclasses import replace

import adapter_cases
import block_cases
import elementwise_cases
import level_cases
import norm_cases
import product_cases
import recurrent_cases
import torch
from faulty_attention import Fault, planted
from ladder import KernelCase, Results

from pontil.gpu_ops.triton import activation, blocks, experts, launch, norm, products, rotary, routing
from pontil.gpu_ops.triton.per_sequence import adapters, recurrent

RIGHT: list[KernelCase] = [
    case
    for module in (
        norm_cases,
        elementwise_cases,
        product_cases,
        level_cases,
        adapter_cases,
        block_cases,
        recurrent_cases,
    )
    for case in module.CASES
]
FAULTS = [
    Fault("divides-by-another-size", "add_rms_norm-3x72-float32-float32", norm, "normed", "/ SIZE +", "/ (SIZE + 1) +",
          (norm,)),
    Fault("leaves-out-a-pair", "rotary-whole", rotary, "turn_kernel", "pair < TURNED // 2", "pair < TURNED // 2 - 1",
          (rotary,)),
    Fault("stores-turned-padding", "rotary-stored-whole", rotary, "turn_and_write_kernel", "slot >= 0", "slot >= -1",
          (rotary,)),
    Fault("stores-keys-for-values", "rotary-stored-whole", rotary, "turn_and_write_kernel", "tl.load(v + row * v_row",
          "tl.load(k + row * v_row", (rotary,)),
    Fault("limits-one-side", "gated-clamped-72-float32", activation, "activated", "tl.maximum(up, -limit)", "up",
          (activation,)),
    Fault("leaves-out-the-last-inputs", "product-plain-3x24x40-float32", products, "multiplied",
          "range(0, INPUTS, BLOCK_K)", "range(0, INPUTS - BLOCK_K + 1, BLOCK_K)", (products,)),
    Fault("reads-behind-the-inputs", "product-plain-3x24x40-float32", products, "numbers_at", "(k < end)", "(k <= end)",
          (products,)),
    Fault("leaves-out-the-rest-of-a-number", "product-head-few", products, "multiplied", "tl.dot(low,",
          "tl.dot(low * 0,", (products,)),
    Fault("takes-another-scale", "product-float8-tiles-2x72x256-float32", products, "factor_tile",
          "start // GROUP)[:, None]", "0)[:, None]", (products,)),
    Fault("takes-the-first-scale", "product-fours-3x24x96-float16", products, "factor_tile",
          "* stride + groups[None, :]", "* stride + 0 * groups[None, :]", (products,)),
    Fault("forgets-offsets", "product-eights-3x24x96-float16", products, "weight_tile", "scale_unit[:, None] + offset",
          "scale_unit[:, None]", (products,)),
    Fault("swaps-halves-of-bytes", "product-float4-2x24x96-float16", products, "weight_tile", "from_float4(bits & 15)",
          "from_float4(bits >> 4)", (products,)),
    Fault("rounds-to-two-bits", "rows-rounded-9x72-float16", products, "to_float8", "exponents - 3", "exponents - 2",
          (products,)),
    Fault("hides-what-is-no-number", "rows-rounded-9x72-float16", products, "round_rows_kernel",
          "+ tl.sum(numbers * 0.0, 0)", "", (products,)),
    Fault("keeps-another-group", "routing-all-ways", routing, "choose_kernel", "tl.static_range(KEPT)",
          "tl.static_range(KEPT - 1)", (routing,)),
    Fault("gives-a-tile-to-another", "experts-plain", experts, "rows_of", "<= tile", "< tile", (experts,)),
    Fault("forgets-a-rating", "experts-added", experts, "add_kernel", "in range(PER_TOKEN)", "in range(PER_TOKEN - 1)",
          (experts,)),
    Fault("leaves-out-a-piece", "adapters-mixed-2100-float32", adapters, "expand_kernel", "tl.static_range(1, PIECES)",
          "tl.static_range(1, PIECES - 1)", (adapters,)),
    Fault("takes-the-ranks-of-another-part", "adapters-mixed-72-float32", adapters, "expand_kernel",
          "(rank_first + r)[None, :])\n        for", "r[None, :])\n        for", (adapters,)),
    Fault("forgets-the-product", "adapters-mixed-72-float32", adapters, "expand_kernel",
          "total += tl.load(out", "total += 0.0 * tl.load(out", (adapters,)),
    Fault("takes-the-first-expert", "adapters-experts-float32", experts, "expanded",
          "expert.to(tl.int64) * rank * SIZE", "0 * rank * SIZE", (experts,)),
    Fault("takes-the-ranks-of-gates", "adapters-experts-float32", experts, "expanded",
          "(rank_first + r)[None, :], mask", "r[None, :], mask", (experts,)),
    Fault("takes-inputs-of-another-sequence", "recurrent-gated-delta", recurrent, "convolve_kernel",
          "(own >= first), inside", "(own >= 0), inside", (recurrent,)),
    Fault("keeps-inputs-from-the-front", "recurrent-gated-delta", recurrent, "keep_kernel", "blocks - 1 - turn", "turn",
          (recurrent,)),
    Fault("forgets-the-block-that-is-full", "recurrent-state-space", recurrent, "recur_kernel",
          "(behind % block_size == 0) | ", "", (recurrent,)),
    Fault("begins-anew", "recurrent-gated-delta-cut", recurrent, "recur_kernel", "(start > 0) & (count > 0)",
          "(start > 7) & (count > 0)", (recurrent,)),
    Fault("writes-where-it-read", "blocks-copied-to-packed", blocks, "copy_kernel", "run * target_run",
          "run * 0", (blocks,)),
    Fault("weighs-runs-alike", "blocks-digested-heads", blocks, "digest_kernel", "weights + run * rows", "weights",
          (blocks,)),
]  # fmt: skip


def faulty(fault: Fault) -> KernelCase:
    (case,) = (case for case in RIGHT if case.name == fault.case)

    def call(device: torch.device) -> Results:
        with planted(fault):
            return case.call(device)

    return replace(case, name=fault.name, call=call)


def spilling(device: torch.device) -> Results:
    """A whole row in the registers of one warp."""
    x, size = torch.empty(1, 8192, device=device), 8192
    launch.launch(norm.rms_norm_kernel, (1,), x, x, x, size, 0, 1e-5, HEADS=1, SIZE=size, BLOCK=size, num_warps=1)
    return ()


CASES = [faulty(fault) for fault in FAULTS]
SPILLS = KernelCase("spills", spilling, interpreted=False)
