# SPDX-License-Identifier: Apache-2.0
"""Compare what `pontil plan` predicts with what clients see of real launches on this machine, which has two cores.

    python scripts/bench_planner.py --profile FILE --model NAME [--rounds 3] [--runs FILE] [--markdown FILE]

Each configuration is predicted from the profile before the first is launched: by the median of --repeats simulations,
as chance does much to so few requests. All are then measured so many times, one round after the other, so that a
machine whose speed goes up and down does it to all alike, and topologies of a load are compared over the same time. A
load is the same requests at the same moments, with other prompts. A figure's median over the rounds counts, and its
spread is half the distance of their least and greatest. A prediction is good within the goal of its figure, or within
twice the spread: that cannot be told from noise. What the file --runs has already is not measured again: rounds that
were broken off go on. --cases measures some configurations only.

The cores of a virtual machine may be half as fast for seconds, and for hours. So one stream is measured right before
and after each run, with nothing beside it: that it takes so many times as long as planned is the machine's speed. By
that before it the run is predicted once more (`plan --slowdown`), as somebody may who has looked at the machine, and by
the mean of both a third time, of which the error is the planner's own. Runs beside which other programs took more than
--others of the cores are repeated, for up to --patience seconds a configuration.

--drafts NAME measures other ones, with and without this draft model, of which all guesses have to be right, and no
others may be made: that of a model and a draft model whose files scripts/deepen_model.py wrote with --counting. The
profile has to name the draft model as --drafts does.
"""

import argparse
import asyncio
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from machine_watch import MachineWatch
from planner_table import GOALS, PREDICTED, SCORE, report, rows_of

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import app  # noqa: E402, F401
from pontil.launcher.tools.bench.bench_run import BenchRun, Load  # noqa: E402
from pontil.launcher.tools.bench.figures import Figures, Limits, figures_of  # noqa: E402
from pontil.launcher.tools.bench.questions import Question, fixed, recorded  # noqa: E402
from pontil.launcher.tools.bench.stream_client import BenchTarget  # noqa: E402
from pontil.launcher.tools.planner.profiled_launch import ProfiledLaunch, launched  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
CORES, VOCABULARY, LONGEST, TIMEOUT = 2, 40_000, 2048, 120.0
# Seconds between looks at a launch.
LOOK = 0.5


@dataclass(frozen=True, slots=True)
class BenchedTopology:
    """Workers on the cores of this machine, which idle ones may lend: the flags of their launch, of their plan, and of
    both."""

    launch: str
    plan: str
    more: str = ""
    lends: bool = False

    @property
    def both(self) -> str:
        return f"{self.more} {'--lend-cores' if self.lends else '--no-lend-cores'}"


@dataclass(frozen=True, slots=True)
class CaseLoad:
    """A load: options of `bench` and `plan`, so many requests, and the role of which a worker is killed amid it."""

    options: str
    requests: int
    kills: str | None = None

    def value(self, name: str) -> str | None:
        words = self.options.split()
        return words[words.index(name) + 1] if name in words else None


