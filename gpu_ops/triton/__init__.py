# SPDX-License-Identifier: Apache-2.0
"""Kernels in Triton for GPUs. Each function here has a counterpart in torch in the folder above, which calls it for
tensors that are not on the CPU."""
