# SPDX-License-Identifier: Apache-2.0
"""The benchmark of answers: its questions, its sums, and its lines about a server whose every answer is known."""

import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import bench_answers
import pytest
from bench_answers import Answered
from bench_failover import FailoverServer
from question_set import LETTERS, KnownQuestion, question_set

ASKED = {one.text: one for one in question_set()}


class KnowingServer:
    """A server that answers rightly, but refuses each question once. Those in `wrong` it answers wrongly, and streams
    of those in `broken` end with an error."""

    def __init__(self) -> None:
        self.wrong, self.broken, self.seen = set[str](), set[str](), Counter[str]()
        self.lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert body["temperature"] == 0 and self.path == "/v1/chat/completions"
                text = body["messages"][0]["content"]
                with outer.lock:
                    outer.seen[text] += 1
                    refused = outer.seen[text] == 1
                self.send_response(503 if refused else 200)
                self.send_header("retry-after", "0")
                self.end_headers()
                self.wfile.write(b'{"error": {}}' if refused else outer.stream(ASKED[text]))

            def log_message(self, format: str, *args: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def stream(self, question: KnownQuestion) -> bytes:
        reply = "none" if question.text in self.wrong else f"It is {question.answer}."
        events = [
            {"choices": [{"delta": {"content": reply[:4]}, "finish_reason": None}]},
            {"choices": [{"delta": {"content": reply[4:]}, "finish_reason": "stop"}]},
            {"choices": [], "usage": {"completion_tokens": 3}},
        ]
        if question.text in self.broken:
            events[1:] = [{"error": {"message": "it broke"}}]
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        return "".join([*lines, "data: [DONE]\n\n"]).encode()


@pytest.fixture
def server() -> Iterator[KnowingServer]:
    made = KnowingServer()
    yield made
    made.http.shutdown()
    made.http.server_close()


def bench(server: KnowingServer, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    url = f"http://127.0.0.1:{server.http.server_port}"
    monkeypatch.setattr(sys, "argv", ["bench_answers.py", "--url", url, "--streams", "8", *words])
    return bench_answers.main()


def test_every_question_has_one_answer_and_letters_are_spread() -> None:
    asked = question_set()
    assert asked == question_set() and len(ASKED) == len(asked) == 128
    letters = Counter(one.answer for one in asked if one.with_choices)
    assert set(letters) == set(LETTERS) and max(letters.values()) - min(letters.values()) <= 2
    for one in asked:
        lines = one.text.splitlines()
        assert len(set(lines)) == len(lines) == (6 if one.with_choices else 1)


@pytest.mark.parametrize(
    ("with_choices", "answer", "reply", "right"),
    [
        (True, "B", "B", True),
        (True, "B", "The answer is B. mars", True),
        (True, "B", "C, not B", False),
        (True, "B", "Because", False),
        (False, "-12", "15 minus 27 is -12.", True),
        (False, "1000", "1,000", True),
        (False, "12", "112", False),
        (False, "12", "", False),
    ],
)
def test_replies_are_judged(with_choices: bool, answer: str, reply: str, right: bool) -> None:
    assert KnownQuestion("?", answer, with_choices).is_right(reply) is right


def test_a_server_has_a_score(
    server: KnowingServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.wrong = set(list(ASKED)[:3])
    assert bench(server, monkeypatch) == 0
    line = json.loads(capsys.readouterr().out)
    assert (line["way"], line["choices"], line["sums"], line["score"]) == (
        "server",
        "37/40",
        "88/88",
        round(125 / 128, 3),
    )
    # A refusal for load is asked again.
    assert set(server.seen.values()) == {2} and line["failures"] == [] and line["different"] == 0


def test_a_stream_that_breaks_is_a_failure(
    server: KnowingServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.broken = set(list(ASKED)[:2])
    assert bench(server, monkeypatch, "--questions", "5") == 1
    line = json.loads(capsys.readouterr().out)
    assert line["choices"] == "3/5" and len(line["failures"]) == 2 and "it broke" in line["failures"][0]


def test_figures_are_recorded_behind_those_that_are_there(
    server: KnowingServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = tmp_path / "history.md"
    table.write_text("## Answers\n\n| processor | way | right |\n|---|---|---|\n| old | pair | 1 |\n\n## Others\n")
    monkeypatch.setattr(bench_answers, "TABLE", table)
    assert bench(server, monkeypatch, "--questions", "41", "--record") == 0
    lines = table.read_text().splitlines()
    assert lines[4] == "| old | pair | 1 |" and lines[6:] == ["", "## Others"]
    assert " | server | 40/40, 1/1 | 0 of 41 | 0 | 0 | `scripts/bench_answers.py" in lines[5]


def test_answers_of_rounded_weights_are_compared_with_each_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = question_set()[:2]
    of_way = {"pair": "A", "mixed": "A", "int8": "B", "int8-mixed": "B"}
    figures = {"killed": 0, "seconds": 1.0}
    monkeypatch.setattr(bench_answers, "measure", lambda way, *_: ([Answered(of_way[way], "stop", 1)] * 2, figures))
    monkeypatch.setattr(sys, "argv", ["bench_answers.py", "--questions", "2", "--ways", *of_way])
    assert bench_answers.main() == 0 and len(asked) == 2
    of_way["int8-mixed"] = "A"
    assert bench_answers.main() == 1
    assert [json.loads(line)["different"] for line in capsys.readouterr().out.splitlines()] == [0] * 7 + [2]


def test_ways_that_differ_by_a_word_or_a_token_are_seen() -> None:
    asked = question_set()[:3]
    first = [Answered("A", "stop", 2)] * 3
    other = [Answered("A", "stop", 2), Answered("A.", "stop", 2), Answered("A", "length", 3)]
    assert bench_answers.score(asked, other, first)["different"] == 2


def test_workers_are_killed_in_turn_at_their_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = []
    server = FailoverServer("http://127.0.0.1:1", "tiny")
    monkeypatch.setattr(server, "row", lambda name: {"pid": name})
    monkeypatch.setattr("os.kill", lambda pid, number: killed.append(pid))
    killer = bench_answers.Killer(server, [2, 4, 6])
    for _ in range(8):
        killer.answered()
    assert killed == ["decode:0", "prefill:0", "decode:0"] and killer.killed == 3
