# SPDX-License-Identifier: Apache-2.0
"""All checks, in the order in which they run."""

from pontil.launcher.tools.conformance import (
    batch_checks,
    chat_checks,
    completion_checks,
    error_checks,
    message_checks,
    ollama_checks,
    rank_checks,
)

CHECKS = (
    *completion_checks.CHECKS,
    *chat_checks.CHECKS,
    *message_checks.CHECKS,
    *ollama_checks.CHECKS,
    *batch_checks.CHECKS,
    *rank_checks.CHECKS,
    *error_checks.CHECKS,
)
