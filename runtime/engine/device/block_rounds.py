# SPDX-License-Identifier: Apache-2.0
"""The order in which the copies of a step are made on a device, without memory for what was read."""

from collections.abc import Iterable

Round = list[tuple[int, int]]


def rounds_of(copies: Iterable[tuple[int, int]]) -> list[Round]:
    """Divide copies (from, to), in their order, into rounds in which no block is read and written, so that each round
    can be made at once. A block that was reassigned after it was to be copied is read in an earlier round than written:
    what a copy reads was written in an earlier step."""
    rounds: list[Round] = []
    read: set[int] = set()
    for source, target in copies:
        if not rounds or target in read:
            rounds.append([])
            read.clear()
        rounds[-1].append((source, target))
        read.add(source)
    return rounds
