# SPDX-License-Identifier: Apache-2.0
"""Weights and structures as the kernels read them."""
