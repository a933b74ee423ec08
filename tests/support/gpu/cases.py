# SPDX-License-Identifier: Apache-2.0
"""The cases of all kernels. There is one module for each kind of kernel."""

import norm_cases
import sampling_cases
from ladder import KernelCase

CASES: dict[str, KernelCase] = {case.name: case for module in (norm_cases, sampling_cases) for case in module.CASES}
