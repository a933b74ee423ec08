# SPDX-License-Identifier: Apache-2.0
"""Receipts as clients get them: signed statements of what was computed, at every endpoint that generates."""

import base64
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pytest
from scripted_site import MODEL, HttpAnswer, ScriptedSite, site
from scripted_speech import RECORDING, demo
from scripted_speech import SAID as SAID_BACK
from scripted_worker import known, proper, top_logits_of

from pontil.runtime.receipts.answer_file import read_answer_file
from pontil.runtime.receipts.chain import START, TOP_LOGITS, extended
from pontil.runtime.receipts.signing import ReceiptSigner, check, check_signature
from pontil.runtime.receipts.statement import Receipt, ids_digest
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Failed, Message, Submit

KEY = "17" * 32
ASKED = {"pontil-receipt": "1"}
GPU = "torch/cuda:NVIDIA H100"
ABOUT = {"kernels": "amx int8", "dtype": "bfloat16", "kv_cache_dtype": "auto", "version": "1.2.3", "revision": "r1"}


@pytest.fixture(scope="module")
def signing(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    with site(tmp_path_factory.mktemp("site"), tokenizer, receipt_key=KEY, max_attempts=1) as made:
        made.pair(**ABOUT)
        yield made


def completion(one: ScriptedSite, headers: dict[str, str] | None = None, **fields: Any) -> HttpAnswer:
    body = {"model": MODEL, "prompt": "hi", "max_tokens": 9, "seed": 5} | fields
    return one.ask("POST", "/v1/completions", body, ASKED if headers is None else headers)


def held(data: Any) -> Receipt:
    """Return a receipt that is whole, and signed by the site's key."""
    receipt = Receipt.from_json(data)
    check_signature(receipt, ReceiptSigner(bytes.fromhex(KEY)).public_key)
    assert receipt.statement["chain"] == chain_of(receipt.tokens, receipt.statement["top_logits"])
    return receipt


def chain_of(tokens: Sequence[int], most: int) -> str:
    return extended(START, tokens, b"".join(top_logits_of(token, most) for token in tokens)).hex()


def test_a_receipt_states_what_was_computed(signing: ScriptedSite, tokenizer: Tokenizer) -> None:
    answer = completion(signing, ASKED | {"x-request-id": "mine"}, temperature=0.7, logit_bias={"3": -1.5}).json
    receipt = held(answer["receipt"])
    assert receipt.prompt == tokenizer.encode("hi", True)
    assert tokenizer.decode(receipt.tokens) == answer["choices"][0]["text"]
    assert str(receipt.statement["request"]).startswith("mine-")
    assert receipt.statement | {"chain": "", "tokenizer": "", "request": "mine"} == ABOUT | {
        "receipt": 1, "id": answer["id"], "request": "mine", "model": MODEL, "model_fingerprint": "m", "chain": "",
        "choice": 0, "top_logits": TOP_LOGITS, "prompt_tokens": 2, "cached_tokens": 0, "completion_tokens": 9,
        "finish_reason": "length", "prompt_sha256": ids_digest(receipt.prompt), "tokenizer": "",
        "tokens_sha256": ids_digest(receipt.tokens),
        "parameters": {"max_tokens": 9, "seed": "5", "temperature": "0.7", "logit_bias": [[3, "-1.5"]]},
    }  # fmt: skip
    assert answer["usage"]["completion_tokens"] == 9 and receipt.params.seed == 5


def test_a_digest_leaves_the_prompts_ids_out(signing: ScriptedSite) -> None:
    whole, short = (completion(signing, {"pontil-receipt": form}).json["receipt"] for form in ("1", "digest"))
    assert "prompt" not in short and held(short).prompt is None
    assert short["statement"]["prompt_sha256"] == whole["statement"]["prompt_sha256"] == ids_digest(whole["prompt"])


def test_nothing_is_stated_that_was_not_asked_for(signing: ScriptedSite) -> None:
    before = [worker.submits.qsize() for worker in signing.workers]
    assert (
        "receipt" not in completion(signing, {}).json
        and "receipt" not in completion(signing, {"pontil-receipt": "0"}).json
    )
    for worker, count in zip(signing.workers, before, strict=True):
        submits = [worker.submits.get() for _ in range(worker.submits.qsize())][count:]
        assert submits and all(submit.sampling["top_logits"] == 0 for submit in submits)


def test_each_choice_has_one(signing: ScriptedSite) -> None:
    answer = completion(signing, prompt=["a", "b"], n=2).json
    receipts = [held(data) for data in answer["receipt"]]
    assert [receipt.statement["choice"] for receipt in receipts] == [0, 1, 0, 1]
    assert [receipt.prompt for receipt in receipts[::2]] == [receipt.prompt for receipt in receipts[1::2]]
    assert len({tuple(receipt.tokens) for receipt in receipts[:2]}) == 2


MESSAGES = [{"role": "user", "content": "hi"}]
PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "completions": ("/v1/completions", {"prompt": "hi"}),
    "chat": ("/v1/chat/completions", {"messages": MESSAGES}),
    "responses": ("/v1/responses", {"input": "hi", "store": False}),
    "messages": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 50}),
    "Ollama's chat": ("/api/chat", {"messages": MESSAGES}),
    "Ollama's completion": ("/api/generate", {"prompt": "hi", "raw": True}),
}


