# SPDX-License-Identifier: Apache-2.0
"""Options of a request, from its JSON to the engine's sequence: none is lost or changed on the way (D13)."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_llama import write_tiny_llama
from workers import DEFAULTS, Silent

from pontil.http.openai.chat.request import read_chat
from pontil.http.openai.completions.request import read_completion
from pontil.runtime.chat.reasoning_watch import closing_ids
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.errors import RequestError
from pontil.runtime.grammar.grammar_text import Thought, grammar_of_choices
from pontil.runtime.sampling_params import DECLARED, SamplingParams
from pontil.runtime.wire.codec import decode, encode
from pontil.runtime.wire.messages import Submit
from pontil.runtime.worker.process.worker_request import make_request
from pontil.runtime.worker.start.assembly import WorkerResources, assemble

# Ids that every test model has; the tiny model's vocabulary is larger.
IDS = st.lists(st.integers(0, 200), min_size=1, max_size=4, unique=True)
OTHERS = st.lists(st.integers(201, 250), min_size=1, max_size=4, unique=True)
SEED = (1 << 63) - 1
# Each option of the engine: JSON values that a client may send for it, and the engine's value for each of them.
OPTIONS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], Any]]] = {
    "max_tokens": (st.integers(20, 40), int),
    "seed": (st.integers(-(2**63), SEED), lambda seed: seed % (1 << 63)),
    "temperature": (st.floats(0, 2), float),
    "top_p": (st.floats(0.01, 1), float),
    "top_k": (st.integers(-1, 1 << 31), lambda count: max(0, count)),
    "stop": (st.text(min_size=1, max_size=5) | st.lists(st.text(min_size=1, max_size=5), max_size=3, unique=True),
             lambda stop: (stop,) if isinstance(stop, str) else tuple(stop)),
    "stop_token_ids": (IDS, tuple),
    "include_stop_str_in_output": (st.booleans(), bool),
    "skip_special_tokens": (st.booleans(), bool),
    "ignore_eos": (st.booleans(), bool),
    "n": (st.integers(1, 128), int),
    "min_p": (st.floats(0, 1), float),
    "presence_penalty": (st.floats(-2, 2), float),
    "frequency_penalty": (st.floats(-2, 2), float),
    "repetition_penalty": (st.floats(0.01, 10), float),
    "logit_bias": (st.dictionaries(st.integers(0, 200).map(str), st.floats(-100, 100), max_size=4),
                   lambda bias: tuple((int(token), value) for token, value in bias.items())),
    "min_tokens": (st.integers(0, 20), int),
    "logprobs": (st.integers(0, 5), int),
    "prompt_logprobs": (st.integers(0, DECLARED["prompt_logprobs"].metadata["high"]), int),
    "bad_token_ids": (IDS, tuple),
    "allowed_token_ids": (OTHERS, tuple),
    "grammar": (st.lists(st.text(min_size=1), min_size=1, unique=True).map(lambda some: {"choice": some}),
                lambda asked: grammar_of_choices(asked["choice"])),
    "logprob_token_ids": (IDS, tuple),
}  # fmt: skip

# Fields that no client sets, but an option of the launch; and those of chats alone.
OF_THE_LAUNCH = {"hide_end_token"}
OF_CHATS = {"thinking_token_budget", "thought"}
# Tried in tests/runtime/worker/test_receipts.py.
OF_RECEIPTS = {"top_logits"}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> WorkerResources:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_llama(folder)
    config = WorkerConfig("mixed:0", "mixed", "cpu", (0,), str(folder), "tiny", "", "", **DEFAULTS)  # type: ignore[arg-type]
    return assemble(config, Silent())


def arrived(params: SamplingParams, machine: WorkerResources) -> SamplingParams:
    """Return what the engine's sequence has, after every hop over the wire."""
    submit = decode(encode(Submit("p", "w", "r", 0, [5, 6], params.to_wire())))
    assert isinstance(submit, Submit)
    return make_request(submit, machine).sequence.params


