# SPDX-License-Identifier: Apache-2.0
"""Those of some things that are of a class, looked for often."""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeVar

Kind = TypeVar("Kind")


@cache
def classes_of(made: Any) -> frozenset[Any]:
    """Return a class and its bases, remembered: of an abstract class each `isinstance` is a call in Python."""
    return frozenset(made.__mro__)


def those_of(kind: Callable[..., Kind], some: Iterable[Any]) -> list[Kind]:
    """Return those that are of a class."""
    return [one for one in some if kind in classes_of(one.__class__)]
