# SPDX-License-Identifier: Apache-2.0
"""The effort of randomized tests: `scripts/test.sh --long` raises it."""

import os
from collections.abc import Collection, Iterable
from typing import Any

import pytest

LONG = "LONG_TESTS"


def examples(few: int, many: int) -> int:
    return many if is_long() else few


def by_default(chosen: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Values of a parameter, or tuples of values of several. Those that are not chosen are tried with `--long` only."""
    return [
        value
        if value in chosen
        else pytest.param(*value if isinstance(value, tuple) else (value,), marks=pytest.mark.long)
        for value in values
    ]


def is_long() -> bool:
    return bool(os.environ.get(LONG))
