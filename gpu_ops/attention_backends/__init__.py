# SPDX-License-Identifier: Apache-2.0
"""Paged attention on devices by the kernels of other packages, in the place of Triton's (decision 091)."""