def last_receipt(text: str) -> Any:
    """Return the only receipt in the last events of a stream."""
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if "{" in line]
    told = [inside if isinstance(inside := event.get("response"), dict) else event for event in events]
    (receipt,) = [event["receipt"] for event in told if "receipt" in event]
    assert any("receipt" in event for event in told[-2:])
    return receipt


@pytest.mark.parametrize("name", PATHS)
def test_every_endpoint_has_them_whole_and_streamed(signing: ScriptedSite, name: str) -> None:
    """`pontil verify` reads both, with the id and the text that they show."""
    path, body = PATHS[name]
    answers = [
        signing.ask("POST", path, {"model": MODEL, "stream": streamed} | body, ASKED) for streamed in (False, True)
    ]
    assert [answer.status for answer in answers] == [200, 200], answers[0].body
    whole, streamed = held(answers[0].json["receipt"]), held(last_receipt(answers[1].body.decode()))
    assert whole.statement["id"] == answers[0].json.get("id", whole.statement["id"])
    assert (whole.tokens, whole.statement["chain"]) == (streamed.tokens, streamed.statement["chain"])
    assert whole.statement["finish_reason"] == "stop" and len(whole.tokens) > 10
    for answer, receipt in zip(answers, (whole, streamed), strict=True):
        file = read_answer_file(answer.body.decode())
        check(file, ReceiptSigner(bytes.fromhex(KEY)).public_key)
        assert file.receipts == [receipt] and [text for text in file.texts(0) if text] == ["Hello 😀 world"]
        assert file.answer.get("id") == (None if "Ollama" in name else receipt.statement["id"])


def test_a_stream_of_several_choices_is_read_as_a_whole_answer_is(signing: ScriptedSite) -> None:
    body = {"model": MODEL, "prompt": ["a", "b"], "n": 2, "stream": True}
    file = read_answer_file(signing.ask("POST", "/v1/completions", body, ASKED).body.decode())
    texts = [signing.tokenizer.decode(receipt.tokens) for receipt in file.receipts]
    shown = [[text for text in file.texts(number) if text] for number in range(4)]
    assert shown == [[text] for text in texts] and len(set(texts)) > 1


def test_usage_of_a_stream_comes_last(signing: ScriptedSite) -> None:
    events = completion(signing, stream=True, stream_options={"include_usage": True}).events
    held(events[-3]["receipt"])
    assert events[-3]["choices"] == [] and events[-2]["usage"]["completion_tokens"] == 9


def test_a_death_in_the_middle_changes_no_chain(tmp_path: Any, tokenizer: Tokenizer) -> None:
    """Each attempt breaks after three tokens of its own."""

    def breaking(worker: Any, submit: Submit) -> Iterator[Message]:
        yield from islice(proper(worker, submit), 3)
        yield Failed(worker.incarnation, worker.proxy, submit.request_id, submit.attempt, "broken")

    with site(tmp_path, tokenizer, receipt_key=KEY, max_attempts=9) as one:
        for number in range(4):
            one.worker(f"mixed:{number}", script=breaking, **ABOUT)
        one.worker("mixed:4", **ABOUT)
        receipt = held(completion(one, n=2).json["receipt"][1])
        assert len(receipt.tokens) == 9
        assert sum(worker.submits.qsize() for worker in one.workers) > 1, "an attempt broke"


REFUSED = [
    *(
        ({"pontil-receipt": value}, {}, "send 1, or digest")
        for value in (
            "yes",
            "",
            "2",
            "1, 1",
            "Digest",
            "digest;q=1",
            "-0",
            "01",
            "\xff\xfe",
            "1" * 3000,
            '{"a": 1}',
            "\t1\t1",
        )
    ),
    (ASKED, {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}, "leave it out, or pontil-receipt"),
]


