# SPDX-License-Identifier: Apache-2.0
"""A receipt holds only as it was signed: one bit elsewhere, anywhere, and it does not."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from pontil.runtime.receipts.signing import ReceiptSigner, check_signature
from pontil.runtime.receipts.statement import (
    Receipt,
    ReceiptError,
    canonical,
    ids_digest,
    read_parameters,
    stated_parameters,
)
from pontil.runtime.sampling_params import SamplingParams

SIGNER, OTHER = ReceiptSigner(b"\x11" * 32), ReceiptSigner(b"\x12" * 32)
PROMPT, TOKENS = [7, 300, 5], [9, 40_000, 0, 2]
SHOWN: dict[str, Any] = {
    "media": [{"kind": "image", "rows": 6, "bytes": 18432, "lines": 2, "columns": 3, "place": 1, "digest": "cd" * 32}],
    "encoder": {"fingerprint": "ef", "dtype": "float32", "kernels": "avx2"},
}
PARAMS = SamplingParams(4, (1 << 63) - 3, temperature=0.7, stop=("é",), logit_bias=((3, -1.5),), ignore_eos=True)


def made(signer: ReceiptSigner = SIGNER, prompt: list[int] | None = PROMPT, **other: Any) -> dict[str, Any]:
    statement = {
        "receipt": 1, "id": "cmpl-1", "request": "r", "choice": 0, "model": "tiny", "model_fingerprint": "ab",
        "tokenizer": "00" * 32, "revision": None, "version": "0.2", "kernels": "avx2", "dtype": "bfloat16",
        "kv_cache_dtype": "auto", "top_logits": 8, "parameters": stated_parameters(PARAMS), "prompt_tokens": 3,
        "completion_tokens": 4, "cached_tokens": 0, "finish_reason": "length", "prompt_sha256": ids_digest(PROMPT),
        "tokens_sha256": ids_digest(TOKENS), "chain": "ab" * 32,
    } | other  # fmt: skip
    return signer.receipt(statement, TOKENS, prompt).to_json()


def read(data: Any) -> Receipt:
    receipt = Receipt.from_json(data)
    check_signature(receipt)
    return receipt


@pytest.mark.parametrize("prompt", [PROMPT, None])
def test_what_was_signed_holds(prompt: list[int] | None) -> None:
    receipt = read(json.loads(json.dumps(made(prompt=prompt), indent=3)))
    assert (receipt.tokens, receipt.prompt) == (TOKENS, prompt)
    assert receipt.params == SamplingParams.from_wire(PARAMS.to_wire() | {"top_logits": 8})


def test_every_bit_counts() -> None:
    data = made()
    text = bytearray(json.dumps(data, ensure_ascii=False).encode())
    for place in range(len(text)):
        for bit in range(8):
            text[place] ^= 1 << bit
            try:
                found = json.loads(bytes(text))
                if found != data:
                    with pytest.raises(ReceiptError):
                        read(found)
            except ValueError:
                assert True, "it is no JSON"
            text[place] ^= 1 << bit


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key in data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ():
        yield (*path, key)
        yield from places(data[key], (*path, key))


VALUES: list[Any] = [None, True, 1.0, -1, 1 << 70, "x", "0", [], {}, [[1]], float("nan"), "\ud800", "A" * 64]


@settings(max_examples=examples(150, 2000), deadline=None)
@given(st.data())
def test_any_other_value_is_refused_in_one_sentence(data: st.DataObject) -> None:
    signed = made(**data.draw(st.sampled_from([{}, SHOWN])))
    changed = copy.deepcopy(signed)
    path = data.draw(st.sampled_from(list(places(changed))))
    inside = changed
    for key in path[:-1]:
        inside = inside[key]
    value = data.draw(st.sampled_from(VALUES))
    if inside[path[-1]] == value and type(inside[path[-1]]) is type(value):
        return
    if data.draw(st.booleans()):
        inside[path[-1]] = value
    else:
        del inside[path[-1]]
    if changed == {name: part for name, part in signed.items() if name != "prompt"}:
        read(changed)
        return
    with pytest.raises(ReceiptError) as refused:
        read(changed)
    assert str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("name", SHOWN)
def test_media_and_their_encoder_are_stated_together(name: str) -> None:
    assert read(made(**SHOWN)).media == SHOWN["media"] and not read(made()).media
    with pytest.raises(ReceiptError, match="the statement lacks"):
        read(made(**{name: SHOWN[name]}))
    with pytest.raises(ReceiptError, match="is none"):
        read(made(**(SHOWN | {"media": []})))


def test_what_nobody_signs_is_refused() -> None:
    for field in ("note", "statement2"):
        with pytest.raises(ReceiptError, match="nobody signs"):
            read(made() | {field: 1})


def test_a_statement_of_another_key_is_told_apart() -> None:
    theirs = made(OTHER)
    check_signature(read(theirs), OTHER.public_key)
    with pytest.raises(ReceiptError, match="not by the key"):
        check_signature(read(theirs), SIGNER.public_key)
    with pytest.raises(ReceiptError, match="signature"):
        read(made() | {"public_key": OTHER.public_key.hex()})


def test_the_signature_of_one_receipt_is_not_that_of_another() -> None:
    """Replaying a signature beside other statements, tokens or prompts is seen."""
    first, second = made(), made(choice=1)
    for field in ("statement", "signature"):
        with pytest.raises(ReceiptError):
            read(first | {field: second[field]})


@given(
    st.builds(
        SamplingParams,
        st.integers(0, 1 << 20),
        st.integers(0, (1 << 63) - 1),
        temperature=st.floats(0, 2),
        top_p=st.floats(0.001, 1),
        top_k=st.integers(0, 1 << 20),
        presence_penalty=st.floats(-2, 2),
        n=st.integers(1, 9),
        stop=st.lists(st.text(), max_size=3).map(tuple),
        stop_token_ids=st.lists(st.integers(0, 99), max_size=3).map(tuple),
        logit_bias=st.lists(st.tuples(st.integers(0, 99), st.floats(-100, 100)), max_size=3).map(tuple),
        grammar=st.none() | st.text(),
        logprobs=st.none() | st.integers(0, 20),
    )
)
def test_parameters_come_back_and_logprobs_do_not_matter(params: SamplingParams) -> None:
    stated = json.loads(canonical(stated_parameters(params)))
    back = read_parameters(stated, 8)
    assert back == SamplingParams.from_wire(params.to_wire() | {"logprobs": None, "top_logits": 8})
    assert all(type(value) is not float for value in stated.values())
