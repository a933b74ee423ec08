# SPDX-License-Identifier: Apache-2.0
"""The roles of workers."""

# Those that generate, which can be exchanged for each other; those that embed texts; and those that compute a stage
# without tokens of a model of several stages.
GENERATING_ROLES = ("prefill", "decode", "mixed")
PREFILL = "prefill"
EMBED = "embed"
NODE = "node"
# Roles whose devices have an option of their own.
LISTED_ROLES = (*GENERATING_ROLES, EMBED)
WORKER_ROLES = (*LISTED_ROLES, NODE)
