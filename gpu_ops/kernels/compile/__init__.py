# SPDX-License-Identifier: Apache-2.0
"""The compilation of the kernels."""
