# SPDX-License-Identifier: Apache-2.0
"""Tiles: the rows of a step that are computed together, on every rank."""
