# SPDX-License-Identifier: Apache-2.0
"""Leases on prefixes: blocks of KV that are kept for a time because it was promised."""