# So many conversations do not fit into it.
SMALL_POOL = "--kv-cache-memory 48MiB"
# A model for DRAFT.
GUESSES = "--speculative-tokens 4 --speculative-model DRAFT"
TOPOLOGIES = {
    "1 mixed": BenchedTopology("--role mixed --mixed cpu:0", "--mixed 1"),
    "2 mixed": BenchedTopology("--role mixed --mixed cpu:0,cpu:1", "--mixed 2"),
    "1P1D": BenchedTopology("--prefill cpu:0 --decode cpu:1", "--prefill 1 --decode 1", "--disagg always"),
    "1P2D": BenchedTopology(
        "--prefill cpu:0 --decode cpu:1,cpu:0 --share-devices", "--prefill 1 --decode 2", "--disagg always"
    ),
    "2P1D": BenchedTopology(
        "--prefill cpu:0,cpu:1 --decode cpu:0 --share-devices", "--prefill 2 --decode 1", "--disagg always"
    ),
    "small": BenchedTopology("--role mixed --mixed cpu:0", "--mixed 1", SMALL_POOL),
    "small, tier": BenchedTopology("--role mixed --mixed cpu:0", "--mixed 1", f"{SMALL_POOL} --kv-tier memory:1GiB"),
    "small, disk": BenchedTopology("--role mixed --mixed cpu:0", "--mixed 1", f"{SMALL_POOL} --kv-tier DISK"),
    "2 mixed, lending": BenchedTopology("--role mixed --mixed cpu:0,cpu:1", "--mixed 2", lends=True),
    "1P1D, lending": BenchedTopology(
        "--prefill cpu:0 --decode cpu:1", "--prefill 1 --decode 1", "--disagg always", lends=True
    ),
    "1 mixed, drafts": BenchedTopology("--role mixed --mixed cpu:0", "--mixed 1 --accepted 1", GUESSES),
    "1P1D, drafts": BenchedTopology(
        "--prefill cpu:0 --decode cpu:1", "--prefill 1 --decode 1 --accepted 1", f"--disagg always {GUESSES}"
    ),
}
SHORT, LONG = "--prompt-tokens 64 --output-tokens 48", "--prompt-tokens 512 --output-tokens 32"
# One stream, which tells how fast the machine is.
REFERENCE = CaseLoad(f"--concurrency 1 {SHORT}", 3)
# Where CSV stands: conversations whose turns share what came before.
TURNS = "--lengths CSV"
LOADS = {
    "1 stream": CaseLoad(f"--concurrency 1 {SHORT}", 6),
    "4 streams": CaseLoad(f"--concurrency 4 {SHORT}", 24),
    "8 streams": CaseLoad(f"--concurrency 8 {SHORT}", 40),
    "2/s": CaseLoad(f"--request-rate 2 {SHORT}", 16),
    "5/s": CaseLoad(f"--request-rate 5 {SHORT}", 40),
    "8.5/s": CaseLoad(f"--request-rate 8.5 {SHORT}", 60),
    "2 long streams": CaseLoad(f"--concurrency 2 {LONG}", 10),
    "4 streams of turns": CaseLoad(f"--concurrency 4 {TURNS}", 36),
    "turns again": CaseLoad(f"--concurrency 2 {TURNS}", 36),
    "2/s, one dies": CaseLoad(f"--request-rate 2 {SHORT}", 20, "mixed"),
}
EACH = ("1 mixed", "2 mixed", "1P1D")
LENDING = ("2 mixed, lending", "1P1D, lending")
SETS = {
    "1 stream": (*EACH, *LENDING),
    "8 streams": (*EACH, *LENDING, "1P2D", "2P1D"),
    "2/s": (*EACH, *LENDING),
    "5/s": EACH,
    "8.5/s": EACH,
    "2 long streams": (*EACH, *LENDING, "2P1D"),
    "4 streams of turns": EACH,
    "turns again": ("small", "small, tier", "small, disk"),
    "2/s, one dies": ("2 mixed",),
}
EACH_WAY = ("1 mixed", "1 mixed, drafts", "1P1D", "1P1D, drafts")
DRAFT_SETS: dict[str, tuple[str, ...]] = {"1 stream": EACH_WAY, "4 streams": EACH_WAY}
CONVERSATIONS, TURNS_OF_EACH, NEW, ANSWER = 12, 3, 160, 24


def write_turns(path: Path) -> Path:
    """Write conversations whose turns come in turns: one of each, and then the next one of each."""
    lines = ["conversation,turn,prompt_tokens,output_tokens,shared_prefix_tokens"]
    for turn in range(TURNS_OF_EACH):
        lines += [f"{one},{turn},{NEW * (turn + 1)},{ANSWER},{NEW * turn}" for one in range(CONVERSATIONS)]
    path.write_text("\n".join(lines) + "\n")
    return path


