# SPDX-License-Identifier: Apache-2.0
"""Steps beside a second process: what is measured of them, and what that process does meanwhile."""

import io
import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pontil.gpu_ops.kernels.lent_cores import IDLE, STRIDE, WORKING, LentCores
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.planner.company import REST, company_times, keep_company, lender_at, lending_times
from pontil.runtime.planner.device_profile import CompanyTimes, LendingTimes
from pontil.runtime.planner.shared_cores import DECODE, HOST, PROMPT

# The other process lends its cores, or computes on the same one.
LENT, OWN = "lent", "own"


class FakeMeter:
    """A meter whose steps take what the other process makes of them."""

    def __init__(self) -> None:
        self.sizes, self.longest, self.rounds = SimpleNamespace(step_tokens=256, seats=8), 2048, 5
        self.clock: Any = time.process_time
        self.room = 1024
        self.other, self.rows, self.prompts, self.done = REST, 0, 0, list[str]()

    @property
    def engine(self) -> Any:
        return SimpleNamespace(has_work=bool(self.rows or self.prompts))

    def has_room(self, rows: int, context: int, steps: int) -> bool:
        return rows * context <= self.room

    def begin(self, rows: int, context: int, steps: int) -> None:
        self.rows = rows

    def add(self, tokens: int, answer: int) -> None:
        self.prompts += 1

    def lend(self) -> None:
        self.other = LENT

    def take(self) -> None:
        self.other = REST

    def step(self) -> tuple[None, float]:
        kind = PROMPT if self.prompts else DECODE
        self.done.append(kind)
        self.prompts = 0
        slower = {(DECODE, DECODE): 1.5, (PROMPT, HOST): 1.25, (DECODE, PROMPT): 0.5,
                  (DECODE, LENT): 0.75 if self.rows == 1 else 1.25, (PROMPT, LENT): 0.5,
                  (DECODE, OWN): 1.1, (PROMPT, OWN): 1.05}  # fmt: skip
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
    assert company_times(meter, have_other, None) == CompanyTimes(decode_decode=1.5, prompt_host=1.25)
    assert set(told) == {REST, DECODE, PROMPT, HOST} and told[-1] == REST


def test_steps_are_measured_beside_a_process_on_their_own_core() -> None:
    """Beside other work than steps nothing is measured there: it has the core at once, and for as long as it takes."""
    meter: Any = FakeMeter()
    told = list[str]()

    def have_own(what: str) -> None:
        told.append(what)
        meter.other = what if what == REST else OWN

    made = company_times(meter, lambda what: None, have_own)
    assert made == CompanyTimes(own_decode_decode=1.1, own_decode_prompt=1.1, own_prompt_decode=1.05,
                                own_prompt_prompt=1.05)  # fmt: skip
    assert set(told) == {REST, DECODE, PROMPT} and told[-1] == REST


def test_steps_with_lent_cores_are_compared_with_those_without() -> None:
    """No step takes longer by them, whatever noise says, and their time is not that of the processor."""
    meter: Any = FakeMeter()
    made, clocks, step = list[str](), set[Any](), meter.step

    def watched() -> Any:
        made.append(meter.other)
        clocks.add(meter.clock)
        return step()

    meter.step = watched
    expected = ((1.0, 0.0, 0.75), (4.0, 0.0, 1.0), (0.0, 16.0, 0.5), (0.0, 64.0, 0.5), (0.0, 256.0, 0.5))
    assert lending_times(meter, meter) == LendingTimes(expected)
    assert clocks == {time.perf_counter} and meter.clock is time.process_time
    assert meter.other == REST and made.count(LENT) == made.count(REST)
    assert lending_times(meter, None) == LendingTimes()
    meter.room = 64
    assert lending_times(meter, meter) == LendingTimes((expected[0], *expected[2:4]))


def test_cores_are_lent_as_workers_of_a_launch_lend_them(tmp_path: Path) -> None:
    config = WorkerConfig(
        name="mixed:0", role="mixed", device="cpu", cores=(0,), model="m", served_model_name="m", control="inproc://c",
        peer_endpoint="inproc://p", lent_cores=str(tmp_path / "cores"),
    )  # fmt: skip
    lender = lender_at((1,), config)
    assert lender is not None
    table = LentCores(tmp_path / "cores", (0,))
    lender.lend()
    assert table.cells[STRIDE] == IDLE and table.cells[0] == WORKING
    lender.take()
    assert table.cells[STRIDE] == WORKING
    assert lender_at((1,), replace(config, lent_cores=None)) is None


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
