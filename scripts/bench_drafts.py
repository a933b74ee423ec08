# SPDX-License-Identifier: Apache-2.0
"""Measure the time per token with and without drafts: of one engine, one stream at a time.

    python scripts/bench_drafts.py [--model NAME|PATH] [--draft NAME|PATH] [--ways none lookup model both] [--cores 0 1]

Each text is continued greedily in every way, one way after the other, so that a slow minute of the machine meets all;
those of the task `nothing repeats` are drawn at temperature 2, so that no guess is right for long. Ways: `none`;
`lookup`, as --speculative-tokens without a draft model; `model`, a draft model alone; `both`, as a worker with
--speculative-model guesses. Each way keeps what it has measured from text to text, as a worker does.

Prints one JSON object with the `costs` in milliseconds: a step of the target by its rows, and of the draft model with
one row. Then one for each task and way: `ms` per token after the first, all guessing and reading included; `speedup`
over `none`; the number of `drafts`; the guesses `tried`, those behind none that was wrong, and those `right`,
and their share by place in a draft. For the ways with a draft model also the `bound`: the speedup that these costs
allow, at best, for guesses of the draft model that are right as often as these were. The answers of all ways are
compared; any difference ends the script with an error. With --cpu times are the process's CPU time, which other
processes disturb less, and which adds up all threads.
"""

import argparse
import json
import statistics
import sys
import time
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import app  # noqa: E402, F401
from pontil.runtime.config.worker_config import WorkerConfig  # noqa: E402
from pontil.runtime.engine.drafts.costs import gain  # noqa: E402
from pontil.runtime.engine.drafts.drafter import Drafter, LookupDrafter  # noqa: E402
from pontil.runtime.engine.drafts.model_drafter import DraftPolicy, ModelDrafter  # noqa: E402
from pontil.runtime.engine.drafts.policy import AdaptivePolicy, DraftPlan, Option  # noqa: E402
from pontil.runtime.engine.sequences.sequence import Sequence  # noqa: E402
from pontil.runtime.loaders.builtin import resolve_model  # noqa: E402
from pontil.runtime.sampling_params import SamplingParams  # noqa: E402
from pontil.runtime.worker.start.assembly import WorkerResources, assemble  # noqa: E402

CACHE = Path.home() / ".cache" / "pontil"
WAYS = ("none", "lookup", "model", "both")
TURN = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
TASKS: dict[str, tuple[str, ...]] = {
    "code": (
        "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
        "import unittest\n\n\ndef is_prime(n):\n    if n < 2:\n        return False\n    for d in range(2,",
        TURN.format("Write a Python class for a binary search tree with insert, contains and delete."),
        TURN.format("Write a Python function that parses a CSV line with quoted fields, and unit tests for it."),
    ),
    "chat": (
        TURN.format("Explain to a child why the sky is blue."),
        TURN.format("Give me three ideas for a rainy Sunday, with a sentence on each."),
        TURN.format("What are the differences between a process and a thread?"),
    ),
    "nothing repeats": ("Once", "The", TURN.format("Tell me something.")),
}


@dataclass
class Timings:
    """A policy that has so many guesses made in each step, and keeps the times of all steps."""

    count: int = 0
    target: dict[int, list[float]] = field(default_factory=dict)
    draft: list[float] = field(default_factory=list)

    def plan(self, options: abc.Sequence[Option], room: int) -> DraftPlan:
        plan = DraftPlan.empty(len(options))
        plan.models = [min(one.limit, self.count) if one.missing is not None else 0 for one in options]
        return plan

    def drafted(self, rows: int, seconds: float) -> None:
        if rows == 1:
            self.draft.append(seconds)

    def stepped(self, sequences: int, rows: int, seconds: float | None, spent: float) -> None:
        self.target.setdefault(rows, []).append(seconds or 0.0)

    def saved(self, tokens: int) -> None: ...


class ModelAlone(AdaptivePolicy):
    """The policy of workers, without repeated text."""

    def plan(self, options: abc.Sequence[Option], room: int) -> DraftPlan:
        return super().plan([replace(one, found=0) for one in options], room)


@dataclass
class DraftResult:
    """The sums of one way over a task's texts. `by_place` has guesses and right ones."""

    tokens: int = 0
    seconds: float = 0.0
    drafts: int = 0
    by_place: dict[int, list[int]] = field(default_factory=dict)

    def count(self, guessed: int, right: int) -> None:
        self.drafts += guessed > 0
        for place in range(min(guessed, right + 1)):
            each = self.by_place.setdefault(place, [0, 0])
            each[0] += 1
            each[1] += place < right


