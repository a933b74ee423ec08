# SPDX-License-Identifier: Apache-2.0
"""Row counts for which products are batch-invariant, measured once in a process for equal products."""

from collections.abc import Callable, Sequence

import torch

from pontil.gpu_ops.products.batch_invariance import BatchInvariance
from pontil.gpu_ops.products.linear import Linear

Measure = Callable[[Sequence[Linear], Sequence[Linear]], BatchInvariance]


def fingerprint(one: Linear) -> tuple[object, ...]:
    """Return what differs wherever products differ: their shape, and their results for random numbers, to the bit."""
    row = torch.randn(1, one.in_features, generator=torch.Generator().manual_seed(1))
    result = one(row.to(device=one.device, dtype=one.dtype)).float()
    library = getattr(one, "packed", None), getattr(one, "deterministic", None), torch.backends.mkldnn.enabled
    sizes = one.out_features, one.in_features
    return (type(one), *sizes, one.dtype, one.bias is None, *library, result.numpy().tobytes())


def measured_once(measure: Measure) -> Measure:
    """Return `measure` with a memory. Hundreds of tests begin with the same tiny model."""
    known = dict[object, BatchInvariance]()

    def remembered(linears: Sequence[Linear], head: Sequence[Linear]) -> BatchInvariance:
        with torch.inference_mode():
            key = (torch.get_num_threads(), *(tuple(map(fingerprint, part)) for part in (linears, head)))
        if key not in known:
            known[key] = measure(linears, head)
        return known[key]

    return remembered
