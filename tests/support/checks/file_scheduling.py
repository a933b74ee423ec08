# SPDX-License-Identifier: Apache-2.0
"""The order in which files of tests are handed out: those that start processes beside those that compute."""

from collections.abc import Mapping, Sequence

# Tests here start processes, servers or threads, and wait for them about half of their time.
WITH_PROCESSES = (
    "tests/system/",
    "tests/launcher/",
    "tests/scripts/",
    "tests/clients/",
    "tests/http/",
    "tests/runtime/tracing/",
)
# The files and groups that take longest, from half a minute down to ten seconds, are handed out first, in this order:
# what is begun last is short, so that no core is without work for long at the end.
LONGEST = (
    "tests/world/test_seeds.py", "pair", "tests/world/test_world.py", "tests/system/test_page.py",
    "source_tree", "tests/gpu_ops/triton/test_ladder.py", "started_processes", "recognizer",
    "tests/runtime/models/test_architectures.py",
    "tests/world/test_random_graphs.py", "tests/world/test_stand_ins.py", "tests/runtime/worker/test_parity.py",
)  # fmt: skip


class WaitingFiles:
    """The tests that nobody has yet, as places in a list of ids, by file. Files of a group in `groups`, by file, are as
    one."""

    def __init__(self, tests: Sequence[str], groups: Mapping[str, str]) -> None:
        self.places: dict[str, list[int]] = {}
        self.with_processes = set[str]()
        for place, test in enumerate(tests):
            file = test.partition("::")[0]
            group = groups.get(file, file)
            self.places.setdefault(group, []).append(place)
            if file.startswith(WITH_PROCESSES):
                self.with_processes.add(group)

    def take(self, with_processes: bool) -> list[int]:
        """Return the tests of a file, or none if there are no more. Who takes files that start processes gets others
        only when there are no more of them, and the other way round: what waits and what computes share the cores, and
        neither is left over at the end."""
        if not self.places:
            return []
        wanted = [name for name in self.places if (name in self.with_processes) is with_processes]
        left = wanted or list(self.places)
        name = next((one for one in LONGEST if one in left), left[0])
        return self.places.pop(name)
