# SPDX-License-Identifier: Apache-2.0
"""Logprobs of whole words, parts of characters and special tokens, in the format of each endpoint."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from pontil.http.stream.logprob_shape import LOWEST, CompletionLogprobs, chat_logprobs, joined, prompt_logprobs
from pontil.runtime.tokenizer.detokenizer import Detokenizer
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.tokenizer.vocabulary import Vocabulary, bytes_of_all, special_ids

SMILE = "😀".encode()


def byte_fallback() -> Tokenizer:
    """A tokenizer in which ids 0 to 255 are bytes, followed by words and a special token."""
    words = [*(f"<0x{byte:02X}>" for byte in range(256)), "\u2581red", "apple"]
    backend = Backend(models.BPE({word: number for number, word in enumerate(words)}, [], byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens([AddedToken("<end>", special=True)])
    vocabulary = Vocabulary(lambda: backend, bytes_of_all(backend), {}, special_ids(backend), {}, (), None)
    return Tokenizer(lambda: vocabulary)


RED, APPLE, END = 256, 257, 258
FALLBACK = byte_fallback()


def entries(token: int, *others: int) -> list[list[Any]]:
    return [[token, -0.5, 1], *([other, -1.0 - rank, rank + 1] for rank, other in enumerate(others))]


@pytest.fixture(params=["byte level", "byte fallback"])
def either(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> Tokenizer:
    return tokenizer if request.param == "byte level" else FALLBACK


def ids_of(tokenizer: Tokenizer, text: bytes) -> list[int]:
    """Return one token for each byte."""
    return [tokenizer.bytes_by_id.index(bytes([byte])) for byte in text]


def test_chat(either: Tokenizer) -> None:
    a, first = ids_of(either, b"a" + SMILE[:1])
    (one, other) = chat_logprobs([entries(a, a, first), entries(first)], either)["content"]
    assert one == {
        "token": "a", "logprob": -0.5, "bytes": [97],
        "top_logprobs": [
            {"token": "a", "logprob": -1.0, "bytes": [97]},
            {"token": "\ufffd", "logprob": -2.0, "bytes": [0xF0]},
        ],
    }  # fmt: skip
    assert other == {"token": "\ufffd", "logprob": -0.5, "bytes": [0xF0], "top_logprobs": []}


def test_completion(either: Tokenizer) -> None:
    ids = ids_of(either, b"a" + SMILE + b"b")
    piece = CompletionLogprobs(either).take([entries(token, ids[0]) for token in ids])
    assert piece["tokens"] == ["a", "bytes:\\xf0", "bytes:\\x9f", "bytes:\\x98", "bytes:\\x80", "b"]
    assert piece["token_logprobs"] == [-0.5] * 6
    assert piece["text_offset"] == [0, 1, 1, 1, 1, 2]
    assert piece["top_logprobs"][0] == {"a": -1.0}
    assert piece["top_logprobs"][1] == {"a": -1.0, "bytes:\\xf0": -0.5}


def test_words_and_what_is_not_shown() -> None:
    ids = [APPLE, END, RED, APPLE]
    assert CompletionLogprobs(FALLBACK).take([entries(one) for one in ids])["text_offset"] == [0, 5, 5, 9]
    shown = CompletionLogprobs(FALLBACK, skip_special_tokens=False).take([entries(one) for one in ids])
    assert shown["tokens"] == ["apple", "<end>", " red", "apple"] and shown["text_offset"] == [0, 5, 10, 14]


def test_echo_puts_the_prompt_first_with_no_logprob_for_its_first_token() -> None:
    """A token that the tokenizer added is not shown, others are."""
    ids, known = [END, APPLE, SMILE[0]], [None, entries(APPLE, RED), entries(SMILE[0])]
    assert CompletionLogprobs(FALLBACK).echo(ids, known)["text_offset"] == [0, 5, 10]
    choice = CompletionLogprobs(FALLBACK)
    prompt = choice.echo(ids, known, hidden=1)
    whole = joined([prompt, choice.take([entries(RED)]), choice.take([entries(APPLE)])])
    assert whole == {
        "tokens": ["<end>", "apple", "bytes:\\xf0", " red", "apple"],
        "token_logprobs": [None, -0.5, -0.5, -0.5, -0.5],
        "top_logprobs": [None, {" red": -1.0, "apple": -0.5}, {"bytes:\\xf0": -0.5}, {" red": -0.5}, {"apple": -0.5}],
        "text_offset": [0, 0, 5, 6, 10],
    }


def test_prompt_logprobs() -> None:
    assert prompt_logprobs([None, entries(RED, APPLE)], FALLBACK) == [
        None,
        {
            "256": {"logprob": -0.5, "rank": 1, "decoded_token": " red"},
            "257": {"logprob": -1.0, "rank": 1, "decoded_token": "apple"},
        },
    ]


@pytest.mark.parametrize("impossible", [-math.inf, math.nan, -1e30])
def test_what_json_cannot_hold_is_clamped(impossible: float) -> None:
    token = [[RED, impossible, 1], [APPLE, impossible, 2]]
    shapes = [chat_logprobs([token], FALLBACK), CompletionLogprobs(FALLBACK).take([token])]
    text = json.dumps([*shapes, prompt_logprobs([token], FALLBACK)], allow_nan=False)
    assert text.count(str(LOWEST)) == 7


@given(st.lists(st.sampled_from([*SMILE, *"\ufffdé".encode(), 0xFF, ord("a"), RED, APPLE, END]), max_size=12))
def test_offsets_point_at_the_tokens_text(ids: list[int]) -> None:
    offsets = CompletionLogprobs(FALLBACK).take([entries(token) for token in ids])["text_offset"]
    detokenizer = Detokenizer(FALLBACK)
    text = detokenizer.add(ids) + detokenizer.finish()
    assert offsets == sorted(offsets) and all(offset <= len(text) for offset in offsets)
    for token, offset in zip(ids, offsets, strict=True):
        if token in (RED, APPLE, ord("a")):
            assert text[offset:].startswith(FALLBACK.token_bytes(token).decode())


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=8))
def test_every_byte_of_a_character_has_its_offset(text: str) -> None:
    ids = list(text.encode())
    offsets = CompletionLogprobs(FALLBACK).take([entries(token) for token in ids])["text_offset"]
    assert offsets == [index for index, character in enumerate(text) for _ in character.encode()]
