# SPDX-License-Identifier: Apache-2.0
"""Positions of a prompt that the Talker hears, compared with the tensor operations that define them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.errors import ModelError
from pontil.runtime.stages.qwen3_omni.config import TextIds
from pontil.runtime.stages.qwen3_omni.prompt_plan import plan_prompt

START, USER, ASSISTANT, AUDIO = 1, 2, 3, 4
IDS = TextIds(START, USER, ASSISTANT, 7, 8, 9, (AUDIO, 5))


def heard(prompt: list[int]) -> set[int]:
    """The user's positions: the token after the last start of a turn, at or before a position, is the role."""
    ids = torch.tensor(prompt)
    places = torch.arange(len(prompt))
    turns = torch.where(ids == START, places, -1).cummax(0).values.clamp_min(0)
    roles = ids[(turns + 1).clamp_max(len(prompt) - 1)]
    return set(places[roles == USER].tolist())


@given(st.lists(st.integers(1, 6), min_size=2, max_size=30))
def test_every_prompt_has_the_plan_that_the_definition_gives(prompt: list[int]) -> None:
    starts = [place for place in range(len(prompt) - 1) if prompt[place : place + 2] == [START, ASSISTANT]]
    if not starts:
        with pytest.raises(ModelError, match="send a chat"):
            plan_prompt(prompt, IDS)
        return
    plan = plan_prompt(prompt, IDS)
    assert plan.heard == heard(prompt) and plan.start == starts[-1]
    assert plan.media == {place for place in plan.heard if prompt[place] in (AUDIO, 5)}
    assert plan.rows == len(plan.heard) + 9 and plan.length == len(prompt)
    assert all(plan.uses(place) == (place in plan.heard or place >= plan.start) for place in range(len(prompt) + 5))


@pytest.mark.parametrize("prompt", [[], [START], [ASSISTANT], [START, USER, 6]])
def test_a_prompt_without_a_turn_of_the_assistant_is_refused(prompt: list[int]) -> None:
    with pytest.raises(ModelError, match="a turn of the assistant"):
        plan_prompt(prompt, IDS)
