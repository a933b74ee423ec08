# SPDX-License-Identifier: Apache-2.0
"""The commands `chat` and `status` against a server that answers as the proxy does and records its requests."""

import json
import os
import pty
import select
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from command_line import APP, app
from forked_program import fork_program

CACHED = {"cached_tokens": 4}


class ChatHandler(BaseHTTPRequestHandler):
    asked: list[dict[str, Any]]

    def do_GET(self) -> None:
        known = {"/v1/models": {"data": [{"id": "small"}]}}
        self.reply(200, json.dumps(known[self.path]))

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(question | {"key": self.headers["authorization"]})
        said = question["messages"][-1]["content"]
        if said == "who":
            self.reply(401, json.dumps({"error": {"message": "an API key is needed"}}))
            return
        if said == "refuse":
            self.reply(503, json.dumps({"error": {"message": "no worker is ready"}}))
            return
        events: list[dict[str, Any]] = [
            {"choices": [{"delta": {"role": "assistant"}}]},
            *({"choices": [{"delta": {"reasoning_content": piece}}]} for piece in ("well ", "now") if said == "think"),
            *({"choices": [{"delta": {"content": piece}}]} for piece in ("you said ", said)),
            {"error": {"message": "the worker died"}}
            if said == "die"
            else {
                "choices": [],
                "usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": CACHED},
            },
        ]
        self.reply(200, "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n")

    def reply(self, status: int, content: str) -> None:
        self.send_response(status)
        self.send_header("x-pontil-route", "prefill:0>decode:0")
        self.end_headers()
        self.wfile.write(content.encode())

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def asked() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def url(asked: list[dict[str, Any]]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Recording", (ChatHandler,), {"asked": asked})) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_conversation_keeps_its_turns(url: str, asked: list[dict[str, Any]]) -> None:
    done = app("chat", "--url", url, "--max-tokens", "7", typed="one\n\nrefuse\ntwo\n")
    assert done.returncode == 0 and done.stderr == "\nerror: no worker is ready\n"
    assert done.stdout.count("[9 prompt tokens, 4 cached, 2 generated, ") == 2
    assert done.stdout.count(", prefill:0>decode:0]") == 2 and "you said two" in done.stdout
    assert [turn["content"] for turn in asked[-1]["messages"]] == ["one", "you said one", "two"]
    assert (asked[-1]["model"], asked[-1]["max_tokens"], asked[-1]["stream"]) == ("small", 7, True)


def test_one_answer_as_json(url: str) -> None:
    done = app("chat", "--url", url, "--json", "hello")
    shown = json.loads(done.stdout)
    assert done.returncode == 0 and (shown["answer"], shown["route"]) == ("you said hello", "prefill:0>decode:0")
    assert (shown["usage"]["completion_tokens"], shown["usage"]["prompt_tokens_details"]) == (2, CACHED)
    assert 0 < shown["first_token_seconds"] <= shown["seconds"]
    refused = app("chat", "--url", url, "--json", "refuse")
    assert (refused.returncode, refused.stdout, refused.stderr) == (1, "", "Error: no worker is ready\n")
    without = app("chat", "--url", url, "--json")
    assert without.returncode == 2 and without.stderr == "Error: --json prints one answer: give a QUESTION.\n"


def test_the_address_is_an_argument_as_for_the_other_commands(url: str) -> None:
    for address in (url, f"{url}/v1", url.removeprefix("http://")):
        assert app("chat", address, "hello").stdout == "you said hello\n"
    several = app("chat", url, "hello", "there")
    assert several.returncode == 2 and "put it in quotes" in several.stderr


def test_commands_change_what_is_sent(url: str, asked: list[dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    lines = [
        "/system Be brief.", "/params temperature=0 stop=[\"a b\", \"c\"] user=me and you", "one", "//slash",
        f"/save {file}", f"/save {file}", "/params messages=1", "/nothing", "/params max_tokens= user=", "/clear",
        "/system", "two", "/exit", "three",
    ]  # fmt: skip
    done = app("chat", "--url", url, typed="\n".join(lines) + "\n")
    assert done.returncode == 0 and [one["messages"][-1]["content"] for one in asked] == ["one", "/slash", "two"]
    first, _, last = asked
    assert first["messages"][0] == {"role": "system", "content": "Be brief."} and len(asked[1]["messages"]) == 4
    assert (first["temperature"], first["stop"], first["user"]) == (0, ["a b", "c"], "me and you")
    assert len(last["messages"]) == 1 and not {"max_tokens", "user"} & set(last)
    kept = json.loads(file.read_text())
    assert kept["messages"][-1]["content"] == "you said /slash" and kept["system"] == "Be brief."
    assert file.stat().st_mode & 0o777 == 0o600
    errors = done.stderr.splitlines()
    assert len(errors) == 2 and "File exists" in errors[0] and "not 'messages=1'" in errors[1]
    assert "[there is no /nothing: /help lists the commands]" in done.stdout


def test_turns_of_several_lines_and_a_history(url: str, asked: list[dict[str, Any]], tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    around = os.environ | {"XDG_STATE_HOME": str(tmp_path), "TERM": "xterm"}
    process = fork_program([str(APP), "chat", "--url", url], tmp_path, [theirs] * 3, around, computing=False)
    try:
        os.close(theirs)
        seen = ReadTerminal(ours)
        seen.until(READS)
        os.write(ours, b"one\x1b\rtwo\r")
        seen.until("decode:0]")
        seen.until(READS)
        # The arrow up brings the turn before back; the second one goes to its first line.
        os.write(ours, b"\x1b[A\x1b[Athree\r")
        seen.until("decode:0]")
        seen.until(READS)
        os.write(ours, b"\x04")
        assert process.wait(60) == 0
    finally:
        process.kill()
    os.close(ours)
    assert [one["messages"][-1]["content"] for one in asked] == ["one\ntwo", "onethree\ntwo"]
    history = tmp_path / "pontil" / "chat_history"
    assert "+one" in history.read_text() and history.stat().st_mode & 0o777 == 0o600


# A terminal is told so when a turn can be typed.
READS = "\x1b[?2004h"


class ReadTerminal:
    """The output of a process on its terminal, read up to one text after the other."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.seen = descriptor, ""

    def until(self, text: str) -> None:
        while text not in self.seen:
            assert select.select([self.descriptor], [], [], 60)[0], self.seen
            self.seen += os.read(self.descriptor, 65536).decode()
        self.seen = self.seen.partition(text)[2]


def test_one_question_has_one_answer(url: str) -> None:
    assert app("chat", "--url", url, "hello").stdout == "you said hello\n"
    assert app("chat", "--url", url, "think").stdout == "well now\n\nyou said think\n"


def test_a_key_is_shown_and_never_told(url: str, asked: list[dict[str, Any]], tmp_path: Path) -> None:  # F5
    (tmp_path / "keys").write_text("# mine\nme=sk-of-the-file-0123456\nsk-another-0123456789\n")
    (tmp_path / "keys").chmod(0o600)
    given = "you=sk-of-the-environment,sk-another-0123456789"
    assert app("chat", "--url", url, "hello").returncode == 0
    assert app("chat", "--url", url, "hello", PONTIL_API_KEYS=given).returncode == 0
    assert app("chat", "--url", url, "--key", str(tmp_path / "keys"), "hello", PONTIL_API_KEYS=given).returncode == 0
    shown = [None, "Bearer sk-of-the-environment", "Bearer sk-of-the-file-0123456"]
    assert [one["key"] for one in asked] == shown
    wrong = app("chat", "--url", url, "hello", PONTIL_API_KEYS="hunter2")
    assert wrong.returncode == 2 and "Key 1 of PONTIL_API_KEYS is no key" in wrong.stderr
    assert "hunter2" not in wrong.stderr


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("refuse", "no worker is ready"),
        ("die", "the worker died"),
        ("who", "an API key is needed; give its file with --key"),
    ],
)
def test_an_error_is_a_sentence_and_an_exit_code(url: str, question: str, said: str) -> None:
    done = app("chat", "--url", url, question)
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == f"Error: {said}"


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "ftp://here", "http://:x"])
def test_a_server_that_is_not_there_is_said(url: str) -> None:
    done = app("status", "--url", url)
    assert done.returncode == 1 and done.stderr.startswith("Error: ") and "Traceback" not in done.stderr
