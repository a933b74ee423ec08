# SPDX-License-Identifier: Apache-2.0
"""The child that loads torch to find out facts about this machine and about the models of a plan. Its imports are
inside the function: it must be known with whom it ends first."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from pontil.launcher.child.parent_death import die_with_parent


def examine_machine(parent: int, cache: Path, asked: TextIO) -> Iterator[tuple[str, Any]]:
    """Yield, part by part, the facts that only a process that loads torch can find out. `asked` has the plan of models
    as a JSON object, or nothing. The child ends with its parent."""
    die_with_parent(parent)
    plan = json.loads(asked.read() or "{}")
    from pontil.runtime.probe.examination import examine

    yield from examine(cache)
    if plan:
        from pontil.runtime.inspection.inspection import inspect_models

        yield "models", inspect_models(plan, cache)