def test_every_option_of_the_engine_is_in_the_table() -> None:
    known = OPTIONS.keys() | OF_THE_LAUNCH | OF_CHATS | OF_RECEIPTS
    assert known == {field.name for field in fields(SamplingParams) if field.init}


def test_a_budget_of_reasoning_is_kept_by_the_tokens_that_end_it(machine: WorkerResources) -> None:
    params = SamplingParams(max_tokens=40, seed=0, thinking_token_budget=3, thought="BEGUN")
    made = make_request(Submit("p", "w", "r", 0, [5, 6], params.to_wire()), machine).sequence
    assert made.fork(1).rules.thinking not in (None, made.rules.thinking)
    output = machine.tokenizer.encode("hm.", False)[:3]
    for _ in range(20):
        (mask,) = made.rules.masks(output, ())
        if mask is None:
            break
        output.append(int.from_bytes(mask, "little").bit_length() - 1)
    assert machine.tokenizer.decode(output) == "hm.</think>" and made.rules.thinking is None


@pytest.mark.parametrize(
    "changes",
    [
        {"thought": "NONE"},
        {"thought": "SOME"},
        {"thought": None},
        {"thinking_token_budget": -1},
        {"bad_token_ids": "closing"},
        {"allowed_token_ids": [5]},
        {"stop_token_ids": "closing", "min_tokens": 3},
    ],
    ids=str,
)
def test_a_budget_that_cannot_be_kept_is_refused(machine: WorkerResources, changes: dict[str, Any]) -> None:
    closing = list(closing_ids(machine.tokenizer, Thought.BEGUN))
    changes = {name: closing if value == "closing" else value for name, value in changes.items()}
    params = SamplingParams(max_tokens=40, seed=0, thinking_token_budget=3, thought="BEGUN").to_wire() | changes
    with pytest.raises(RequestError, match="thinking_token_budget") as caught:
        make_request(Submit("p", "w", "r", 0, [5, 6], params), machine)
    assert caught.value.param == "thinking_token_budget"


@settings(deadline=None)
@given(data=st.data())
def test_what_a_client_says_is_what_the_engine_has(machine: WorkerResources, data: st.DataObject) -> None:  # D13
    names = data.draw(st.lists(st.sampled_from(list(OPTIONS)), unique=True))
    asked = {name: data.draw(OPTIONS[name][0], name) for name in names}
    defaults = SamplingParams(max_tokens=40, seed=0)
    expected = {field.name: getattr(defaults, field.name) for field in fields(SamplingParams) if field.init}
    if "logprob_token_ids" in asked:  # they take the place of the likeliest, of which none remain
        asked["logprobs"] = data.draw(OPTIONS["logprobs"][0])
    expected |= {name: OPTIONS[name][1](value) for name, value in asked.items()}
    expected |= {"logprobs": 0} if "logprob_token_ids" in asked else {}
    vocabulary = machine.config.vocab_size
    said = in_json(asked)
    whole = read_completion({"prompt": "x"} | said, vocabulary).sampling
    chat = read_chat({"messages": [{"role": "user", "content": "x"}]} | in_a_chat(said), vocabulary).sampling
    for read in (whole, chat):
        params = arrived(read.fitted(read.max_tokens or 40), machine)
        there = {name: getattr(params, name) for name in OPTIONS}
        if "seed" not in asked:
            assert 0 <= there.pop("seed") <= SEED
        assert there == {name: expected[name] for name in there}


def in_json(asked: dict[str, Any]) -> dict[str, Any]:
    """Return a completion's JSON; grammars have no field of their own there."""
    return {"structured_outputs" if name == "grammar" else name: value for name, value in asked.items()}


def in_a_chat(asked: dict[str, Any]) -> dict[str, Any]:
    """Return a chat's JSON; chats ask for logprobs in two fields."""
    count = asked.get("logprobs")
    return asked if count is None else asked | {"logprobs": True, "top_logprobs": count}
