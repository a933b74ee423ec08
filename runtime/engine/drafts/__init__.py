# SPDX-License-Identifier: Apache-2.0
"""Drafts: guesses of the next tokens, and whether they help."""
