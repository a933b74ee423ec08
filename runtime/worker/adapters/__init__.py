# SPDX-License-Identifier: Apache-2.0
"""Adapters as the ranks of a worker read them, and have them computed from the same step on."""
