# SPDX-License-Identifier: Apache-2.0
"""The cases of all kernels. There is one module for each kind of kernel."""

import attention_cases
import faulty_attention
import norm_cases
from ladder import KernelCase

CASES: dict[str, KernelCase] = {case.name: case for module in (norm_cases, attention_cases) for case in module.CASES}
FAULTS: dict[str, KernelCase] = {case.name: case for case in faulty_attention.CASES}
"""Cases of kernels with planted faults, which the interpreter must tell from torch's operations."""
