# SPDX-License-Identifier: Apache-2.0
"""The streams of sequences in a stage of a model of several stages (docs/decisions/051)."""
