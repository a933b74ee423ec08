# SPDX-License-Identifier: Apache-2.0
"""Draws of tokens from logits."""
