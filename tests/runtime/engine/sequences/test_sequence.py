# SPDX-License-Identifier: Apache-2.0
"""The states of a sequence: the transition table is complete, and no other transition is possible."""

import itertools

import pytest
from tiny import sequence

from pontil.runtime.engine.sampling.sampler import uniform
from pontil.runtime.engine.sequences.batch import Batch, Span
from pontil.runtime.engine.sequences.sequence import TRANSITIONS, FinishReason, SequenceState


def test_the_table_covers_the_enum() -> None:
    assert set(TRANSITIONS) == set(SequenceState)
    assert all(
        SequenceState.FINISHED in moves for state, moves in TRANSITIONS.items() if state is not SequenceState.FINISHED
    )


@pytest.mark.parametrize(("here", "there"), list(itertools.product(SequenceState, SequenceState)))
def test_only_moves_in_the_table_are_made(here: SequenceState, there: SequenceState) -> None:
    one = sequence("a", [1])
    one.state = here
    if there in TRANSITIONS[here]:
        one.move(there)
        assert one.state is there
    else:
        with pytest.raises(AssertionError, match="cannot become"):
            one.move(there)


def test_tiles_never_mix_prompt_and_generated_positions() -> None:
    replayed, long, decoding = sequence("r", [1] * 10, 80), sequence("l", [1] * 500), sequence("d", [1] * 4)
    replayed.output, decoding.output = [2] * 70, [2]
    tiles = Batch((Span(decoding, 4, 1), Span(replayed, 5, 75), Span(long, 0, 500))).tiles()
    assert [(tile.generated, tile.rows) for tile in tiles] == [
        (False, 256), (False, 249), (True, 32), (True, 32), (True, 7),
    ]  # fmt: skip
    assert [(span.sequence.id, span.start, span.count) for span in tiles[0].spans] == [("r", 5, 5), ("l", 0, 251)]
    assert [(span.start, span.samples) for tile in tiles for span in tile.spans if span.sequence is replayed] == [
        (5, False), (10, False), (41, False), (73, True),
    ]  # fmt: skip


def test_random_numbers_depend_on_seed_choice_and_position_only() -> None:
    numbers = {uniform(seed, choice, position) for seed in (0, 1, 2**63) for choice in (0, 1) for position in range(50)}
    assert len(numbers) == 300 and all(0 <= number < 1 for number in numbers)
    assert uniform(3, 0, 9) == uniform(3, 0, 9)
    assert sum(uniform(9, 0, position) for position in range(4000)) / 4000 == pytest.approx(0.5, abs=0.02)


def test_a_stop_at_the_budget_is_a_stop() -> None:  # A6
    one = sequence("a", [1], 2)
    one.stop_token_ids = frozenset({9})
    assert [one.append(5), one.append(9)] == [None, FinishReason.STOP]
    other = sequence("b", [1], 2)
    assert [other.append(5), other.append(9)] == [None, FinishReason.LENGTH]
