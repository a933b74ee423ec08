# SPDX-License-Identifier: Apache-2.0
"""Tiers below the KV pool, which keep evicted prefixes in host memory or on a local disk."""
