# SPDX-License-Identifier: Apache-2.0
"""The roles of workers."""

# Those that generate, which can be exchanged for each other; those that embed texts; those that score pairs of texts;
# and those that compute a stage without tokens of a model of several stages.
GENERATING_ROLES = ("prefill", "decode", "mixed")
PREFILL = "prefill"
EMBED = "embed"
RERANK = "rerank"
NODE = "node"
# Roles with a model of their own.
TEXT_ROLES = (EMBED, RERANK)
# Roles whose devices have an option of their own.
LISTED_ROLES = (*GENERATING_ROLES, *TEXT_ROLES)
WORKER_ROLES = (*LISTED_ROLES, NODE)
