# SPDX-License-Identifier: Apache-2.0
"""Sequences whose newest tokens have been drawn, but are not known yet."""

from pontil.runtime.engine.sequences.sampling_state import penalized
from pontil.runtime.engine.sequences.sequence import Sequence


def is_ready(sequence: Sequence) -> bool:
    """Return whether its next row may be computed as soon as there is room."""
    return not sequence.rests and (sequence.unknown == 0 or sequence.place is not None)


def drawn(sequence: Sequence, place: int) -> None:
    """Note a token that was drawn, and its place among the results of its step."""
    sequence.unknown += 1
    sequence.place = place if may_go_on(sequence) else None


def may_go_on(sequence: Sequence) -> bool:
    """Return whether the row after the token that was just drawn may be computed before that is known. It may turn out
    that the sequence ended with it: the row is then dropped. What needs the token itself waits for it: a budget that
    ends, a handoff, a token that the client has, choices to be forked, penalties, grammars."""
    count, params = sequence.length - len(sequence.prompt), sequence.params
    alone = len(sequence.choices) == 1 and not sequence.hands_over and not (sequence.given and count == 1)
    free = sequence.rules.make_guide is None and not penalized(params) and params.min_tokens <= count
    return alone and free and count < params.max_tokens


def forget(sequence: Sequence) -> None:
    """Leave out tokens that are not known yet, since the sequence ends before them."""
    sequence.unknown, sequence.place = 0, None
    sequence.roll_back()
