# SPDX-License-Identifier: Apache-2.0
"""Tests in a random order, so that one which relies on another before it is found: `pytest --shuffle SEED`."""

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def shuffled(tests: Iterable[T], file_of: Callable[[T], Path], seed: int) -> list[T]:
    """Return the tests with their files in an order that follows from the seed, and so the tests of each file. A file
    stays together, since its tests share what is made once for it."""
    chance = random.Random(seed)
    files: dict[Path, list[T]] = {}
    for test in tests:
        files.setdefault(file_of(test), []).append(test)
    groups = list(files.values())
    chance.shuffle(groups)
    for group in groups:
        chance.shuffle(group)
    return [test for group in groups for test in group]
