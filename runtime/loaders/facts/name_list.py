# SPDX-License-Identifier: Apache-2.0
"""Tensor names for a message: all of them, yet readable when there are thousands."""

from __future__ import annotations

from collections.abc import Iterable

from pontil.runtime.foundation.number_ranges import spell

HANDFUL = 8


def name_list(names: Iterable[str]) -> str:
    """The names in their order. More than a handful are folded: `layers.[0-2,5].mlp` stands for four of them."""
    listed = list(dict.fromkeys(names))
    if len(listed) > HANDFUL:
        rows = [tuple(name.split(".")) for name in listed]
        for place in range(max(map(len, rows)) - 1, -1, -1):
            rows = folded(rows, place)
        listed = [".".join(row) for row in rows]
    return ", ".join(listed)


def folded(rows: list[tuple[str, ...]], place: int) -> list[tuple[str, ...]]:
    """Merge rows that differ only in a number at `place`."""
    groups: dict[tuple[tuple[str, ...], tuple[str, ...] | None], list[int]] = {}
    for row in rows:
        if place < len(row) and row[place].isdecimal():
            groups.setdefault((row[:place], row[place + 1 :]), []).append(int(row[place]))
        else:
            groups[row, None] = []
    return [
        before if after is None else (*before, ranges(numbers), *after) for (before, after), numbers in groups.items()
    ]


def ranges(numbers: list[int]) -> str:
    """`[0-2,5]` for 0, 1, 2 and 5; a single number stays as it is."""
    if len(numbers) == 1:
        return str(numbers[0])
    return f"[{spell(numbers)}]"
