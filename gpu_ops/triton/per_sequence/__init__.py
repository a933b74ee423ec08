# SPDX-License-Identifier: Apache-2.0
"""Kernels for what a sequence has of its own: an adapter, and the states of recurrent layers."""
