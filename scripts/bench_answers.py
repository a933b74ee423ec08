# SPDX-License-Identifier: Apache-2.0
"""Ask questions with known answers over HTTP, in several ways of serving a model: print each way's score, and compare.

    python scripts/bench_answers.py --model qwen2.5-coder-1.5b --draft qwen2.5-coder-0.5b [--streams 64]

The questions are those of scripts/question_set.py: 40 with four choices, and 88 sums. All are asked as chats, greedily,
so many at a time. Ways: `pair`, a prefill and a decode worker; `mixed`, one worker; `ranks`, one worker of several
processes; `drafts`, a pair with the draft model, or without --draft with guesses from repeated text; `kills`, a pair
whose decode and prefill worker are killed (SIGKILL) when a third and two thirds of the answers are there: as many
deaths as a request may meet; `int8` and `int8-mixed`, a pair and one worker with weights of 8 bits, whose answers are
others and the same for both. Each way is launched by itself on --port; further flags go to every launch. With --url
nothing is launched: a running server is the only way.

Prints a JSON object for each way: the right answers of each kind, the answers that are not those of the first way with
such weights, word for word and token for token, failures, processes that were killed, and seconds. Exit code 1 if
anything differs or failed. Refusals for load (429 and 503) are asked again. --record appends the figures, with the
processor and the command, to the table of answers in docs/measurements-history.md.
"""

import argparse
import http.client
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_compare import ComparedLaunch
from bench_failover import APP, PATIENCE, FailoverServer
from question_set import KnownQuestion, question_set

from pontil.runtime.probe.processor_name import processor_name

PAIR = ("--prefill", "cpu:0", "--decode", "cpu:1")
MIXED = ("--role", "mixed")
INT8 = ("--quantization", "int8")
# Workers and weights of each way.
WAYS = {
    "pair": PAIR,
    "mixed": MIXED,
    "ranks": MIXED,
    "drafts": PAIR,
    "kills": PAIR,
    "int8": (*PAIR, *INT8),
    "int8-mixed": (*MIXED, *INT8),
}
TABLE = Path(__file__).resolve().parent.parent / "docs" / "measurements-history.md"
VICTIMS = ("decode:0", "prefill:0")
REFUSED = (429, 503)


@dataclass(frozen=True)
class Answered:
    """One answer as far as it must not depend on the way: its text, why it ended, and its number of tokens."""

    text: str
    finish: str | None
    tokens: int


class Killer:
    """Kills a worker, each in turn, whenever one of `marks` is the number of answers. Thread-safe."""

    def __init__(self, server: FailoverServer, marks: Sequence[int]) -> None:
        self.server, self.marks, self.lock = server, set(marks), threading.Lock()
        self.answers = self.killed = 0

    def answered(self) -> None:
        with self.lock:
            self.answers += 1
            if self.answers not in self.marks:
                return
            row = self.server.row(VICTIMS[self.killed % len(VICTIMS)])
            if row.get("pid"):
                with suppress(ProcessLookupError):
                    os.kill(row["pid"], signal.SIGKILL)
                    self.killed += 1


def ask(server: FailoverServer, question: KnownQuestion, tokens: int) -> "Answered | str":
    """Return the answer, or why there is none."""
    messages = [{"role": "user", "content": question.text}]
    return stream(server, "/v1/chat/completions", {"messages": messages, "max_tokens": tokens})


def stream(server: FailoverServer, path: str, fields: dict[str, Any]) -> "Answered | str":
    """Ask greedily for a stream of these fields; return the answer, or why there is none."""
    body = {
        "model": server.model,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }
    end = time.monotonic() + PATIENCE
    while True:
        try:
            response = server.ask("POST", path, body)
            if response.status == 200:
                return read_stream(response)
            reason = f"{response.status}: {response.read(300).decode(errors='replace')}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        if response.status not in REFUSED or time.monotonic() > end:
            return reason
        wait = response.getheader("retry-after") or ""
        threading.Event().wait(min(int(wait) if wait.isdecimal() else 1, 5))


def read_stream(response: http.client.HTTPResponse) -> "Answered | str":
    """Read a stream to its end. Raises ValueError for one that is no JSON."""
    text, finish, tokens = "", None, 0
    for line in response:
        if line.startswith(b"data: [DONE]"):
            return Answered(text, finish, tokens)
        if not line.startswith(b"data: "):
            continue
        event: dict[str, Any] = json.loads(line[6:])
        if "error" in event:
            return f"error in the stream: {event['error']}"
        for choice in event.get("choices", ()):
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
            finish = choice.get("finish_reason") or finish
        tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    return "the stream ended without [DONE]"


