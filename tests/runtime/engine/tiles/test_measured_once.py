# SPDX-License-Identifier: Apache-2.0
"""Row counts that tests measure once: those of products that differ in anything are measured anew, and equal."""

from collections.abc import Sequence

import torch
from measured_once import measured_once

from pontil.gpu_ops.products.batch_invariance import BatchInvariance, measure
from pontil.gpu_ops.products.linear import Linear


def test_what_is_remembered_is_what_is_measured_again() -> None:
    calls: list[Sequence[Linear]] = []

    def counted(linears: Sequence[Linear], head: Sequence[Linear]) -> BatchInvariance:
        calls.append(linears)
        return measure(linears, head)

    remembered = measured_once(counted)
    weight = torch.randn(32, 16, generator=torch.Generator().manual_seed(1))
    plain, fixed = Linear(weight), Linear(weight, deterministic=True)
    assert remembered([plain], [plain]) == remembered([plain], [plain]) == measure([plain], [plain])
    assert len(calls) == 1
    assert remembered([fixed], [fixed]) == measure([fixed], [fixed]) and len(calls) == 2
    with torch.backends.mkldnn.flags(enabled=False):
        assert remembered([plain], [plain]) == measure([plain], [plain]) and len(calls) == 3