@pytest.mark.parametrize(("headers", "fields", "says"), REFUSED)
def test_what_cannot_have_one_is_refused(
    signing: ScriptedSite, headers: dict[str, str], fields: dict[str, Any], says: str
) -> None:
    answer = completion(signing, headers, **fields)
    assert answer.status == 400 and says in answer.json["error"]["message"], answer.body
    assert "\n" not in answer.json["error"]["message"] and len(answer.json["error"]["message"]) < 200


def test_two_headers_are_none(signing: ScriptedSite) -> None:
    connection = signing.connect()
    connection.putrequest("POST", "/v1/completions")
    body = json.dumps({"model": MODEL, "prompt": "hi", "max_tokens": 1}).encode()
    for name, value in (("pontil-receipt", "1"), ("pontil-receipt", "digest"), ("content-length", str(len(body)))):
        connection.putheader(name, value)
    connection.endheaders(body)
    answer = HttpAnswer(connection.getresponse())
    assert answer.status == 400 and "'1, digest'" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/embeddings", {"input": "hi"}),
        ("/api/embed", {"input": "hi"}),
        ("/api/embeddings", {"prompt": "hi"}),
        ("/v1/rerank", {"query": "hi", "documents": ["ho"]}),
        ("/v1/score", {"text_1": "hi", "text_2": "ho"}),
        ("/v1/audio/speech", {"input": "hi"}),
        ("/v1/audio/transcriptions", {}),
        ("/v1/prefixes", {"prompt": "hi"}),
    ],
)
def test_what_draws_no_tokens_has_none(signing: ScriptedSite, path: str, fields: dict[str, Any]) -> None:
    answer = signing.ask("POST", path, fields, ASKED)
    assert answer.status == 400 and "has no receipt: leave out pontil-receipt" in str(answer.json["error"])


def test_a_batch_of_chats_has_none(signing: ScriptedSite) -> None:
    body = {"model": MODEL, "messages": [MESSAGES, MESSAGES]}
    answer = signing.ask("POST", "/v1/chat/completions/batch", body, ASKED)
    assert answer.status == 400 and "has no receipt" in answer.json["error"]["message"]


WAV = base64.b64encode(RECORDING).decode()
SAID = [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}}]}]
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "ash", "format": "wav"}}


def test_models_of_several_stages_have_them_of_text(tmp_path: Any, tokenizer: Tokenizer) -> None:
    """`system/test_omni.py` has those about images."""
    with site(tmp_path, tokenizer, graph="speech-demo", receipt_key=KEY) as one:
        demo(one)
        answer = one.ask("POST", "/v1/chat/completions", {"model": MODEL, "messages": MESSAGES} | SPOKEN, ASKED)
        assert answer.status == 400 and "leave out pontil-receipt" in answer.json["error"]["message"], answer.body
        for messages in (MESSAGES, SAID):
            answer = one.ask("POST", "/v1/chat/completions", {"model": MODEL, "messages": messages}, ASKED)
            receipt = held(answer.json["receipt"])
            assert "media" not in receipt.statement and one.tokenizer.decode(receipt.tokens) == SAID_BACK


def test_without_a_key_they_are_refused(bare: ScriptedSite) -> None:
    bare.worker(**ABOUT)
    answer = completion(bare)
    assert answer.status == 400 and "--receipt-key" in answer.json["error"]["message"]
    assert completion(bare, {}).status == 200


def test_where_no_bits_are_equal_the_chain_is_of_tokens_alone(tmp_path: Any, tokenizer: Tokenizer) -> None:
    with site(tmp_path, tokenizer, receipt_key=KEY) as one:
        one.worker(**(ABOUT | {"kernels": GPU}))
        receipt = held(completion(one).json["receipt"])
        assert receipt.statement["top_logits"] == 0 and receipt.statement["chain"] == chain_of(receipt.tokens, 0)


def test_a_worker_that_states_no_logits_fails_the_request(tmp_path: Any, tokenizer: Tokenizer) -> None:
    """One of an earlier version does not know that it is asked."""

    def forgetful(worker: Any, submit: Submit) -> Iterator[Message]:
        submit.sampling["top_logits"] = 0
        assert "top_logits" not in known(submit, [1])
        return proper(worker, submit)

    with site(tmp_path, tokenizer, receipt_key=KEY, max_attempts=1) as one:
        one.worker(script=forgetful, **ABOUT)
        answer = completion(one)
        assert answer.status >= 500 and "receipt" in answer.json["error"]["message"], answer.body
        assert completion(one, {}).status == 200
