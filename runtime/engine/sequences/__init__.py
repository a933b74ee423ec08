# SPDX-License-Identifier: Apache-2.0
"""A sequence: its tokens and state, what is kept for it between steps, and the batches that are made of sequences."""
