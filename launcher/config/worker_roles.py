# SPDX-License-Identifier: Apache-2.0
"""The roles of workers."""

# Those that generate, which can be exchanged for each other, and those that embed texts.
GENERATING_ROLES = ("prefill", "decode", "mixed")
PREFILL = "prefill"
EMBED = "embed"
WORKER_ROLES = (*GENERATING_ROLES, EMBED)