def ask_all(
    server: FailoverServer, asked: Sequence[KnownQuestion], streams: int, tokens: int, answered: Callable[[], None]
) -> list["Answered | str"]:
    """Ask all questions, so many at a time; return what came of each."""

    def one(question: KnownQuestion) -> "Answered | str":
        found = ask(server, question, tokens)
        answered()
        return found

    with ThreadPoolExecutor(streams) as pool:
        return list(pool.map(one, asked))


def score(asked: Sequence[KnownQuestion], found: Sequence["Answered | str"], first: Sequence["Answered | str"]) -> Any:
    """Return a way's figures beside those of the `first` way."""
    right = [
        isinstance(one, Answered) and question.is_right(one.text) for question, one in zip(asked, found, strict=True)
    ]
    kinds = {"choices": True, "sums": False}
    of_kind = {
        name: [was for question, was in zip(asked, right, strict=True) if question.with_choices is kind]
        for name, kind in kinds.items()
    }
    return {
        **{name: f"{sum(some)}/{len(some)}" for name, some in of_kind.items()},
        "score": round(sum(right) / max(1, len(right)), 3),
        "different": sum(one != other for one, other in zip(found, first, strict=True)),
        "failures": [one for one in found if isinstance(one, str)],
    }


def launch_of(way: str, arguments: argparse.Namespace, more: Sequence[str]) -> list[str]:
    """Return the command that serves the model in a way."""
    guesses = ("--speculative-model", arguments.draft) if arguments.draft else ("--speculative-tokens", "4")
    ranks = ("--mixed", arguments.ranks, "--share-devices") if way == "ranks" else ()
    model = ("--model", arguments.model, "--port", str(arguments.port))
    return [
        sys.executable,
        str(APP),
        "launch",
        *model,
        *WAYS[way],
        *ranks,
        *(guesses if way == "drafts" else ()),
        *more,
    ]


def measure(way: str, arguments: argparse.Namespace, more: Sequence[str]) -> tuple[list["Answered | str"], Any]:
    """Ask in one way; return what came, and the figures that need no other way."""
    asked = question_set()[: arguments.questions]
    url = arguments.url or f"http://127.0.0.1:{arguments.port}"
    server = FailoverServer(url, arguments.model)
    marks = [len(asked) * third // 3 for third in (1, 2)] if way == "kills" else []
    killer = Killer(server, marks)

    def run() -> tuple[list["Answered | str"], Any]:
        begin = time.monotonic()
        found = ask_all(server, asked, arguments.streams, arguments.tokens, killer.answered)
        return found, {"killed": killer.killed, "seconds": round(time.monotonic() - begin, 1)}

    if arguments.url:
        return run()
    with ComparedLaunch(way, launch_of(way, arguments, more), url, arguments.model).running():
        return run()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--draft", help="for --speculative-model: a name, a path or mtp")
    parser.add_argument("--ranks", default="cpu:0+cpu:1", help="the devices of the way ranks")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    parser.add_argument("--record", action="store_true", help="append the figures to docs/measurements-history.md")
    parser.add_argument("--streams", type=int, default=64, help="questions asked at a time")
    parser.add_argument("--questions", type=int, default=None, help="ask only so many")
    parser.add_argument("--tokens", type=int, default=24, help="most tokens of an answer")
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--url", help="a running server; launches nothing")
    arguments, more = parser.parse_known_args()
    asked = question_set()[: arguments.questions]
    # The first answers, by what is told of the weights.
    first: dict[bool, list[Answered | str]] = {}
    lines: list[dict[str, Any]] = []
    for way in ("server",) if arguments.url else arguments.ways:
        found, figures = measure(way, arguments, more)
        others = first.setdefault(way.startswith("int8"), found)
        lines.append({"way": way, "questions": len(asked), **score(asked, found, others), **figures})
        print(json.dumps(lines[-1]), flush=True)
    if arguments.record:
        record(lines, arguments)
    return int(any(line["different"] or line["failures"] for line in lines))


def record(lines: Sequence[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Append a row for each way to the table of answers."""
    draft = f" --draft {arguments.draft}" if arguments.draft else ""
    command = f"`scripts/bench_answers.py --model {arguments.model}{draft} --streams {arguments.streams}`"
    rows = [
        f"| {processor_name()} | {line['way']} | {line['choices']}, {line['sums']} | {line['different']} of "
        f"{line['questions']} | {len(line['failures'])} | {line['killed']} | {command} |"
        for line in lines
    ]
    put_behind("| processor | way | right |", rows)


def put_behind(heading: str, rows: Sequence[str]) -> None:
    """Append rows to the table with this heading."""
    text = TABLE.read_text().splitlines()
    place = next(number for number, line in enumerate(text) if line.startswith(heading))
    while place < len(text) and text[place].startswith("|"):
        place += 1
    TABLE.write_text("\n".join([*text[:place], *rows, *text[place:]]) + "\n")


if __name__ == "__main__":
    sys.exit(main())
