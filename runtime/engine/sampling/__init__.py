# SPDX-License-Identifier: Apache-2.0
"""Sampling: masks, edits and draws of a batch's sequences."""
