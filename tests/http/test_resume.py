# SPDX-License-Identifier: Apache-2.0
"""Streams that are continued after their connection or their proxy is gone: exactly, once, and billed once."""

import os
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scripted_site import ScriptedSite
from scripted_worker import eventually, top_logits_of
from stream_front import ASK, KEY, PATHS, TEXT, Front, Reader, ends, told, usages

from pontil.http.stream.reply_shape import ReplyHeading
from pontil.http.stream.resumable_routes import ResumeContext, heading_of
from pontil.runtime.errors import Unavailable
from pontil.runtime.proxy.resume import resumable
from pontil.runtime.proxy.siblings.stream_record import Sweep
from pontil.runtime.receipts.chain import START, TOP_LOGITS, extended
from pontil.runtime.receipts.signing import ReceiptSigner, check_signature
from pontil.runtime.receipts.statement import Receipt
from pontil.runtime.tokenizer.tokenizer import Tokenizer


@pytest.fixture
def front(tmp_path: Path, tokenizer: Tokenizer) -> Iterator[Front]:
    made = Front(tmp_path, tokenizer)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_goes_on_after_its_connection_broke(path: str, front: Front) -> None:
    one = front.start(0)
    whole = Reader(one, path, PATHS[path]).all()
    first = Reader(one, path, PATHS[path]).read(9)
    first.leave()
    second = Reader(one, path, {}, first.last).all()
    assert told(first, second) == told(whole) == TEXT and ends(first, second) == ends(whole)
    assert usages(first, second) == usages(whole)
    eventually(lambda: all(row["state"] == "closed" for row in front.rows()), "closed rows")
    assert [row["completion_tokens"] for row in front.rows()] == [usages(whole)[0]["completion_tokens"]] * 2


def test_a_heading_of_another_version_is_read_as_far_as_it_is_known() -> None:
    told: dict[str, Any] = {"id": "cmpl-1", "created": 7, "model": "m", "system_fingerprint": None}
    parts: list[dict[str, Any]] = [{}, {"service_tier": "flex", "share": 2.0}, {"of a later version": 1}]
    for more in parts:
        claimed: Any = SimpleNamespace(head={"heading": told | more})
        request: Any = SimpleNamespace(ctx=SimpleNamespace(resume=ResumeContext("", claimed=claimed)))
        known = {name: more[name] for name in ("service_tier", "share") if name in more}
        assert heading_of(request) == ReplyHeading(**told, **known)


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_goes_on_at_another_proxy_while_its_own_lives(path: str, front: Front) -> None:
    one, two = front.start(0), front.start(1)
    first = Reader(one, path, PATHS[path]).read(9)
    first.leave()
    second = Reader(two, path, {}, first.last).all()
    assert told(first, second) == TEXT and len(ends(first, second)) == 1
    eventually(lambda: all(row["state"] == "closed" for row in front.rows()), "closed rows")
    (row,) = front.rows()
    assert row["proxy"] == two.proxy.incarnation and row["attempts"] > 1
    assert row["completion_tokens"] == usages(second)[0]["completion_tokens"]
    assert one.proxy.ledger.imbalance == two.proxy.ledger.imbalance == 0


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_receipt_goes_on_with_its_stream(front: Front, elsewhere: bool) -> None:
    """Its chain is that of the whole answer, whoever has added which part, and the client need not ask again."""
    about = {"kernels": "avx2", "dtype": "bfloat16"}
    one, two = front.start(0, **about), front.start(1, **about)
    first = Reader(one, "/v1/completions", ASK, **{"pontil-receipt": "digest"}).read(9)
    first.leave()
    second = Reader(two if elsewhere else one, "/v1/completions", {}, first.last).all()
    (data,) = [event["receipt"] for event in second.events if "receipt" in event]
    receipt = Receipt.from_json(data)
    check_signature(receipt, ReceiptSigner(bytes.fromhex(KEY)).public_key)
    stated = b"".join(top_logits_of(token, TOP_LOGITS) for token in receipt.tokens)
    assert receipt.statement["chain"] == extended(START, receipt.tokens, stated).hex() and receipt.prompt is None
    assert told(first, second) == TEXT and one.tokenizer.decode(receipt.tokens) == TEXT
    again = Reader(two, "/v1/completions", {}, first.stream).all()
    assert [event["receipt"] for event in again.events if "receipt" in event] == [data]


