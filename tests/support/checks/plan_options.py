# SPDX-License-Identifier: Apache-2.0
"""The options of `plan`."""

from typing import Any

from pontil.launcher.tools.planner.plan_command import plan


def options(*words: str) -> dict[str, Any]:
    """Return the options of a command line, as the command gets them."""
    with plan.make_context("plan", ["--profile", "-", *words]) as context:
        return {name: value for name, value in context.params.items() if name not in ("files", "model", "replay")}