def cases(sets: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Return topologies and loads by topology, as each is launched once for all of its loads."""
    return [(topology, load) for topology in TOPOLOGIES for load, some in sets.items() if topology in some]


class PlannerBench:
    """The measurements of a command line. The folder is for files of loads and launches."""

    def __init__(self, given: argparse.Namespace, folder: Path) -> None:
        self.given, self.folder = given, folder
        self.turns = write_turns(folder / "turns.csv")
        self.words = {"CSV": str(self.turns), "DISK": f"disk:{folder / 'tier'}:1GiB", "DRAFT": str(given.drafts)}
        self.cases = cases(DRAFT_SETS if given.drafts else SETS)
        # No two runs have a prompt in common: a launch has the KV of those before.
        self.seeds = count(1)
        self.runs: list[dict[str, Any]] = []
        if given.runs is not None and given.runs.exists():
            self.runs = [json.loads(line) for line in given.runs.read_text().splitlines()]

    def measure(self) -> None:
        """Measure all configurations that are wanted, in each round that is not known."""
        known = {(run["topology"], run["load"], run["round"]) for run in self.runs}
        chosen = [self.cases[number] for number in self.given.cases] if self.given.cases else self.cases
        rounds = [[case for case in chosen if (*case, number) not in known] for number in range(self.given.rounds)]
        # All of them before the first launch: also a profile that lacks something shows now.
        predicted = {case: self.predict(TOPOLOGIES[case[0]], LOADS[case[1]]) for case in set(chain(*rounds))}
        for number, left in enumerate(rounds):
            for name in dict.fromkeys(topology for topology, _ in left):
                self.launch(name, number, {load: predicted[name, load] for one, load in left if one == name})

    def launch(self, name: str, number: int, predicted: Mapping[str, Figures]) -> None:
        """Measure in this round the loads of which these figures were predicted."""
        topology = TOPOLOGIES[name]
        alone = self.predict(topology, REFERENCE)
        # A disk keeps the KV of the launch before.
        shutil.rmtree(self.folder / "tier", ignore_errors=True)
        words = self.filled(f"{topology.launch} {topology.both}")
        with launched([*words, "--model", self.given.model]) as launch:
            target = BenchTarget(launch.url, name_at(launch.url))
            asyncio.run(BenchRun(target, fixed(64, 8, VOCABULARY, 0), 4, TIMEOUT).run(Load(2)))
            for load, figures in predicted.items():
                run = self.run(launch, target, LOADS[load], alone)
                by_speed = [self.predict(topology, LOADS[load], speed) for speed in (run.before, run.slowdown)]
                self.keep({"topology": name, "load": load, "round": number}, run, [figures, *by_speed])

    def filled(self, words: str) -> list[str]:
        return [self.words.get(word, word) for word in words.split()]

    def predict(self, topology: BenchedTopology, load: CaseLoad, slowdown: float = 1.0) -> Figures:
        """Return what a plan says. A plan of which some requests fail ends with 1."""
        words = f"{topology.plan} {topology.both} {load.options} --requests {load.requests} --longest {LONGEST}"
        words += f" --cores {CORES} --clients-here --json --slowdown {slowdown} --repeats {self.given.repeats}"
        words += f" --kill {load.kills}" if load.kills else ""
        command = [sys.executable, str(ROOT / "app.py"), "plan", "--profile", self.given.profile]
        command += self.filled(words)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not done.stdout:
            raise SystemExit(done.stderr)
        row: Figures = json.loads(done.stdout.splitlines()[0])
        return row

    def run(self, launch: ProfiledLaunch, target: BenchTarget, load: CaseLoad, alone: Figures) -> "SeenRun":
        """Return a run that others disturbed least. One stream has these figures where the machine is as fast as when
        it was profiled."""
        until = time.monotonic() + self.given.patience
        before = self.slowdown(launch, target, alone)
        tries = list[SeenRun]()
        while not tries or (tries[-1].others > self.given.others and time.monotonic() < until):
            watch = MachineWatch(launch.process.pid)
            figures = asyncio.run(one_run(target, self.questions(load, next(self.seeds), launch), load))
            others = watch.others()
            if load.kills is not None:
                wait_until_whole(launch)
            after = self.slowdown(launch, target, alone)
            tries.append(SeenRun(figures, others, before, after))
            before = after
        return min(tries, key=lambda one: one.others)

    def slowdown(self, launch: ProfiledLaunch, target: BenchTarget, alone: Figures) -> float:
        # An answer may come sooner by guesses, which are a part of what is compared.
        name = SCORE if self.given.drafts is None else "ttft_ms_median"
        questions = self.questions(REFERENCE, next(self.seeds), launch)
        figures = asyncio.run(one_run(target, questions, REFERENCE))
        return float(figures[name] / alone[name])

    def questions(self, load: CaseLoad, seed: int, launch: ProfiledLaunch) -> Iterator[Question]:
        """Yield the requests of a load; as half of them are sent, a worker dies if one is to."""
        if load.value("--lengths"):
            asked = recorded(self.turns, LONGEST, VOCABULARY, seed)
        else:
            prompt, answer = load.value("--prompt-tokens"), load.value("--output-tokens")
            asked = fixed(int(prompt or 0), int(answer or 0), VOCABULARY, seed)
        for number, question in enumerate(asked, 1):
            if load.kills is not None and number == load.requests - load.requests // 2:
                launch.kill(re.compile(f"{load.kills}:0"))
            yield question

    def keep(self, of: Mapping[str, Any], run: "SeenRun", predicted: Sequence[Figures]) -> None:
        seen = {"others": round(run.others, 3), "slowdown": round(run.slowdown, 3), "failures": run.figures["failures"]}
        figures = {"measured": run.figures, **dict(zip(PREDICTED, predicted, strict=True))}
        named = {kind: {name: some[name] for name in (*GOALS, SCORE)} for kind, some in figures.items()}
        self.runs.append({**of, **seen, **named})
        print(json.dumps(self.runs[-1]), flush=True)
        if self.given.runs is not None:
            with self.given.runs.open("a") as file:
                print(json.dumps(self.runs[-1]), file=file)


@dataclass(frozen=True, slots=True)
class SeenRun:
    """The figures of a run, the cores that others used, and how many times as long as planned one stream took before
    and after it."""

    figures: Figures
    others: float
    before: float
    after: float

    @property
    def slowdown(self) -> float:
        return (self.before + self.after) / 2


def name_at(url: str) -> str:
    """Return the name of the model that a launch serves: that of a file is not its path."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=TIMEOUT) as answer:
        return str(json.load(answer)["data"][0]["id"])


async def one_run(target: BenchTarget, questions: Iterator[Question], load: CaseLoad) -> Figures:
    rate, streams = load.value("--request-rate"), load.value("--concurrency")
    asked = Load(request_rate=float(rate)) if rate else Load(concurrency=int(streams or 1))
    # Moments of requests are those of the plan's first load.
    outcomes = await BenchRun(target, questions, load.requests, TIMEOUT).run(asked, 1)
    return figures_of(outcomes, Limits())


def wait_until_whole(launch: ProfiledLaunch) -> None:
    """Wait until every process that the launch has is ready again."""
    until = time.monotonic() + TIMEOUT
    while time.monotonic() < until:
        with urllib.request.urlopen(f"{launch.url}/admin/topology", timeout=TIMEOUT) as answer:
            rows = json.load(answer)
        states = [row["state"] for row in (rows["processes"] if isinstance(rows, dict) else rows)]
        if all(state == "READY" for state in states):
            return
        time.sleep(LOOK)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", required=True, metavar="FILE")
    parser.add_argument("--model", required=True, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3, metavar="COUNT", help="runs of each load")
    parser.add_argument("--repeats", type=int, default=3, metavar="COUNT", help="simulations of each prediction")
    parser.add_argument("--cases", type=int, nargs="*", metavar="NUMBER", help="some only, from 0 on")
    parser.add_argument("--drafts", metavar="NAME", help="a draft model, to compare with and without it")
    parser.add_argument("--runs", type=Path, metavar="FILE", help="append to it, and leave out what it has")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table")
    parser.add_argument("--others", type=float, default=0.1, metavar="CORES", help="the most that others may use")
    parser.add_argument("--patience", type=float, default=20.0, metavar="SECONDS")
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        bench = PlannerBench(given, Path(folder))
        bench.measure()
    lines = report(rows_of(bench.runs), Path(given.profile))
    print("\n".join(lines))
    if given.markdown is not None:
        given.markdown.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
