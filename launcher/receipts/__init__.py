# SPDX-License-Identifier: Apache-2.0
"""Receipts as files: checked, and computed again."""
