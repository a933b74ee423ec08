# SPDX-License-Identifier: Apache-2.0
"""Items and results of a run that the Talker speaks, as other workers state them: those that cannot be are refused."""

from collections.abc import Iterator

import pytest
import torch
from tiny_omni import GROUPS, omni_talker, write_tiny_omni

from pontil.runtime.stages.graph.catalog import PROMPT_UNIT
from pontil.runtime.stages.graph.stream_buffer import StreamFault
from pontil.runtime.stages.qwen3_omni.stage import OmniRows
from pontil.runtime.stages.qwen3_omni.talker_input import TalkerInput

LENGTH = PROMPT_UNIT + 8
UNITS = 2


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OmniRows]:
    """The rows of a prompt of two items, of which none has come."""
    folder, threads = tmp_path_factory.mktemp("omni"), torch.get_num_threads()
    write_tiny_omni(folder)
    torch.set_num_threads(1)
    talker = omni_talker(folder)
    ids, (_, speaker), *_ = talker.config.text, *talker.config.speakers
    prompt = [ids.im_start, ids.user, *[7] * (LENGTH - 5), ids.im_start, ids.assistant, 7]
    yield OmniRows(talker, TalkerInput(talker, prompt, speaker))
    torch.set_num_threads(threads)


def states(positions: int, rows: OmniRows) -> torch.Tensor:
    return torch.zeros(positions, 2, rows.talker.config.thinker_size)


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one[:-1], lambda one: one[:, :1], lambda one: one[..., :-1], lambda one: one.double(),
        lambda one: one.to(torch.int32), lambda one: one + torch.nan, lambda one: one[0], lambda one: one[:0],
        lambda one: torch.cat([one, one]),
    ],
)  # fmt: skip
def test_an_item_of_another_form_is_a_fault(rows: OmniRows, change: "object") -> None:
    with pytest.raises(StreamFault, match="not the states"):
        rows.push(change(states(PROMPT_UNIT, rows)))  # type: ignore[operator]
    assert rows.arriving.arrived == 0


def test_an_end_before_the_prompts_states_is_a_fault(rows: OmniRows) -> None:
    with pytest.raises(StreamFault, match="end before"):
        rows.end()


def test_a_result_is_that_of_its_prompt(rows: OmniRows) -> None:
    frame = [0] * GROUPS
    assert rows.is_behind(frame, UNITS) and rows.is_behind(frame, UNITS + 1)
    wrong = [-1, 0, UNITS - 1, UNITS + 2, 1 << 62]
    assert not any(rows.is_behind(frame, index) for index in wrong)
    assert not any(rows.is_behind(other, UNITS) for other in ([], frame[1:], [*frame, 0], [-1, *frame[1:]]))
    assert not rows.is_behind([*frame[1:], 1 << 40], UNITS)


def test_the_items_of_a_prompt_have_its_positions(rows: OmniRows) -> None:
    rows.push(states(PROMPT_UNIT, rows))
    with pytest.raises(StreamFault, match="not the states"):
        rows.push(states(PROMPT_UNIT, rows))
    rows.push(states(LENGTH - PROMPT_UNIT, rows))
    with pytest.raises(StreamFault, match="not the states"):
        rows.push(states(2, rows))
    rows.push(states(1, rows))
    rows.end()
