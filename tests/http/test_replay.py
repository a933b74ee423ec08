# SPDX-License-Identifier: Apache-2.0
"""Requests are recorded with receipts, and sent again: equal releases pass, and planted differences are named."""

import gzip
import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner, Result
from scripted_site import MODEL, ScriptedSite, site
from scripted_worker import DEADLINE, eventually, with_logits
from tiny_llama import byte_level_tokenizer, tokenizer_config, write_json

from pontil.http.fields.prompt import MAX_PROMPTS
from pontil.http.stream.replay import MOST_SEED, read
from pontil.launcher.cli import cli
from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.receipts.record_writer import RecordFile, RecordLimits, write_record
from pontil.launcher.receipts.replay import headers_of, load_record
from pontil.runtime.receipts.record import RecordedRequest
from pontil.runtime.receipts.signing import ReceiptSigner
from pontil.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer

KEY = "17" * 32
PUBLIC = ReceiptSigner(bytes.fromhex(KEY)).public_key.hex()
ADMIN = "admin-key-of-the-replay"
HELLO: dict[str, Any] = {"kernels": "amx int8", "dtype": "bfloat16", "version": "1.2.3"}
WHOLE = RecordLimits(100, 1, 1 << 26, 100.0)
CHAT = [{"role": "user", "content": "hi"}]
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": ["hi", "ho"], "max_tokens": 5, "temperature": 0.7, "n": 2}),
    ("/v1/chat/completions", {"messages": CHAT, "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/responses", {"input": "hi"}),
    ("/v1/messages", {"messages": CHAT, "max_tokens": 9}),
    ("/api/generate", {"prompt": "hi"}),
]


class RecordInProgress:
    """A record that is made while requests come."""

    def __init__(self, one: ScriptedSite, path: Path, limits: RecordLimits = WHOLE) -> None:
        self.path, self.begun, self.failure = path, threading.Event(), ""
        self.work: Callable[[], RecordFile] = lambda: write_record(
            f"http://127.0.0.1:{one.port}", {}, path, limits, self.begun.set
        )
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        assert self.begun.wait(DEADLINE)

    def run(self) -> None:
        try:
            self.work()
        except LaunchError as error:
            self.failure = error.message

    def end(self) -> Path:
        self.thread.join(DEADLINE)
        assert not self.thread.is_alive()
        return self.path


def ask_all(one: ScriptedSite) -> None:
    for path, body in ASKED:
        answer = one.ask("POST", path, {"model": MODEL} | body)
        assert answer.status == 200, answer.body
        assert b"receipt" not in answer.body, "a client that has not asked gets none"


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    with site(tmp_path_factory.mktemp("site"), tokenizer, receipt_key=KEY, max_attempts=1) as made:
        made.worker(**HELLO)
        yield made


