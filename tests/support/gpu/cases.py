# SPDX-License-Identifier: Apache-2.0
"""The cases of all kernels. There is one module for each kind of kernel."""

import adapter_cases
import attention_cases
import block_cases
import elementwise_cases
import faulty_attention
import faulty_kernels
import faulty_sampling
import level_cases
import norm_cases
import product_cases
import recurrent_cases
import sampling_cases
from ladder import KernelCase

FAULTY = (faulty_attention, faulty_kernels, faulty_sampling)
MODULES = (
    norm_cases, elementwise_cases, product_cases, level_cases, adapter_cases, block_cases, attention_cases,
    sampling_cases, recurrent_cases,
)  # fmt: skip
CASES: dict[str, KernelCase] = {case.name: case for module in MODULES for case in module.CASES}
FAULTS: dict[str, KernelCase] = {case.name: case for module in FAULTY for case in module.CASES}
"""Cases of kernels with planted faults, which the interpreter must tell from torch's operations."""
OVER_BUDGET: KernelCase = faulty_kernels.SPILLS
"""A case of a kernel that spills, which the compiler must tell."""
