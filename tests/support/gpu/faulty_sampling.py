# SPDX-License-Identifier: Apache-2.0
"""Kernels of draws with planted faults, which cases must show."""

from dataclasses import replace

import sampling_cases
import torch
from faulty_attention import Fault, planted
from ladder import KernelCase, Results

from pontil.gpu_ops.triton import chunked_sampling, sampling

KERNEL = (sampling, "draw_kernel")
USERS = (sampling,)
FAULTS = [
    Fault("highest-id-of-equal-logits", "draw-odd-rows", *KERNEL, "tl.min(tl.where(best == key, ids, 0x7FFFFFFF), 0)",
          "tl.max(tl.where(best == key, ids, 0), 0)", USERS),
    Fault("draws-an-id-without-mass", "draw-odd-rows", *KERNEL, "is_before = before + tl.cumsum(amount, 0) <= target",
          "is_before = before + tl.cumsum(amount, 0) < target", USERS),
    Fault("forgets-earlier-chunks", "draw-chunks-warm", chunked_sampling, "choose_kernel", "behind - kept, 0",
          "0 * kept, 0", (chunked_sampling,)),
    Fault("forgets-earlier-ties", "draw-chunks-ties", chunked_sampling, "choose_kernel", "room - before_equal",
          "room - 0 * before_equal", (chunked_sampling,)),
    Fault("one-more-by-top-k", "draw-300", *KERNEL, "most = tl.load(top_k + draw).to(tl.int64)",
          "most = tl.load(top_k + draw).to(tl.int64) + (tl.load(top_k + draw) > 0)", USERS),
]  # fmt: skip


def faulty(fault: Fault) -> KernelCase:
    (case,) = (case for case in sampling_cases.CASES if case.name == fault.case)

    def call(device: torch.device) -> Results:
        with planted(fault):
            return case.call(device)

    return replace(case, name=fault.name, call=call)


CASES = [faulty(fault) for fault in FAULTS]
