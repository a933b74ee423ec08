# SPDX-License-Identifier: Apache-2.0
"""Answers of real workers, however they came about, are equal when their receipts are computed again, alone."""

import json
from pathlib import Path
from typing import Any

import kernels
import pytest
from kernels import CACHE
from workers import PromptWorker, ScriptedProxy, WorkerAnswer, drawn, greedy, prompt

from pontil.gpu_ops.kernels.compile.instruction_sets import usable_sets
from pontil.launcher.receipts.verification import RecomputeOptions, verify_receipts
from pontil.runtime.receipts.chain import START, TOP_LOGITS, extended, width
from pontil.runtime.receipts.signing import ReceiptSigner
from pontil.runtime.receipts.statement import ids_digest, stated_parameters
from pontil.runtime.sampling_params import SamplingParams

Pair = tuple[PromptWorker, PromptWorker]
SIGNER = ReceiptSigner(b"\x07" * 32)
TOKENS = 20
KINDS: dict[str, SamplingParams] = {
    "greedy": greedy(TOKENS, top_logits=TOP_LOGITS, ignore_eos=True),
    "drawn": drawn(TOKENS, top_logits=TOP_LOGITS, n=2, repetition_penalty=1.2),
    "grammar": greedy(TOKENS, top_logits=TOP_LOGITS, grammar='start: /[a-d]{14}/', temperature=0.9),
    "stopped": drawn(TOKENS, top_logits=TOP_LOGITS, stop=("e",), top_p=0.9),
}  # fmt: skip


def chain_of(answer: WorkerAnswer, choice: int) -> tuple[list[int], bytes]:
    """Return the ids of a choice and their chain, of frames in any order that may repeat a token."""
    ids, chain = list[int](), START
    for frame in sorted((one for one in answer.frames if one.choice == choice), key=lambda one: one.index):
        new, stated = frame.ids[len(ids) - frame.index :], frame.top_logits or b""
        chain = extended(chain, new, stated[len(stated) - len(new) * width(TOP_LOGITS) :] if new else b"")
        ids += new
    return ids, chain


def receipt_of(
    answer: WorkerAnswer, worker: PromptWorker, ids: list[int], params: SamplingParams, choice: int, **other: Any
) -> dict[str, Any]:
    machine, (tokens, chain) = worker.machine, chain_of(answer, choice)
    (finish,) = {one.finish_reason for one in answer.frames if one.choice == choice and one.finish_reason}
    statement = {
        "receipt": 1, "id": "cmpl-1", "request": "r", "choice": choice, "model": "tiny", "revision": None,
        "model_fingerprint": machine.fingerprint, "tokenizer": machine.tokenizer.digest, "version": "0.2",
        "kernels": machine.kernels, "dtype": machine.dtype, "kv_cache_dtype": machine.kv_cache_dtype,
        "top_logits": TOP_LOGITS, "parameters": stated_parameters(params), "prompt_tokens": len(ids),
        "completion_tokens": len(tokens), "cached_tokens": 0, "finish_reason": finish,
        "prompt_sha256": ids_digest(ids), "tokens_sha256": ids_digest(tokens), "chain": chain.hex(),
    } | other  # fmt: skip
    return SIGNER.receipt(statement, tokens, ids).to_json()


def verified(data: Any, model: Path, prompt_text: str | None = None, **how: Any) -> list[tuple[bool, str]]:
    wanted = RecomputeOptions(str(model), CACHE, **how)
    return list(verify_receipts(json.dumps(data), prompt_text, None, wanted))


def answered(proxy: ScriptedProxy, pair: Pair, name: str, params: SamplingParams, *, both: bool) -> WorkerAnswer:
    prefill, decode = pair
    if both:
        proxy.submit_pair(prefill, decode, name, prompt(37), params)
    else:
        proxy.submit(decode, name, prompt(37), params)
    proxy.turn_until(lambda: name in proxy.answers and proxy.answers[name].ended(params.n))
    return proxy.answers[name]


@pytest.mark.parametrize("kind", KINDS)
def test_receipts_of_a_pair_and_of_one_worker_hold(proxy: ScriptedProxy, pair: Pair, model: Path, kind: str) -> None:
    params = KINDS[kind]
    whole, halves = (answered(proxy, pair, name, params, both=name == "pair") for name in ("one", "pair"))
    choices = range(params.n)
    assert [chain_of(whole, choice) for choice in choices] == [chain_of(halves, choice) for choice in choices]
    receipts = [receipt_of(halves, pair[1], prompt(37), params, choice) for choice in choices]
    count = len(chain_of(halves, 0)[0])
    found = verified(receipts, model, company=3 if kind == "drawn" else 0)
    assert [holds for holds, _ in found] == [True] * params.n, found
    assert found[0][1] == f"{count} tokens and logits are equal" and count > (0 if kind == "stopped" else 10)


