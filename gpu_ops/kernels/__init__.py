# SPDX-License-Identifier: Apache-2.0
"""Tensor in, tensor out. Every operation here computes each row alone: its bits depend on that row and nothing else."""