def test_an_answer_whose_row_cannot_be_written_yet_is_booked_once(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:  # A12
    """Both proxies look for streams that ended without a row, and the owner of this one lives and will write it."""
    one, two = front.start(0), front.start(1)
    reader = Reader(one, "/v1/completions", ASK).read(9)
    eventually(lambda: [row["state"] for row in front.rows()] == ["open"], "an open row")
    looks: list[ScriptedSite] = []

    def counted(at: ScriptedSite) -> None:
        settle = at.proxy.streams.settle

        def settled(found: Sweep) -> None:
            settle(found)
            looks.append(at)

        monkeypatch.setattr(at.proxy.streams, "settle", settled)

    def full(rows: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    assert one.proxy.books.log is not None
    with monkeypatch.context() as disk:
        disk.setattr(one.proxy.books.log.file, "write", full)
        reader.all()
        counted(one)
        counted(two)
        eventually(lambda: min(looks.count(one), looks.count(two)) > 2, "looks for unsettled streams")
        assert [row["state"] for row in front.rows()] == ["open"]
        # It can be told again meanwhile.
        assert told(Reader(two, "/v1/completions", {}, reader.stream).all()) == TEXT
    eventually(lambda: [row["state"] for row in front.rows()] == ["closed"], "a closed row")
    assert [at.ask("GET", "/admin/ledger").json["requests"] for at in (one, two)] == [1, 0]
    assert front.rows()[0]["proxy"] == one.proxy.incarnation


def test_a_usage_log_that_cannot_be_read_holds_no_stream(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Its row is not known then: the stream is left as it was, and looked at again."""
    one = front.start(0)
    reader = Reader(one, "/v1/completions", ASK).all()
    eventually(lambda: [row["state"] for row in front.rows()] == ["closed"], "a closed row")
    asked: list[str] = []

    def unreadable(requests: Collection[str]) -> set[str]:
        asked.extend(requests)
        raise Unavailable("the usage log cannot be read now")

    with monkeypatch.context() as disk:
        disk.setattr(one.proxy.books, "open_among", unreadable)
        one.proxy.streams.settled.clear()
        eventually(lambda: len(asked) > 2, "looks at the stream")
        # Told again to who asks: it is nobody's.
        assert told(Reader(one, "/v1/completions", {}, reader.stream).all()) == TEXT
    eventually(lambda: len(one.proxy.streams.settled) == 1, "the next look")
    assert one.ask("GET", "/admin/ledger").json["requests"] == 1


def test_the_row_of_an_answer_is_written_by_another_proxy_once_its_own_is_gone(front: Front) -> None:  # A12
    one = front.start(0)
    reader = Reader(one, "/v1/completions", ASK).all()
    eventually(lambda: [row["state"] for row in front.rows()] == ["closed"], "a closed row")
    (before,) = front.rows()
    front.opened.pop().__exit__(None, None, None)
    with closing(sqlite3.connect(front.usage_log)) as database, database:
        # The file as it would be after a death between the record's last line and the row.
        database.execute("UPDATE requests SET state = 'open', finish = NULL")
        database.execute("DELETE FROM proxies")
        database.execute("DELETE FROM workers")
    two, three = front.start(1), front.start(0)
    eventually(lambda: [row["state"] for row in front.rows()] == ["closed"], "a row that another one closed")
    (row,) = front.rows()
    assert [row[name] for name in ("finish", "completion_tokens")] == [
        before["finish"],
        usages(reader)[0]["completion_tokens"],
    ]
    assert row["proxy"] in (two.proxy.incarnation, three.proxy.incarnation)
    assert sum(at.ask("GET", "/admin/ledger").json["requests"] for at in (two, three)) == 1


def test_each_proxy_shows_its_own_part_of_a_stream(front: Front) -> None:
    one, two = front.start(0), front.start(1)
    first = Reader(one, "/v1/completions", ASK).read(9)
    first.leave()
    Reader(two, "/v1/completions", {}, first.last).all()
    (before,), (after,) = (each.ask("GET", "/admin/requests").json["requests"] for each in (one, two))
    assert before["id"] == after["id"] and (before["finish"], after["finish"]) == ("handed_over", "stop")
    timeline = two.ask("GET", f"/admin/requests/{after['id']}").json
    assert 0 < timeline["first_token_seconds"] == timeline["gaps"]["begin"] <= timeline["seconds"]
    assert not one.proxy.timelines.open and not two.proxy.timelines.open


def test_every_event_is_a_place_to_go_on_from(front: Front) -> None:
    one, two = front.start(0), front.start(1)
    body = ASK | {"n": 2, "max_tokens": 12}
    whole = Reader(one, "/v1/completions", body)
    ids, texts = [whole.last], [("", "")]
    while whole.next():
        if whole.last != ids[-1]:
            ids.append(whole.last)
            texts.append((told(whole), told(whole, choice=1)))
    eventually(lambda: not one.proxy.streams.journals, "the end")
    for event, had in zip(ids, texts, strict=True):
        for at in (one, two):
            rest = Reader(at, "/v1/completions", {}, event).all()
            assert [a + told(rest, choice=c) for c, a in enumerate(had)] == [told(whole), told(whole, choice=1)]
            assert rest.status == 200 and rest.events[-1] == "[DONE]"
    assert len(front.rows()) == 1


def test_who_may_not_go_on(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumable, "LET_GO_WITHIN", 0.1)
    one, two = front.start(0, pace=0.03), front.start(1)
    first = Reader(one, "/v1/completions", ASK).read(3)
    for event, path, status in (
        ("no id", "/v1/completions", 400),
        ("0" * 32 + ":1.1", "/v1/completions", 404),
        (str(first.last) + "_3.4", "/v1/completions", 409),
        (str(first.last), "/v1/completions", 409),
    ):
        assert [Reader(at, path, {}, event).status for at in (one, two)] == [status, status], event
    first.all()
    eventually(lambda: not one.proxy.streams.journals, "the end")
    assert Reader(two, "/v1/chat/completions", {}, first.last).status == 400
    assert Reader(two, "/v1/completions", {}, str(first.stream) + ":1.1_2.2").status == 400
    assert os.listdir(front.folder / "streams")


@pytest.mark.parametrize("path", PATHS)
def test_an_id_that_no_event_has_is_refused_and_harms_nobody(path: str, front: Front) -> None:
    """On a stream that runs and on one that has ended. The stream itself can be continued as before."""
    one = front.start(0, pace=0.02)
    first = Reader(one, path, PATHS[path]).read(5)
    wrong = ("1.1+0.0.0.1", "1.1e", "1.1+0.1.1.1", "1.1u1", "101.1", "1.1+0.1.1e.9", "1.1+1.2.2.1", "1.1_1.1", "99.99e")
    first.leave()
    for _ in range(2):
        for places in wrong:
            eventually(lambda: all(each.detached_at for each in one.proxy.streams.journals.values()), "no reader")
            refused = Reader(one, path, {}, f"{first.stream}:{places}")
            assert refused.status == 400, places
            assert b"Last-Event-ID is no event of this stream" in refused.response.read()
        eventually(lambda: not one.proxy.streams.journals, "the end")
    assert told(first, Reader(one, path, {}, first.last).all()) == TEXT


@pytest.mark.parametrize("context", [512, 64])
def test_an_answer_goes_on_with_the_release_that_began_it(front: Front, context: int) -> None:
    """Another release is at the other proxy too, with more room, and of a context that may be too short."""
    of_old = {"revision": "a", "model_fingerprint": "a"}
    one, two = front.start(0, **of_old), front.start(1, **of_old)
    first = Reader(one, "/v1/completions", ASK).read(9)
    new = two.worker(
        "mixed:1", "Another answer.", revision="b", model_fingerprint="b", num_blocks=129, max_model_len=context
    )
    first.leave()
    second = Reader(two, "/v1/completions", {}, first.last)
    assert second.status == 200 and told(first, second.all()) == TEXT and new.submits.empty()
    eventually(lambda: all(row["state"] == "closed" for row in front.rows()), "closed rows")
    assert not two.proxy.registry.generating.shares.bound and not one.proxy.registry.generating.shares.bound


def test_an_answer_whose_release_is_gone_is_not_ended_by_another(front: Front) -> None:
    one, two = front.start(0, revision="a", model_fingerprint="a"), front.start(1, revision="b", model_fingerprint="b")
    first = Reader(one, "/v1/completions", ASK).read(9)
    first.leave()
    second = Reader(two, "/v1/completions", {}, first.last)
    assert second.status == 200
    eventually(lambda: two.proxy.dispatcher.stranded, "a request that waits for its release")
    assert two.workers[0].submits.empty()
    again = two.worker("mixed:1", TEXT, revision="a", model_fingerprint="a")
    assert told(first, second.all()) == TEXT and not again.submits.empty() and two.workers[0].submits.empty()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"model": "tiny", "input": "hi", "max_output_tokens": 3}),
        ("/invocations", {"model": "tiny", "prompt": "hi", "max_tokens": 3}),
        ("/generate", {"text": "hi", "sampling_params": {"max_new_tokens": 3}}),
    ],
)
def test_streams_that_cannot_be_continued_say_so(front: Front, path: str, body: dict[str, Any]) -> None:
    """Else a client would rely on it, and have its answer computed and billed a second time."""
    one = front.start(0)
    asked = {"pontil-resume": "1"}
    refused = one.ask("POST", path, body | {"stream": True}, asked)
    assert refused.status == 400 and f"streams of {path} cannot be continued" in refused.json["error"]["message"]
    assert one.ask("POST", path, body | {"stream": False}, asked).status == 200
    assert one.ask("POST", path, body | {"stream": True}).status == 200
    assert not one.proxy.requests


def test_an_answer_that_cannot_be_offered_is_not_made(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure of any kind between its admission and its record ends it. Else it would run on, and be billed."""
    one = front.start(0, pace=0.02)
    records = one.proxy.streams.records
    assert records is not None
    monkeypatch.setattr(records, "begin", lambda head: 1 // 0)
    assert one.ask("POST", "/v1/completions", ASK, {"pontil-resume": "1"}).status == 500
    eventually(lambda: [row["state"] for row in front.rows()] == ["closed"], "a closed row")
    assert front.rows()[0]["completion_tokens"] == 0 and not one.proxy.requests


def test_a_prompt_of_another_router_is_claimed_once(front: Front) -> None:
    """The proxy that goes on with the stream has the prompt computed, since the kept one is claimed already."""
    one, two = front.start(0), front.start(1)
    for at in (one, two):
        at.proxy.kv_transfers.neighbours = True
    kept = {
        "do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": "e7", "remote_host": "127.0.0.1",
        "remote_port": 4567, "remote_request_id": "r.0", "remote_block_ids": [4],
    }  # fmt: skip
    first = Reader(one, "/v1/completions", ASK | {"kv_transfer_params": kept}).read(9)
    first.leave()
    second = Reader(two, "/v1/completions", {}, first.last).all()
    assert told(first, second) == TEXT and len(usages(second)) == 1
    claimed, computed = (at.workers[0].submits.get(timeout=60) for at in (one, two))
    assert (claimed.phase, claimed.transfer_id) == ("claim", "r.0")
    assert (computed.phase, computed.transfer_id) == ("whole", None) and computed.delivered[0]
    refused = one.ask("POST", "/v1/completions", ASK | {"kv_transfer_params": {"do_remote_decode": True}},
                      {"pontil-resume": "1"})  # fmt: skip
    assert refused.status == 400 and "set max_tokens to 1" in refused.json["error"]["message"]
    keeping = {"kv_transfer_params": {"do_remote_decode": True}, "max_tokens": 1, "prompt": "tell me"}
    assert two.ask("POST", "/v1/completions", keeping, {"pontil-resume": "1"}).status == 200
    # The proxy that restores a stream does not know where its prompt is kept.
    lost = two.ask("POST", "/v1/completions", keeping | {"stream": True}, {"pontil-resume": "1"})
    assert lost.status == 400 and "leave out pontil-resume" in lost.json["error"]["message"]
    eventually(lambda: all(row["state"] == "closed" for row in front.rows()), "closed rows")
    assert one.proxy.ledger.imbalance == two.proxy.ledger.imbalance == 0 and len(front.rows()) == 2