@pytest.fixture(scope="module")
def record(first: ScriptedSite, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = RecordInProgress(
        first, tmp_path_factory.mktemp("record") / "sample.jsonl", replace(WHOLE, requests=len(ASKED))
    )
    ask_all(first)
    return made.end()


def run(path: Path, one: ScriptedSite, *words: str) -> Result:
    address = f"http://127.0.0.1:{one.port}"
    return CliRunner().invoke(cli, ["replay", str(path), "--against", address, *words], standalone_mode=False)


def kinds(made: Result) -> set[str]:
    assert made.return_value == 1, (made.output, made.exception)
    return {one["kind"] for one in json.loads(made.output)["differences"]}


def test_an_equal_release_answers_as_recorded(first: ScriptedSite, record: Path) -> None:
    assert stat.S_IMODE(os.stat(record).st_mode) == 0o600
    assert [request.key for request in load_record(record).requests] == ["-"] * len(ASKED)
    made = run(record, first, "--public-key", PUBLIC)
    assert made.return_value == 0, (made.output, made.exception)
    assert made.output == f"equal   {len(ASKED)} of {len(ASKED)} requests were answered as recorded\n"


def test_a_wrong_kernel_is_named_with_the_place(tmp_path: Path, tokenizer: Tokenizer, record: Path) -> None:
    with site(tmp_path, tokenizer, receipt_key=KEY, max_attempts=1) as one:
        one.worker(script=with_logits, **HELLO)
        made = run(record, one, "--json")
        assert kinds(made) == {"logits"}
        found = json.loads(made.output)
        assert {difference["position"] for difference in found["differences"]} == {2}
        assert all(difference["expected"] == difference["got"] for difference in found["differences"])
        made = run(record, one)
        assert "the logits of token 2 differ, both drew" in made.output and "0 of 5" in made.output


def test_another_answer_is_named_by_its_first_token(tmp_path: Path, tokenizer: Tokenizer, record: Path) -> None:
    with site(tmp_path, tokenizer, receipt_key=KEY, max_attempts=1) as one:
        one.worker(text="Hellx 😀 world", **HELLO)
        made = run(record, one, "--json")
        difference = json.loads(made.output)["differences"][-1]
        expected, got = (tokenizer.encode(text, False) for text in ("Hello 😀 world", "Hellx 😀 world"))
        place = next(place for place, ids in enumerate(zip(expected, got, strict=False)) if ids[0] != ids[1])
        assert kinds(made) == {"logits"}
        assert (difference["position"], difference["expected"], difference["got"]) == (
            place, expected[place], got[place],
        )  # fmt: skip


def test_another_template_and_another_tokenizer_differ_first_in_the_prompt(
    tmp_path: Path, tokenizer: Tokenizer, record: Path
) -> None:
    config = tokenizer_config()
    byte_level_tokenizer().save(str(tmp_path / "tokenizer.json"))
    write_json(tmp_path / "tokenizer_config.json", config | {"chat_template": "!" + config["chat_template"]})
    with site(tmp_path, load_tokenizer(tmp_path), receipt_key=KEY, max_attempts=1) as one:
        one.worker(**HELLO)
        made = run(record, one, "--json")
        assert kinds(made) == {"tokenizer"}
        by_path = {found["path"]: found for found in json.loads(made.output)["differences"]}
        assert by_path["/v1/messages"]["position"] == 0 and by_path["/v1/completions"]["position"] is None
        assert "chat template is another one" in by_path["/v1/messages"]["text"]


def test_a_replay_is_told_the_time_at_which_it_was_recorded(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Templates tell models the date, and no release answers for that of another day."""
    byte_level_tokenizer().save(str(tmp_path / "tokenizer.json"))
    template = "{{ strftime_now('%Y') }}: {{ messages[0].content }}"
    write_json(tmp_path / "tokenizer_config.json", tokenizer_config() | {"chat_template": template})
    with site(tmp_path, load_tokenizer(tmp_path), receipt_key=KEY) as one:
        one.worker(**HELLO)
        body = {"model": MODEL, "messages": CHAT}
        again = json.dumps({"seeds": [7], "at": 86400 * 400, "worker": None})
        headers = {"pontil-receipt": "1", "pontil-replay": again}
        assert one.ask("POST", "/v1/chat/completions", body, headers).status == 403, "any page can send plain text"
        headers["content-type"] = "application/json"
        answer = one.ask("POST", "/v1/chat/completions", body, headers)
        assert answer.status == 200, answer.body
        receipt = answer.json["receipt"]
        assert tokenizer.decode(receipt["prompt"]) == "1971: hi" and receipt["statement"]["parameters"]["seed"] == "7"
        receipt = one.ask("POST", "/v1/chat/completions", body, {"pontil-receipt": "1"}).json["receipt"]
        assert tokenizer.decode(receipt["prompt"]) != "1971: hi"


def test_a_release_that_refuses_differs(tmp_path: Path, tokenizer: Tokenizer, record: Path) -> None:
    with site(tmp_path, tokenizer, receipt_key=KEY, max_attempts=1) as one:
        one.worker(**HELLO)
        made = run(record, one, "--json", "--model", "other")
        assert kinds(made) == {"unanswered"} and "other" in made.output


def test_a_worker_that_takes_nothing_is_asked_all_the_same(tmp_path: Path, tokenizer: Tokenizer, record: Path) -> None:
    with site(tmp_path, tokenizer, receipt_key=KEY, max_attempts=1) as one:
        one.worker("decode:0", **HELLO)
        held = one.worker("decode:1", draining=True, script=with_logits, revision="next", **HELLO)
        assert run(record, one).return_value == 0
        assert held.submits.empty(), "it serves nobody"
        made = run(record, one, "--revision", "next", "--json")
        assert kinds(made) == {"logits"} and held.submits.qsize() >= len(ASKED)
        assert kinds(run(record, one, "--worker", "decode:9", "--json")) == {"unanswered"}
        for number, digest in enumerate((tokenizer.digest, "ab" * 32), 2):
            hello = HELLO | {"revision": f"r{number}", "tokenizer_digest": digest, "draining": True}
            one.worker(f"decode:{number}", **hello)
        assert run(record, one, "--revision", "r2").return_value == 0
        made = run(record, one, "--revision", "r3")
        assert made.return_value == 1 and made.output.count("DIFFER") == 2, "its proxy's tokenizer is the right one"
        assert "decode:3: its model's files have another tokenizer or chat template" in made.output
        made = run(record, one, "--revision", "none")
        error: Any = made.exception
        assert error.exit_code == 2 and "the server has next" in error.message
        assert one.ask("GET", "/admin/ledger").json["requests"] == 1 + len(ASKED), "tries at a worker are nobody's bill"


def test_a_redacted_record_has_digests_alone(first: ScriptedSite, tmp_path: Path) -> None:
    made = RecordInProgress(first, tmp_path / "record", replace(WHOLE, requests=1, redacted=True))
    first.complete("a secret of a client", max_tokens=3)
    text = made.end().read_text()
    assert "secret" not in text and '"prompt_sha256"' in text and '"prompt"' not in text and '"tokens"' not in text
    failed = run(made.path, first)
    error: Any = failed.exception
    assert error.exit_code == 2 and "digests alone (1 requests)" in error.message


def test_limits_end_a_record_and_nothing_is_no_record(first: ScriptedSite, tmp_path: Path) -> None:
    made = RecordInProgress(first, tmp_path / "small", replace(WHOLE, size=5000))
    while made.thread.is_alive():
        first.complete(max_tokens=2)
    assert made.end().stat().st_size < 5200 and len(load_record(made.path).requests) >= 1
    made = RecordInProgress(first, tmp_path / "none", replace(WHOLE, seconds=0.01))
    made.end()
    assert "No request was answered" in made.failure and not made.path.exists()
    assert list(tmp_path.iterdir()) == [tmp_path / "small"], "no draft is left"


def test_one_record_is_made_at_a_time_and_by_the_operator(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with site(tmp_path, tokenizer, receipt_key=KEY, admin=hashlib.sha256(ADMIN.encode()).hexdigest()) as one:
        one.worker(**HELLO)
        key = {"authorization": f"Bearer {ADMIN}"}
        assert one.ask("GET", "/admin/record").status == 401
        connection = one.connect()
        connection.request("GET", "/admin/record", headers=key)
        assert connection.getresponse().readline().startswith(b'{"pontil_record"')
        assert one.ask("GET", "/admin/record", headers=key).status == 503
        connection.close()
        body = {"model": MODEL, "prompt": "hi"}
        again = {"pontil-replay": '{"seeds": [1], "at": 1, "worker": null}'}
        assert one.ask("POST", "/v1/completions", body, again).status == 401
        assert one.ask("POST", "/v1/completions", body, again | key).status == 200
        for wrong in ("", "[]", "{}", '{"seeds": ["1"], "at": 1}', '{"seeds": [-1], "at": 1}', "[" * 4000):
            answer = one.ask("POST", "/v1/completions", body, {"pontil-replay": wrong} | key)
            assert "pontil replay" in answer.json["error"]["message"] and answer.status == 400
        assert one.ask("GET", "/admin/record?one_in=0", headers=key).status == 400


def test_a_record_of_hundreds_of_prompts_is_replayed(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """A header holds the seeds of the most prompts that a request may have, and each request has its own."""
    with site(tmp_path, tokenizer, receipt_key=KEY) as one:
        one.worker(max_num_seqs=256, **HELLO)
        record = RecordInProgress(one, tmp_path / "record", RecordLimits(8, 1, 1 << 26, DEADLINE))
        for _ in range(8):
            assert one.complete(["hi"] * MAX_PROMPTS, max_tokens=1, temperature=0.7).status == 200
        path = record.end()
        assert sum(len(set(request.seeds)) for request in load_record(path).requests) == 8 * MAX_PROMPTS
        made = CliRunner().invoke(
            cli, ["replay", str(path), "--against", f"http://127.0.0.1:{one.port}"], standalone_mode=False
        )
        assert made.return_value == 0, made.output
    most = RecordedRequest("r", 1, (1 << 40) - 1, "/v1/completions", "k", {}, ())
    seeds = [MOST_SEED - 1] * MAX_PROMPTS
    with mock.patch.object(RecordedRequest, "seeds", seeds), mock.patch.object(RecordedRequest, "adapter", "5a" * 32):
        assert read(headers_of(most, "w" * 255)["pontil-replay"]).seeds == tuple(seeds)


def test_what_stands_for_itself_is_recorded_by_the_name_of_its_key(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Left out are bodies that are long, of unknown length or compressed, and what goes on from a kept response."""
    callers = (("alice", hashlib.sha256(b"key-of-alice").hexdigest()),)
    with site(tmp_path, tokenizer, receipt_key=KEY, callers=callers, fair_by="none") as one:
        one.worker(**HELLO)
        key = {"authorization": "Bearer key-of-alice"}
        recording = RecordInProgress(one, tmp_path / "sample.jsonl", replace(WHOLE, requests=3))
        body = {"model": MODEL, "prompt": "hi", "max_tokens": 2}
        kept = one.ask("POST", "/v1/responses", {"model": MODEL, "input": "hi"}, key).json["id"]
        left_out: list[tuple[str, Any, dict[str, str]]] = [
            ("/v1/responses", {"model": MODEL, "input": "ho", "previous_response_id": kept}, {}),
            ("/v1/completions", body | {"user": "x" * (1 << 20)}, {}),
            ("/v1/completions", gzip.compress(json.dumps(body).encode()), {"content-encoding": "gzip"}),
            ("/v1/embeddings", {"input": "hi"}, {}),
        ]
        for path, fields, headers in left_out:
            one.ask("POST", path, fields, key | headers)
        connection = one.connect()
        connection.request("POST", "/v1/completions", iter([json.dumps(body).encode()]), key, encode_chunked=True)
        assert connection.getresponse().status == 200
        assert one.ask("POST", "/generate", {"text": "hi", "sampling_params": {"max_new_tokens": 2}}, key).status == 200
        assert one.ask("POST", "/api/chat", {"model": MODEL, "messages": CHAT}, key).status == 200
        requests = load_record(recording.end()).requests
        assert [request.path for request in requests] == ["/v1/responses", "/generate", "/api/chat"]
        assert {request.key for request in requests} == {"alice"}
        assert b"key-of-alice" not in recording.path.read_bytes()


def test_a_replay_finds_nothing_cached_and_a_clock_that_jumps_changes_nothing(
    first: ScriptedSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the time of a record nor its answers go by the clock of the day; what a template is told does."""
    recording = RecordInProgress(first, tmp_path / "sample.jsonl", replace(WHOLE, requests=3))
    real = time.time
    for jump in (0.0, 7200.0, -7200.0):
        monkeypatch.setattr(time, "time", lambda jump=jump: real() + jump)
        assert first.complete("jumps", max_tokens=4).status == 200
    requests = load_record(recording.end()).requests
    ats = [request.at for request in requests]
    assert abs(ats[1] - ats[0] - 7200) < 60 and abs(ats[2] - ats[0] + 7200) < 60
    (worker,) = first.workers
    before = worker.submits.qsize()
    assert run(recording.path, first).return_value == 0
    submits = [worker.submits.get_nowait() for _ in range(worker.submits.qsize())]
    plain, again = submits[:before], submits[before:]
    assert len(again) == 3 and len({submit.cache_salt for submit in again}) == 3
    assert not {submit.cache_salt for submit in again} & {submit.cache_salt for submit in plain}


def test_what_is_not_answered_in_time_differs(tmp_path: Path, tokenizer: Tokenizer, record: Path) -> None:
    with site(tmp_path, tokenizer, receipt_key=KEY) as one:
        one.worker(script=lambda worker, submit: iter(()), **HELLO)
        made = run(record, one, "--timeout", "1", "--at-once", "9", "--json")
        assert kinds(made) == {"unanswered"} and made.output.count("it was not answered in time") == len(ASKED)


def test_a_record_has_the_requests_of_all_proxies(tmp_path: Path, tokenizer: Tokenizer) -> None:
    shared: dict[str, Any] = {"proxies": 2, "shared_folder": str(tmp_path / "proxies"), "receipt_key": KEY}
    folders = [tmp_path / "0", tmp_path / "1"]
    for folder in folders:
        folder.mkdir()
    with (
        site(folders[0], tokenizer, name="proxy:0", number=0, **shared) as one,
        site(folders[1], tokenizer, name="proxy:1", number=1, **shared) as other,
    ):
        for each in (one, other):
            each.worker(**HELLO)
        made = RecordInProgress(one, tmp_path / "sample.jsonl", replace(WHOLE, requests=4))
        exchange = other.proxy.fleet.recordings
        eventually(lambda: exchange is not None and exchange.followed is not None, "the record at the other proxy")
        assert other.ask("GET", "/admin/record").status == 503, "one record is made of a launch"
        for text in ("a", "b"):
            for each in (one, other):
                assert each.complete(text, max_tokens=2).status == 200
        requests = load_record(made.end()).requests
        assert sorted(str((request.body or {})["prompt"]) for request in requests) == ["a", "a", "b", "b"]
        assert run(made.path, other).return_value == 0
        eventually(lambda: exchange is not None and exchange.followed is None, "the end of the record")
        assert not [path for path in (tmp_path / "proxies").iterdir() if path.suffix in (".recording", ".lines")]


def test_a_server_without_a_key_records_nothing(bare: ScriptedSite) -> None:
    answer = bare.ask("GET", "/admin/record")
    assert answer.status == 400 and "--receipt-key" in answer.json["error"]["message"]
