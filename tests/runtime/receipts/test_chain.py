# SPDX-License-Identifier: Apache-2.0
"""The chain of an answer is a function of its tokens and their logits, wherever and in what parts they were made."""

import hashlib
import struct
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import Rig, build, name_of, reference, rig, sequence

from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.models.model import Model
from pontil.runtime.receipts.chain import START, TOP_LOGITS, extended, width

PROMPT = [5, 6, 7, 8, 9] * 6
KINDS: list[dict[str, Any]] = [
    {}, {"temperature": 1.0}, {"temperature": 0.8, "logprobs": 2}, {"temperature": 1.0, "n": 3}, {"min_tokens": 5},
    {"logit_bias": ((11, 4.0),)}, {"repetition_penalty": 1.2, "temperature": 0.9},
]  # fmt: skip


@settings(max_examples=examples(40, 300), deadline=None)
@given(st.lists(st.integers(0, (1 << 31) - 1), max_size=9), st.integers(0, 3), st.randoms(use_true_random=False))
def test_any_split_gives_the_same_chain(tokens: list[int], count: int, random: Any) -> None:
    each = width(count)
    logits = random.randbytes(each * len(tokens))
    cuts = sorted([0, len(tokens), *(random.randint(0, len(tokens)) for _ in range(3))])
    chain = START
    for start, stop in zip(cuts, cuts[1:], strict=False):
        chain = extended(chain, tokens[start:stop], logits[start * each : stop * each])
    expected = START
    for place, token in enumerate(tokens):
        stated = logits[place * each : (place + 1) * each]
        expected = hashlib.sha256(expected + struct.pack("<I", token) + stated).digest()
    assert chain == expected


@pytest.fixture(scope="module")
def model() -> Model:
    made: Model = build(reference())
    return made


def asked(count: int = 7, budget: int = 14) -> list[Sequence]:
    return [
        sequence(f"n{number}", PROMPT[: 20 + number], budget, seed=number, top_logits=TOP_LOGITS, **KINDS[number])
        for number in range(count)
    ]


def chains(one: Rig, sequences: list[Sequence]) -> dict[str, bytes]:
    """Return the chain of each choice, of which every step's part was added as it came."""
    made: dict[str, bytes] = {}
    for each in sequences:
        one.engine.add(each)
    while one.engine.has_work:
        for output in one.engine.step():
            assert all(len(told.top_logits) == width(TOP_LOGITS) for told in output.logprobs)
            stated = b"".join(told.top_logits for told in output.logprobs)
            name = name_of(output.sequence)
            made[name] = extended(made.get(name, START), output.ids, stated)
    return made


def test_company_preemption_drafts_and_chunks_change_no_chain(model: Model) -> None:
    alone: dict[str, bytes] = {}
    for one in asked():
        alone |= chains(rig(model), [one])
    assert len(set(alone.values())) == len(alone) == 9
    assert chains(rig(model), asked()) == alone
    tight = rig(model, blocks=14)
    assert chains(tight, asked()) == alone and tight.scheduler.preemptions
    drafting = rig(model, drafts=4)
    assert chains(drafting, asked()) == alone and drafting.engine.accepted
    assert chains(rig(model, budget=17), asked()) == alone


def test_other_weights_have_another_chain_of_the_same_tokens(model: Model) -> None:
    """The tokens alone would not tell: of a strong bias they are the same for any model."""
    other: Model = build(reference(seed=8))
    sure: dict[str, Any] = {"allowed_token_ids": (7,), "top_logits": TOP_LOGITS}
    made = [chains(rig(one), [sequence("a", PROMPT, 4, **sure)])["a"] for one in (model, other, model)]
    assert made[0] == made[2] != made[1]
