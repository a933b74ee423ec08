# SPDX-License-Identifier: Apache-2.0
"""Prompts are cut within the budget, at the ends of attention's tiles, and shorter while others decode."""

from dataclasses import replace

import pytest
from tiny import build, drain, reference, rig, sequence


@pytest.mark.parametrize(("limit", "chunks"), [(64, [64, 64, 64, 8]), (100, [64, 64, 72]), (None, [192, 8])])
def test_chunks_are_short_while_others_decode(limit: int | None, chunks: list[int]) -> None:
    ours = rig(build(reference()), budget=250)
    ours.scheduler.budget = replace(ours.scheduler.budget, interleaved=limit or 195)
    ours.engine.add(sequence("a", [5] * 30, 40))
    ours.engine.step()
    ours.engine.add(sequence("b", [7] * 200, 1))
    seen: list[int] = []
    while sum(seen) < 200:
        batch = ours.scheduler.schedule()
        assert [span.count for span in batch.spans if span.sequence.id == "a"] == [1]
        seen += [span.count for span in batch.spans if span.sequence.id == "b"]
        ours.runner.run(batch)
        ours.scheduler.advance(batch)
        ours.scheduler.running[0].output.append(5)
    assert seen == chunks


def test_alone_a_prompt_gets_the_whole_budget() -> None:
    ours = rig(build(reference()), budget=250)
    ours.scheduler.budget = replace(ours.scheduler.budget, interleaved=64)
    ours.engine.add(sequence("b", [7] * 250, 1))
    assert [span.count for span in ours.scheduler.schedule().spans] == [250]
    drain(ours.engine)
