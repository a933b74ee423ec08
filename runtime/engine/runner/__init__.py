# SPDX-License-Identifier: Apache-2.0
"""Runners compute batches: their interface, that of a model in this process, and steps beyond its memory."""
