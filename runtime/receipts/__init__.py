# SPDX-License-Identifier: Apache-2.0
"""Receipts: signed statements of what a server computed, which anybody with the model can compute again."""
