# SPDX-License-Identifier: Apache-2.0
"""Records: what was cut, changed or forged is none, in one sentence; and where two answers first differ."""

import hashlib
import json
from typing import Any

import pytest

from pontil.runtime.receipts.chain import MARK_BYTES, START, extended, marks
from pontil.runtime.receipts.comparison import DifferenceKind, first_difference
from pontil.runtime.receipts.record import RecordedAnswer, RecordedRequest, RecordError, first_line, last_line, line_of
from pontil.runtime.receipts.signing import ReceiptSigner, read_record
from pontil.runtime.receipts.statement import ids_digest

SIGNER, OTHER = ReceiptSigner(b"\x07" * 32), ReceiptSigner(b"\x08" * 32)
TOKENS, PROMPT = (5, 6, 7), (1, 2)
TEXTS = ("id", "request", "model", "model_fingerprint", "version", "kernels", "dtype", "kv_cache_dtype")


def logits_of(token: int, wrong: bool = False) -> bytes:
    return bytes([token, wrong]) * 32


def answer(
    tokens: tuple[int, ...] = TOKENS, prompt: tuple[int, ...] = PROMPT, wrong: int | None = None, told: bool = True,
    **other: Any,
) -> RecordedAnswer:  # fmt: skip
    """Return an answer whose logits follow from their place; those of the `wrong` one have another bit."""
    stated = b"".join(logits_of(place, place == wrong) for place in range(len(tokens)))
    statement = dict.fromkeys(TEXTS, "x") | {
        "receipt": 1, "choice": 0, "revision": None, "tokenizer": "00" * 32, "top_logits": 8,
        "parameters": {"max_tokens": 9, "seed": "1"}, "prompt_tokens": len(prompt), "cached_tokens": 0,
        "completion_tokens": len(tokens), "prompt_sha256": ids_digest(prompt), "finish_reason": "stop",
        "tokens_sha256": ids_digest(tokens), "chain": extended(START, tokens, stated).hex(),
    } | other  # fmt: skip
    return RecordedAnswer(SIGNER.receipt(statement, tokens, prompt), marks(stated, len(tokens)) if told else b"")


def request(number: int = 0, **other: Any) -> RecordedRequest:
    fields: dict[str, Any] = {"path": "/v1/completions", "body": {"prompt": "hi"}, "answers": [answer()]} | other
    return RecordedRequest("r", number, 7, fields["path"], "alice", fields["body"], fields["answers"])


def whole(*lines: bytes) -> bytes:
    text = first_line("r", redacted=False) + b"".join(lines)
    return text + last_line(len(lines), hashlib.sha256(text).hexdigest())


def signed(number: int = 0, signer: ReceiptSigner = SIGNER, **other: Any) -> bytes:
    return signer.record_line(request(number, **other), redacted=False)


def test_a_record_is_read_as_it_was_written() -> None:
    record = read_record(whole(signed(1), signed(4)), SIGNER.public_key)
    assert [one.number for one in record.replayable] == [1, 4] and record.requests[0] == request(1)
    assert record.requests[0].seeds == [1]


def changed(line: bytes, **fields: Any) -> bytes:
    return line_of(json.loads(line) | fields)


NONE = [
    (b"", "it is no record"),
    (b"\x00\xff\n", "it is no record"),
    (b"[" * 100_000, "it is no record"),
    (b'{"pontil_record":2}\n', "not of version 1"),
    (first_line("r", redacted=False), "it was cut"),
    (whole(signed())[:-40], "it was cut"),
    (whole(signed(1), signed(2)).replace(b'"number":1', b'"number":3'), "it is damaged"),
    (whole(signed(1), signed(2)).replace(signed(1), b""), "it is damaged"),
    (whole(changed(signed(), body={"prompt": "ho"})), "one of the two was changed"),
    (whole(changed(signed(), path="/admin/record")), "one of the two was changed"),
    (whole(signed(path="/admin/record")), "a value that no record has"),
    (whole(signed(answers=[answer(tokens=(5,), completion_tokens=2)])), "does not hold"),
    (whole(changed(signed(), signature="00")), "no 64 bytes in hexadecimal"),
    (whole(changed(signed(), recording="s")), "no request of this record"),
    (whole(changed(signed(), more=1)), "no request of this record"),
    (whole(signed().replace(b'"hi"', b"NaN")), "a number that JSON has not"),
    (whole(signed(), signed()), "it has a request twice"),
    (whole(signed(0), signed(1, OTHER)), "is signed by"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "says"), NONE)
