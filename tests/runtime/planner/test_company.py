# SPDX-License-Identifier: Apache-2.0
"""Steps beside a second process: what is measured of them, and what that process does meanwhile."""

import io
import os
from types import SimpleNamespace
from typing import Any

import pytest

from pontil.runtime.planner.company import REST, company_times, keep_company
from pontil.runtime.planner.device_profile import CompanyTimes
from pontil.runtime.planner.shared_cores import DECODE, HOST, PROMPT


class FakeMeter:
    """A meter whose steps take what the other process makes of them."""

    def __init__(self) -> None:
        self.sizes, self.longest, self.rounds = SimpleNamespace(step_tokens=256, seats=64), 2048, 5
        self.other, self.rows, self.prompts, self.done = REST, 0, 0, list[str]()

    @property
    def engine(self) -> Any:
        return SimpleNamespace(has_work=bool(self.rows or self.prompts))

    def begin(self, rows: int, context: int, steps: int) -> None:
        self.rows = rows

    def add(self, tokens: int, answer: int) -> None:
        self.prompts += 1

    def step(self) -> tuple[None, float]:
        kind = PROMPT if self.prompts else DECODE
        self.done.append(kind)
        self.prompts = 0
        slower = {(DECODE, DECODE): 1.5, (PROMPT, HOST): 1.25, (DECODE, PROMPT): 0.5}
        return None, {PROMPT: 0.1, DECODE: 0.01}[kind] * slower.get((kind, self.other), 1.0)

    def end(self) -> None:
        self.rows = self.prompts = 0


def test_steps_are_compared_with_those_of_a_second_process_that_rests() -> None:
    meter: Any = FakeMeter()
    told = list[str]()

    def have_other(what: str) -> None:
        meter.other = what
        told.append(what)

    # Noise makes no step faster than alone.
    assert company_times(meter, have_other) == CompanyTimes(decode_decode=1.5, prompt_host=1.25)
    assert set(told) == {REST, DECODE, PROMPT, HOST} and told[-1] == REST


@pytest.mark.parametrize("kind", [DECODE, PROMPT, HOST, REST])
def test_a_second_process_does_what_it_is_told_until_its_input_ends(kind: str) -> None:
    meter: Any = FakeMeter()
    reading, writing = os.pipe()
    os.write(writing, f"{kind}\n".encode())
    os.close(writing)
    answers = io.StringIO()
    with os.fdopen(reading) as told:
        keep_company(meter, told, answers)
    assert answers.getvalue() == f"{kind}\n" and set(meter.done) <= {kind} and not meter.engine.has_work
