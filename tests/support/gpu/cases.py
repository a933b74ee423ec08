# SPDX-License-Identifier: Apache-2.0
"""The cases of all kernels. There is one module for each kind of kernel."""

import block_cases
import elementwise_cases
import norm_cases
import product_cases
from ladder import KernelCase

MODULES = (norm_cases, elementwise_cases, product_cases, block_cases)
CASES: dict[str, KernelCase] = {case.name: case for module in MODULES for case in module.CASES}
