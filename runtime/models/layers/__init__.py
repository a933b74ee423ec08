# SPDX-License-Identifier: Apache-2.0
"""Layers, which architectures are built from."""
