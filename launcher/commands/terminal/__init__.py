# SPDX-License-Identifier: Apache-2.0
"""Conversations and tables on a terminal."""
