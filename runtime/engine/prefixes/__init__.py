# SPDX-License-Identifier: Apache-2.0
"""The KV blocks of sequences: reserved, shared, found by prefix."""
