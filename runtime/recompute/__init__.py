# SPDX-License-Identifier: Apache-2.0
"""Receipts computed again, alone, by who doubts them or wants to know that nothing has changed."""
