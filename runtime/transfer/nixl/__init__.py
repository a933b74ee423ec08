# SPDX-License-Identifier: Apache-2.0
"""Transfers over NIXL (UCX)."""
