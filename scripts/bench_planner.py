# SPDX-License-Identifier: Apache-2.0
"""Compare what `pontil plan` predicts with what clients see of real launches on this machine, which has two cores.

    python scripts/bench_planner.py --profile FILE --model NAME [--repeats 3] [--rows FILE] [--markdown FILE]

Each configuration is predicted from the profile before it is launched. It then has the same load so many times: the
same requests at the same moments, with other prompts. A figure's median over these counts, and its spread is half the
distance of their least and greatest. A prediction is good within the goal of its figure, or within twice the spread:
that cannot be told from noise. Where other programs took more than --others of the cores, or a core was more than
--slow times as slow as it can be (that of a virtual machine may be half of one), a run is repeated, for up to
--patience seconds a configuration; the table says what was left of both. Rows of configurations that the file --rows
has already are not measured again: a run that was broken off goes on. --cases measures some configurations only.

--drafts NAME measures other ones, with and without this draft model, of which all guesses have to be right: those of a
model whose file scripts/deepen_model.py made, by the one that it was made from.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from machine_watch import MachineWatch, SeenDisturbance, SpeedProbe

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import app  # noqa: E402, F401
from pontil.launcher.tools.bench.bench_run import BenchRun, Load  # noqa: E402
from pontil.launcher.tools.bench.figures import Figures, Limits, figures_of  # noqa: E402
from pontil.launcher.tools.bench.questions import Question, fixed, recorded  # noqa: E402
from pontil.launcher.tools.bench.stream_client import BenchTarget  # noqa: E402
from pontil.launcher.tools.planner.profiled_launch import ProfiledLaunch, launched, name_of  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
# Figures with the part by which a prediction may be wrong, and the one by which topologies are compared.
GOALS = {"output_tokens_per_second": 0.05, "tpot_ms_median": 0.05, "ttft_ms_median": 0.10, "ttft_ms_p99": 0.15}
SHORT_NAMES = dict(zip(GOALS, ("tokens/s", "ms per token", "first token p50", "first token p99"), strict=True))
SCORE, AS_GOOD = "e2e_ms_median", 0.02
CORES, VOCABULARY, LONGEST, TIMEOUT = 2, 40_000, 2048, 120.0
# A look at how much others take, and a pause before the next try.
LOOK, PAUSE = 0.5, 1.0


@dataclass(frozen=True, slots=True)
class BenchedTopology:
    """Workers on the cores of this machine: the flags of their launch, and of their plan."""

    launch: str
    plan: str
    both: str = ""


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
    "1 mixed, drafts": BenchedTopology("--role mixed --mixed cpu:0", "--mixed 1 --accepted 1", GUESSES),
    "1P1D, drafts": BenchedTopology(
        "--prefill cpu:0 --decode cpu:1", "--prefill 1 --decode 1 --accepted 1", f"--disagg always {GUESSES}"
    ),
}
SHORT, LONG = "--prompt-tokens 64 --output-tokens 48", "--prompt-tokens 512 --output-tokens 32"
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
SETS = {
    "1 stream": EACH,
    "8 streams": (*EACH, "1P2D", "2P1D"),
    "2/s": EACH,
    "5/s": EACH,
    "8.5/s": EACH,
    "2 long streams": (*EACH, "2P1D"),
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

    def __init__(self, given: argparse.Namespace, folder: Path, probe: SpeedProbe) -> None:
        self.given, self.probe = given, probe
        self.turns = write_turns(folder / "turns.csv")
        self.words = {"CSV": str(self.turns), "DISK": f"disk:{folder / 'tier'}:1GiB", "DRAFT": str(given.drafts)}
        self.cases = cases(DRAFT_SETS if given.drafts else SETS)
        # No two runs have a prompt in common: a launch has the KV of those before.
        self.seeds = count(1)
        self.rows: list[dict[str, Any]] = []
        if given.rows is not None and given.rows.exists():
            self.rows = [json.loads(line) for line in given.rows.read_text().splitlines()]

    def measure(self) -> None:
        """Measure all configurations that are wanted and not known."""
        known = {(row["topology"], row["load"]) for row in self.rows}
        wanted = [self.cases[number] for number in self.given.cases] if self.given.cases else self.cases
        by_topology = defaultdict[str, list[str]](list)
        for topology, load in wanted:
            if (topology, load) not in known:
                by_topology[topology].append(load)
        for name, loads in by_topology.items():
            predicted = {load: self.predict(TOPOLOGIES[name], LOADS[load]) for load in loads}
            words = [*self.filled(f"{TOPOLOGIES[name].launch} {TOPOLOGIES[name].both}"), "--no-lend-cores"]
            with launched([*words, "--model", self.given.model]) as launch:
                target = BenchTarget(launch.url, self.given.model)
                asyncio.run(BenchRun(target, fixed(64, 8, VOCABULARY, 0), 4, TIMEOUT).run(Load(2)))
                for load in loads:
                    seen, worst = self.seen(launch, target, LOADS[load])
                    self.keep(name, load, predicted[load], seen, worst)

    def filled(self, words: str) -> list[str]:
        return [self.words.get(word, word) for word in words.split()]

    def predict(self, topology: BenchedTopology, load: CaseLoad) -> Figures:
        """Return what a plan says. A plan of which some requests fail ends with 1."""
        words = f"{topology.plan} {topology.both} {load.options} --requests {load.requests} --longest {LONGEST}"
        words += f" --cores {CORES} --clients-here --json" + (f" --kill {load.kills}" if load.kills else "")
        command = [sys.executable, str(ROOT / "app.py"), "plan", "--profile", self.given.profile]
        command += self.filled(words)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not done.stdout:
            raise SystemExit(done.stderr)
        row: Figures = json.loads(done.stdout.splitlines()[0])
        return row

    def seen(
        self, launch: ProfiledLaunch, target: BenchTarget, load: CaseLoad
    ) -> tuple[list[Figures], SeenDisturbance]:
        """Return the figures of each run, and how much the worst of them was disturbed."""
        until, made, worst = time.monotonic() + self.given.patience, list[Figures](), SeenDisturbance()
        for _ in range(self.given.repeats):
            tries = list[tuple[SeenDisturbance, Figures]]()
            while not tries or (not self.is_quiet(tries[-1][0]) and time.monotonic() < until):
                self.wait_for_quiet(launch, until)
                watch = MachineWatch(launch.process.pid, self.probe)
                questions = self.questions(load, next(self.seeds), launch)
                figures = asyncio.run(one_run(target, questions, load))
                if load.kills is not None:
                    wait_until_whole(launch)
                tries.append((watch.seen(), figures))
            disturbance, figures = min(tries, key=lambda one: one[0].size)
            made.append(figures)
            worst = worst.with_worst(disturbance)
        return made, worst

    def is_quiet(self, seen: SeenDisturbance) -> bool:
        return bool(seen.others <= self.given.others and seen.slowness <= self.given.slow)

    def wait_for_quiet(self, launch: ProfiledLaunch, until: float) -> None:
        while time.monotonic() < until:
            watch = MachineWatch(launch.process.pid, self.probe)
            time.sleep(LOOK)
            if self.is_quiet(watch.seen()):
                return
            time.sleep(PAUSE)

    def questions(self, load: CaseLoad, seed: int, launch: ProfiledLaunch) -> Iterator[Question]:
        """Yield the requests of a load; as half of them are sent, a worker dies if one is to."""
        if load.value("--lengths"):
            asked = recorded(self.turns, LONGEST, VOCABULARY, seed)
        else:
            prompt, answer = load.value("--prompt-tokens"), load.value("--output-tokens")
            asked = fixed(int(prompt or 0), int(answer or 0), VOCABULARY, seed)
        for number, question in enumerate(asked, 1):
            if load.kills is not None and number == load.requests - load.requests // 2:
                kill_first(launch, load.kills)
            yield question

    def keep(
        self, topology: str, load: str, predicted: Figures, seen: Sequence[Figures], worst: SeenDisturbance
    ) -> None:
        row: dict[str, Any] = {"topology": topology, "load": load}
        row |= {name: round(value, 3) for name, value in asdict(worst).items()}
        row["quiet"] = self.is_quiet(worst)
        row["failures"] = sum(one["failures"] for one in seen)
        for name in (*GOALS, SCORE):
            values = [one[name] for one in seen]
            row[name] = {"predicted": predicted[name], "measured": values}
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        if self.given.rows is not None:
            with self.given.rows.open("a") as file:
                print(json.dumps(row), file=file)


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


def kill_first(launch: ProfiledLaunch, role: str) -> None:
    for one in psutil.Process(launch.process.pid).children(recursive=True):
        if name_of(one) == f"{role}:0":
            os.kill(one.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class ComparedFigures:
    """One figure of one configuration."""

    predicted: float
    measured: float
    spread: float
    goal: float

    @classmethod
    def of(cls, row: dict[str, Any], name: str) -> "ComparedFigures":
        values = row[name]["measured"]
        spread = (max(values) - min(values)) / 2
        return cls(row[name]["predicted"], statistics.median(values), spread, GOALS.get(name, AS_GOOD))

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1 if self.measured else 0.0

    @property
    def is_good(self) -> bool:
        return abs(self.error) <= self.goal or abs(self.predicted - self.measured) <= 2 * self.spread

    def __str__(self) -> str:
        mark = "" if self.is_good else " **wrong**"
        return f"{self.predicted:g} / {self.measured:g} ({self.error:+.0%}){mark}"


def best_found(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, bool, str, str]]:
    """Yield for each load with several topologies whether the predicted best is the best, with both names: one that is
    measured to be as good as the best, within the noise, is as well."""
    for load in dict.fromkeys(row["load"] for row in rows):
        some = {row["topology"]: ComparedFigures.of(row, SCORE) for row in rows if row["load"] == load}
        if len(some) > 1:
            chosen = min(some, key=lambda name: some[name].predicted)
            best = min(some, key=lambda name: some[name].measured)
            noise = max(AS_GOOD * some[best].measured, 2 * max(some[best].spread, some[chosen].spread))
            yield load, some[chosen].measured - some[best].measured <= noise, chosen, best


def report(rows: Sequence[dict[str, Any]], profile: str) -> list[str]:
    """Return the table in Markdown, and what it says where predictions are wrong."""
    about = json.loads(Path(profile).read_text())["about"]
    lines = [f"Predicted / measured (error) of {about['model']} on {about['processor']}, {about['kernels']}.", ""]
    lines += ["| workers | load | " + " | ".join(SHORT_NAMES.values()) + " | others | slow |"]
    lines.append("|---" * (len(GOALS) + 4) + "|")
    for row in rows:
        figures = [str(ComparedFigures.of(row, name)) for name in GOALS]
        disturbed = f"{row['others']:.2f} | {row['slowness']:.2f}"
        lines.append(f"| {row['topology']} | {row['load']} | {' | '.join(figures)} | {disturbed} |")
    quiet = [row for row in rows if row["quiet"]]
    lines += ["", f"{len(quiet)} of {len(rows)} configurations were measured without others and on fast cores.", ""]
    lines += ["| figure | goal | within it or the noise | of quiet ones | median error | worst |"]
    lines += ["|---|---|---|---|---|---|"]
    for name, goal in GOALS.items():
        some = {f"{row['topology']}, {row['load']}": ComparedFigures.of(row, name) for row in rows}
        good_quiet = sum(ComparedFigures.of(row, name).is_good for row in quiet)
        good = sum(one.is_good for one in some.values())
        worst = max(some, key=lambda case: abs(some[case].error))
        middle = statistics.median(abs(one.error) for one in some.values())
        cells = (
            SHORT_NAMES[name],
            f"{goal:.0%}",
            f"{good} of {len(some)}",
            f"{good_quiet} of {len(quiet)}",
            f"{middle:.1%}",
        )
        lines.append(f"| {' | '.join(cells)} | {some[worst].error:+.0%} ({worst}) |")
    found = list(best_found(rows))
    if found:
        lines += ["", f"The best workers were found for {sum(good for _, good, _, _ in found)} of {len(found)} loads."]
        lines += [f"- {load}: {chosen} instead of {best}" for load, good, chosen, best in found if not good]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", required=True, metavar="FILE")
    parser.add_argument("--model", required=True, metavar="NAME")
    parser.add_argument("--repeats", type=int, default=3, metavar="COUNT", help="runs of each load")
    parser.add_argument("--cases", type=int, nargs="*", metavar="NUMBER", help="some only, from 0 on")
    parser.add_argument("--drafts", metavar="NAME", help="a draft model, to compare with and without it")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="append to it, and leave out what it has")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table")
    parser.add_argument("--others", type=float, default=0.1, metavar="CORES", help="the most that others may use")
    parser.add_argument("--slow", type=float, default=1.06, metavar="TIMES", help="how slow a core may be")
    parser.add_argument("--patience", type=float, default=20.0, metavar="SECONDS")
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        speed = SpeedProbe(Path(folder) / "speed")
        try:
            bench = PlannerBench(given, Path(folder), speed)
            bench.measure()
        finally:
            speed.close()
    lines = report(bench.rows, given.profile)
    print("\n".join(lines))
    if given.markdown is not None:
        given.markdown.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