class SilentReports:
    """Reporter that discards all reports."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *given, **named: None


def open_machine(arguments: argparse.Namespace) -> WorkerResources:
    config = WorkerConfig(
        "mixed:0", "mixed", "cpu", tuple(arguments.cores), str(resolve_model(arguments.model, CACHE)), "bench", "", "",
        quantization=arguments.quantization, max_model_len=arguments.max_model_len,
        kv_cache_memory=512 << 20, cache_dir=str(CACHE),
        speculative_tokens=arguments.tokens, speculative_model=str(resolve_model(arguments.draft, CACHE)),
    )  # fmt: skip
    return assemble(config, SilentReports())


def measure_costs(machine: WorkerResources, drafter: ModelDrafter, now: Callable[[], float]) -> Timings:
    """Measure steps of each number of rows, by drafts of each length."""
    timings = Timings()
    drafter.policy = timings
    machine.scheduler.drafts.drafter, machine.scheduler.drafts.most = drafter, 16
    for count in (0, 1, 2, 4, 8):
        timings.count = count
        run(machine, TASKS["code"][0], 30 + 8 * count, {}, DraftResult(), now)
    return timings


def run(
    machine: WorkerResources, text: str, budget: int, how: dict[str, Any], result: DraftResult, now: Callable[[], float]
) -> list[int]:
    """Continue a text; return the tokens. The time begins with the first of them. Prefixes are not shared."""
    params = SamplingParams(**({"max_tokens": budget, "seed": 1, "temperature": 0.0} | how))
    one = Sequence("bench", machine.tokenizer.encode(text, True), params, frozenset(machine.config.eos_token_ids))
    one.prefix.salt = str(time.monotonic_ns())
    machine.engine.add(one)
    machine.engine.step()
    start = now()
    while machine.engine.has_work:
        for output in machine.engine.step():
            result.count(output.drafted, output.accepted)
    result.seconds += now() - start
    result.tokens += len(one.output) - 1
    return one.output


def bound(timings: Timings, result: DraftResult) -> float:
    """Return the highest speedup for drafts of one length, each guess being right as often as they were on average."""
    tried, right = (
        (sum(column) for column in zip(*result.by_place.values(), strict=True)) if result.by_place else (1, 0)
    )
    steps = {rows: statistics.median(some) for rows, some in timings.target.items()}
    draft = statistics.median(timings.draft)
    return max(
        (1 + gain(right / tried, rows - 1)) * steps[1] / (steps[rows] + (rows - 1) * draft) for rows in sorted(steps)
    )


def show(task: str, way: str, result: DraftResult, plain: DraftResult, timings: Timings) -> dict[str, Any]:
    per_token = result.seconds / max(1, result.tokens)
    shown: dict[str, Any] = {"task": task, "way": way, "ms": round(1000 * per_token, 2)}
    shown["speedup"] = round(plain.seconds / max(1, plain.tokens) / per_token, 3)
    if way != "none":
        guessed, right = (sum(each[at] for each in result.by_place.values()) for at in (0, 1))
        shown |= {"drafts": result.drafts, "tried": guessed, "right": right}
        places = sorted(result.by_place.items())
        shown["right of tried by place"] = [round(right / guessed, 2) for _, (guessed, right) in places]
    if way in ("model", "both"):
        shown["bound"] = round(bound(timings, result), 3)
    return shown


def measure(arguments: argparse.Namespace) -> None:
    now = time.process_time if arguments.cpu else time.perf_counter
    machine = open_machine(arguments)
    drafter = machine.scheduler.drafts.drafter
    assert isinstance(drafter, ModelDrafter) and isinstance(drafter.policy, AdaptivePolicy)
    ratio = drafter.policy.ratio
    machine.scheduler.clock = drafter.clock = drafter.model.clock = now
    timings = measure_costs(machine, drafter, now)
    steps = {rows: round(1000 * statistics.median(some), 2) for rows, some in sorted(timings.target.items())}
    print(json.dumps({"costs": {"target": steps, "draft": round(1000 * statistics.median(timings.draft), 2)}}))
    policies: dict[str, DraftPolicy] = {"model": ModelAlone(ratio), "both": AdaptivePolicy(ratio)}
    drafters: dict[str, Drafter] = {
        way: ModelDrafter(drafter.model, policies[way], now) if way in policies else LookupDrafter() for way in WAYS
    }
    for task in arguments.tasks:
        how = {"temperature": 2.0} if task == "nothing repeats" else {}
        results = {way: DraftResult() for way in arguments.ways}
        for text in TASKS[task]:
            answers = {}
            for way in arguments.ways:
                machine.scheduler.drafts.drafter = drafters[way]
                machine.scheduler.drafts.most = 0 if way == "none" else arguments.tokens
                answers[way] = run(machine, text, arguments.answer, how, results[way], now)
            if any(answer != answers["none"] for answer in answers.values()):
                sys.exit(f"drafts changed the answer to {text!r}: report this")
        for way, result in results.items():
            print(json.dumps(show(task, way, result, results["none"], timings)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen2.5-coder-1.5b")
    parser.add_argument("--draft", default="qwen2.5-coder-0.5b")
    parser.add_argument("--quantization", choices=("none", "int8", "gguf"), default="none")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="`none` is always among them")
    parser.add_argument("--tasks", nargs="+", choices=tuple(TASKS), default=list(TASKS))
    parser.add_argument("--tokens", type=int, default=8, help="most guesses at a time")
    parser.add_argument("--answer", type=int, default=256, help="most tokens of an answer")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--cores", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--cpu", action="store_true")
    arguments = parser.parse_args()
    arguments.ways = list(dict.fromkeys(["none", *arguments.ways]))
    measure(arguments)


if __name__ == "__main__":
    main()
