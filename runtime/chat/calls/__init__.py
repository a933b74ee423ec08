# SPDX-License-Identifier: Apache-2.0
"""Tool calls: how models write them, and how they are read."""
