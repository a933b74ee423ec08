# SPDX-License-Identifier: Apache-2.0
"""The order in which files of tests are handed out: those that start processes beside those that compute."""

from collections.abc import Mapping
from typing import Any

from xdist.scheduler import LoadFileScheduling

# Tests here start processes, and wait for them about half of their time.
WITH_PROCESSES = ("tests/system/", "tests/launcher/", "tests/scripts/", "tests/clients/")
# The file that takes longest, which is handed out first.
LONGEST = "tests/world/test_seeds.py"


def file_scheduling(config: Any, log: Any, groups: Mapping[str, str]) -> LoadFileScheduling:
    """Return a scheduler that runs a file's tests in one process, and so those of all files of a group in `groups`, by
    file. Every second process takes files that start processes as long as there are any, the others take the rest
    first: what waits and what computes share the cores, and neither is left over at the end."""
    scheduling = LoadFileScheduling(config, log)
    assign, waiting = scheduling._assign_work_unit, scheduling.workqueue

    def group_of(test: str) -> str:
        file = test.partition("::")[0]
        return groups.get(file, file)

    def assign_wanted(node: Any) -> None:
        wants = int(node.gateway.id.removeprefix("gw")) % 2 == 0
        wanted = next((group for group, tests in waiting.items() if starts_processes(tests) is wants), None)
        if not wants and LONGEST in waiting:
            wanted = LONGEST
        if wanted is not None:
            waiting.move_to_end(wanted, last=False)
        assign(node)

    scheduling._split_scope, scheduling._assign_work_unit = group_of, assign_wanted
    return scheduling


def starts_processes(tests: Mapping[str, bool]) -> bool:
    """Return whether the tests of a unit, given by id, start processes."""
    return next(iter(tests)).startswith(WITH_PROCESSES)
