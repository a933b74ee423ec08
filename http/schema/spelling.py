# SPDX-License-Identifier: Apache-2.0
"""Recognition of misspelt names of parameters. Pure.

Two names are alike if they are equal in small letters and without separators, or become so by leaving out at most one
letter of each. That takes in one letter that is missing, added, changed or exchanged with its neighbour.
"""

from collections.abc import Iterable, Iterator

SHORTEST = 4
LONGEST = 40
"""Shorter and longer names are not compared."""


class Spelling:
    """The `known` names, by what they may be misspelt as."""

    def __init__(self, known: Iterable[str]) -> None:
        self.meant = {variant: name for name in known for variant in variants(name)}

    def meant_by(self, name: str) -> str | None:
        """Return a known name that this one is like; None if there is none."""
        return next((self.meant[variant] for variant in variants(name) if variant in self.meant), None)


def variants(name: str) -> Iterator[str]:
    """Yield the plain name, and it without each one of its letters."""
    if len(name) > LONGEST:
        return
    plain = name.lower().replace("_", "").replace("-", "")
    if len(plain) >= SHORTEST:
        yield plain
        yield from (plain[:at] + plain[at + 1 :] for at in range(len(plain)))
