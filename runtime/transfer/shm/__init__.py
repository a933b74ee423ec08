# SPDX-License-Identifier: Apache-2.0
"""Transfers from memory of this host that this process maps."""