def test_what_was_cut_changed_or_forged_is_none(data: bytes, says: str) -> None:
    with pytest.raises(RecordError, match=says) as raised:
        read_record(data)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 300


def test_a_record_of_another_key_is_refused() -> None:
    with pytest.raises(RecordError, match="and not by"):
        read_record(whole(signed()), OTHER.public_key)


def test_every_byte_of_a_record_counts() -> None:
    data = whole(signed())
    for place in range(0, len(data) - 1, 7):
        wrong = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(RecordError):
            read_record(wrong)


DIFFERENT: dict[str, tuple[dict[str, Any], tuple[DifferenceKind, int | None, Any, Any]]] = {
    "adapter": ({"adapter": "22" * 32, "wrong": 0}, (DifferenceKind.ADAPTER, None, "", "22" * 32)),
    "template": ({"tokenizer": "11" * 32, "prompt": (1, 3)}, (DifferenceKind.TOKENIZER, 1, 2, 3)),
    "vocabulary": ({"tokenizer": "11" * 32}, (DifferenceKind.TOKENIZER, None, None, None)),
    "prompt": ({"prompt": (1,)}, (DifferenceKind.PROMPT, 1, 2, None)),
    "parameters": ({"parameters": {"max_tokens": 8, "seed": "1"}}, (DifferenceKind.SAMPLING, None, 9, 8)),
    "draw": ({"tokens": (5, 9, 7)}, (DifferenceKind.SAMPLING, 1, 6, 9)),
    "logits": ({"wrong": 2}, (DifferenceKind.LOGITS, 2, 7, 7)),
    "logits before a draw": ({"wrong": 0, "tokens": (5, 9)}, (DifferenceKind.LOGITS, 0, 5, 5)),
    "logits of a draw": ({"wrong": 1, "tokens": (5, 9)}, (DifferenceKind.LOGITS, 1, 6, 9)),
    "a draw before logits": ({"wrong": 2, "tokens": (5, 9, 7)}, (DifferenceKind.SAMPLING, 1, 6, 9)),
    "tokens": ({"tokens": (5, 9), "told": False}, (DifferenceKind.TOKENS, 1, 6, 9)),
    "length": ({"tokens": (5, 6)}, (DifferenceKind.TOKENS, 2, 7, None)),
    "chain": ({"chain": "00" * 32, "told": False}, (DifferenceKind.LOGITS, None, None, None)),
    "end": ({"finish_reason": "length"}, (DifferenceKind.END, None, "stop", "length")),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_the_first_difference_is_named(name: str) -> None:
    fields, expected = DIFFERENT[name]
    found = first_difference(answer(), answer(**fields))
    assert found is not None and (found.kind, found.position, found.expected, found.got) == expected, found
    assert first_difference(answer(**fields), answer(**fields)) is None


def test_what_no_token_depends_on_differs_in_nothing() -> None:
    same = answer(id="y", request="y", kernels="y", version="2", cached_tokens=1, model="y", revision="next")
    assert first_difference(answer(), same) is None


def test_a_mark_is_of_its_tokens_logits_alone() -> None:
    both = marks(logits_of(1) + logits_of(2), 2)
    assert both == marks(logits_of(1), 1) + marks(logits_of(2), 1) and len(both) == 2 * MARK_BYTES