def test_what_is_wrong_is_named(proxy: ScriptedProxy, pair: Pair, model: Path) -> None:
    params = KINDS["greedy"]
    answer = answered(proxy, pair, "one", params, both=False)
    ids, (tokens, _) = prompt(37), chain_of(answer, 0)
    sound = receipt_of(answer, pair[1], ids, params, 0)

    def signed(**other: Any) -> dict[str, Any]:
        return receipt_of(answer, pair[1], ids, params, 0, **other)

    lied = [*tokens[:7], (tokens[7] + 1) % 200, *tokens[8:]]
    forged = SIGNER.receipt(sound["statement"] | {"tokens_sha256": ids_digest(lied)}, lied, ids).to_json()
    cases: list[tuple[Any, str]] = [
        (forged, f"token 7 is {tokens[7]} here, and the receipt has {lied[7]}"),
        (signed(chain="00" * 32), "all 20 tokens are equal, but not the digest chain"),
        (signed(finish_reason="stop"), "the answer ends by 'length' here"),
        (signed(model_fingerprint="another"), "the model is"),
        (signed(tokenizer="00" * 32), "the tokenizer is"),
        (sound | {"tokens": lied}, "they were changed"),
        (sound | {"signature": "00" * 64}, "its signature is not of this statement"),
        ({"id": "cmpl-2", "receipt": sound}, "this answer is 'cmpl-2'"),
        ({"id": "cmpl-1", "choices": [{"text": "another text"}], "receipt": sound}, "not that of the receipt's tokens"),
        ({"response": "another text", "receipt": sound}, "not that of the receipt's tokens"),
        ({"message": {"content": "another text"}, "receipt": sound}, "not that of the receipt's tokens"),
    ]
    for data, says in cases:
        found = verified(data, model)
        assert [holds for holds, _ in found] == [False] and says in found[0][1], (says, found)
    text = pair[1].machine.tokenizer.decode(tokens)
    assert verified({"id": "cmpl-1", "choices": [{"text": text}], "receipt": sound}, model)[0][0]
    chunks = [{"id": "cmpl-1", "choices": [{"index": 0, "text": letter}]} for letter in text]
    for parts in (chunks, chunks[::-1]):
        stream = "".join(f"data: {json.dumps(event)}\n\n" for event in (*parts, {"receipt": sound}))
        ((holds, says),) = verify_receipts(stream, None, None, RecomputeOptions(str(model), CACHE))
        assert holds == (parts is chunks) and ("not that of the receipt's tokens" in says) != holds, says


def test_a_prompt_that_was_left_out_is_given(proxy: ScriptedProxy, pair: Pair, model: Path) -> None:
    answer, ids = answered(proxy, pair, "one", KINDS["greedy"], both=False), prompt(37)
    data = receipt_of(answer, pair[1], ids, KINDS["greedy"], 0)
    del data["prompt"]
    assert verified(data, model, prompt_text=json.dumps(ids))[0][0]
    assert "they were changed" in verified(data, model, prompt_text=json.dumps(ids[1:]))[0][1]
    with pytest.raises(Exception, match="--prompt FILE"):
        verified(data, model)


def test_a_prompt_that_was_left_out_may_be_given_as_a_text(proxy: ScriptedProxy, pair: Pair, model: Path) -> None:
    _, decode = pair
    text, params = "hello there", KINDS["greedy"]
    ids = decode.machine.tokenizer.encode(text, True)
    proxy.submit(decode, "text", ids, params)
    proxy.turn_until(lambda: "text" in proxy.answers and proxy.answers["text"].ended(1))
    data = receipt_of(proxy.answers["text"], decode, ids, params, 0)
    del data["prompt"]
    assert verified(data, model, prompt_text=text)[0][0]
    assert "they were changed" in verified(data, model, prompt_text=text + "!")[0][1]


@pytest.mark.parametrize("name", ["avx2", pytest.param("torch", marks=pytest.mark.long)])
def test_other_kernels_compute_it_too(proxy: ScriptedProxy, pair: Pair, model: Path, name: str) -> None:
    """In float32 the kernels for AVX2 have the bits of those for AVX-512; torch's operations round otherwise."""
    if name not in ("torch", *(one.name for one in usable_sets())):
        pytest.skip(f"this processor has no {name}")
    ours, others = pair[1].machine.kernels, name if name == "torch" else kernels.opened(name).name
    answer, ids = answered(proxy, pair, "one", KINDS["greedy"], both=False), prompt(37)
    data = receipt_of(answer, pair[1], ids, KINDS["greedy"], 0)
    if ours == others:
        pytest.skip(f"{name} is the best set of this processor, which computed the answer: there is no other one")
    ((holds, says),) = verified(data, model, kernels=name)
    if name == "torch":
        assert not holds and says.endswith(f"; it was made by the kernels {ours}, and these are torch")
    else:
        assert (holds, says) == (True, "20 tokens and logits are equal")
