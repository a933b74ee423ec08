# SPDX-License-Identifier: Apache-2.0
"""The time of `Scheduler.schedule` with many sequences waiting, beside what it takes with none.

    python scripts/bench_schedule.py [--waiting 1000] [--tokens 100000] [--running 256]

Nothing is computed: tokens are invented. Cases: the waiting have a long prefix in common, which one of those running
computes; the prefix is cached, and there is no seat; it is cached, and no memory for the next in turn; prompts have
nothing in common, and no memory. `none` and `waiting` are medians of many steps, the latter once the keys of all
prompts are made; `first` is that of the first 50 steps, in which they are being made, and `longest` the longest of
these. All are milliseconds of CPU time.
"""

import argparse
import gc
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import app  # noqa: E402, F401
from pontil.runtime.cache.layout import KVLayout  # noqa: E402
from pontil.runtime.cache.pool import BlockPool  # noqa: E402
from pontil.runtime.engine.prompt_turns import StepBudget  # noqa: E402
from pontil.runtime.engine.scheduler import Scheduler  # noqa: E402
from pontil.runtime.engine.sequences.sequence import FinishReason, Sequence  # noqa: E402
from pontil.runtime.sampling_params import SamplingParams  # noqa: E402

BLOCK, STEPS, FIRST = 16, 200, 50
SHARED, SEATLESS, TIGHT, DISTINCT = "computed now", "cached, no seat", "cached, no memory", "distinct, no memory"


def sequence(name: str, prompt: list[int], tokens: int) -> Sequence:
    return Sequence(name, prompt, SamplingParams(max_tokens=tokens, seed=1, ignore_eos=True), frozenset())


class ScheduledCourse:
    """A scheduler with `running` sequences that decode."""

    def __init__(self, running: int, seats: int, blocks: int) -> None:
        self.pool = BlockPool(blocks)
        self.scheduler = Scheduler(self.pool, KVLayout(BLOCK, 1, 1, 8, "float32"), seats, StepBudget(4096, 64))
        for number in range(running):
            self.scheduler.add(sequence(f"runs {number}", [number] * 8, 100_000))
        while len(self.scheduler.running) < running:
            self.step()
        self.step()

    def step(self) -> float:
        """Run one step; return the CPU seconds of scheduling it."""
        began = time.process_time()
        batch = self.scheduler.schedule()
        spent = time.process_time() - began
        self.scheduler.advance(batch)
        for span in batch.spans:
            if span.samples:
                span.sequence.output.append(5)
        return spent

    def compute(self, one: Sequence) -> None:
        """Have a prompt computed and forgotten, so that its blocks are cached."""
        self.scheduler.add(one)
        while one.computed < len(one.prompt):
            self.step()
        self.scheduler.finish(one, FinishReason.LENGTH)


def course(case: str, tokens: int, running: int) -> tuple[ScheduledCourse, list[int]]:
    """Return a course and the prefix that the waiting have in common."""
    prefix, whole = list(range(10, 10 + tokens)), -(-tokens // BLOCK)
    room = 160 * running
    if case == SHARED:
        made = ScheduledCourse(running, 2 * running, whole + room + 64)
        made.scheduler.add(sequence("computes it", prefix, 100_000))
        return made, prefix
    made = ScheduledCourse(running, running + (case != SEATLESS), whole + room)
    made.scheduler.queues.max_num_seqs += 1
    if case == DISTINCT:
        return made, []
    made.compute(sequence("cached", prefix, 2))
    made.scheduler.queues.max_num_seqs = running + (case != SEATLESS)
    return made, prefix


def measure(case: str, waiting: int, tokens: int, running: int) -> list[float]:
    """Return the row of a case."""
    made, prefix = course(case, tokens, running)
    alone = median(made.step() for _ in range(STEPS))
    free = made.pool.available * BLOCK
    for number in range(waiting):
        own = list(range(number, number + max(64, tokens - len(prefix))))
        made.scheduler.add(sequence(f"waits {number}", prefix + own, 64 if case in (SHARED, SEATLESS) else free))
    gc.collect()
    first = [made.step() for _ in range(FIRST)]
    while released := made.scheduler.prefix.released(in_step=False):
        for one in released:
            made.scheduler.queues.line_up(one)
    made.step()
    beside = median(made.step() for _ in range(STEPS))
    return [1e3 * each for each in (alone, beside, beside - alone, median(first), max(first))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--running", type=int, default=256)
    given = parser.parse_args()
    gc.disable()
    print(f"{given.waiting} waiting, {given.tokens} tokens of prefix or prompt, {given.running} running")
    print(f"{'case':20} {'none':>8} {'waiting':>8} {'more':>8} {'first':>8} {'longest':>8}  ms")
    for case in (SHARED, SEATLESS, TIGHT, DISTINCT):
        row = measure(case, given.waiting, given.tokens, given.running)
        print(f"{case:20}", *(f"{each:8.3f}" for each in row), flush=True)


if __name__ == "__main__":
    main()
