# SPDX-License-Identifier: Apache-2.0
"""A request of Ollama's becomes the request of a chat, or of a completion."""

from pathlib import Path
from typing import Any

import pytest
from api_table import ollama_tables
from hypothesis import given
from hypothesis import strategies as st

from pontil.http.ollama.options import OPTIONS
from pontil.http.ollama.request import CHAT, GENERATE, OllamaRequest, read_ollama_chat, read_ollama_generate
from pontil.http.openai.chat.request import ChatRequest, read_chat
from pontil.http.openai.completions.request import CompletionRequest, read_completion
from pontil.http.schema.reader import IgnoredFields
from pontil.runtime.errors import RequestError

VOCABULARY = 1000
ROOT = Path(__file__).resolve().parents[3]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": SCHEMA}}
HI = {"role": "user", "content": "hi"}
CALL = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}


def read(ignored: IgnoredFields | None = None, **fields: Any) -> OllamaRequest:
    return read_ollama_chat({"model": "tiny", "messages": [HI]} | fields, VOCABULARY, ignored)


def generated(ignored: IgnoredFields | None = None, **fields: Any) -> OllamaRequest:
    return read_ollama_generate({"model": "tiny", "prompt": "hi"} | fields, VOCABULARY, ignored)


def chat(**fields: Any) -> ChatRequest:
    made = read(**fields).generation
    assert isinstance(made, ChatRequest)
    return made


def test_it_is_the_same_chat() -> None:
    """Everything that a chat has too is read in the same way."""
    same: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.5,
        "top_k": 5,
        "min_p": 0.1,
        "seed": 3,
        "stop": ["x"],
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "cache_salt": "s",
    }
    made = chat(
        messages=[{"role": "System", "content": "be brief"}, HI],
        options=same | {"repeat_penalty": 1.2, "num_predict": 9, "tool_choice": "required"},
        tools=[WEATHER],
        format=SCHEMA,
        think="low",
        logprobs=True,
        top_logprobs=2,
    )
    meant = read_chat(
        {
            "messages": [{"role": "system", "content": "be brief"}, HI],
            "tools": [WEATHER],
            "tool_choice": "required",
            "repetition_penalty": 1.2,
            "stream": True,
            "stream_options": {"include_usage": True},
            "reasoning_effort": "low",
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
            "logprobs": True,
            "top_logprobs": 2,
        }
        | same,
        VOCABULARY,
    )
    for part in ("prompt", "delivery", "handling"):
        assert getattr(made, part) == getattr(meant, part), part
    assert made.sampling.fitted(9) == meant.sampling.fitted(9)


def test_a_raw_prompt_is_a_completion() -> None:
    made = generated(raw=True, options={"seed": 3, "num_predict": 9, "cache_salt": "s"})
    meant = read_completion({"prompt": "hi", "seed": 3, "stream": True, "cache_salt": "s"}, VOCABULARY)
    assert isinstance(made.generation, CompletionRequest) and made.most_tokens == 9
    assert (made.generation.prompts, made.generation.handling) == (meant.prompts, meant.handling)
    assert made.generation.sampling.fitted(9) == meant.sampling.fitted(9)


def test_a_prompt_is_a_turn() -> None:
    made = generated(system="be brief").generation
    assert isinstance(made, ChatRequest) and made.prompt.messages == ({"role": "system", "content": "be brief"}, HI)


@pytest.mark.parametrize(("number", "most"), [(None, None), (-2, None), (-1, None), (0, None), (1, 1), (5000, 5000)])
def test_the_most_tokens(number: int | None, most: int | None) -> None:
    assert read(options={"num_predict": number}).most_tokens == most
    assert read(options={"num_predict": number}).generation.sampling.max_tokens is None  # type: ignore[union-attr]


def test_a_seed_of_minus_one_is_drawn() -> None:
    assert chat(options={"seed": -1}).sampling.seed is None and chat(options={"seed": 0}).sampling.seed == 0


@pytest.mark.parametrize(("think", "thinks"), [(None, None), (True, True), (False, False), ("high", True)])
def test_thinking(think: object, thinks: bool | None) -> None:
    made = read(think=think)
    assert made.thinks is thinks and isinstance(made.generation, ChatRequest)
    assert made.generation.include_reasoning is (thinks is not False)


def test_calls_and_their_results_have_ids() -> None:
    """Ollama's older clients have none, and some templates ask for them."""
    other = {"function": {"name": "time", "arguments": {}}}
    made = chat(
        messages=[
            HI,
            {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [CALL, other, CALL | {"id": "mine"}]},
            {"role": "tool", "content": "noon", "tool_name": "time"},
            {"role": "tool", "content": "7°"},
            {"role": "tool", "content": "8°", "tool_call_id": "mine"},
        ]
    ).prompt.messages
    called = made[1]
    assert called["reasoning_content"] == "hm"
    first, second, third = (call["id"] for call in called["tool_calls"])
    assert third == "mine" and first != second and all(len(one) == 9 and one.isalnum() for one in (first, second))
    assert [(one["content"], one["tool_call_id"]) for one in made[2:]] == [
        ("noon", second),
        ("7°", first),
        ("8°", "mine"),
    ]
    assert made[2]["name"] == "time"


def test_the_answer_goes_on_with_what_the_assistant_began() -> None:
    assert chat(messages=[HI, {"role": "assistant", "content": "Well,"}]).prompt.continue_final_message
    assert not chat(messages=[HI, {"role": "assistant", "content": ""}]).prompt.continue_final_message


def test_nothing_to_answer_loads_the_model() -> None:
    for made in (read(messages=[]), read(messages=None), generated(prompt=""), generated(prompt=None, keep_alive=0)):
        assert made.generation is None


OPEN_WEBUI = {
    "model": "tiny:latest",
    "messages": [{"role": "user", "content": "hi"}],
    "stream": True,
    "options": {"temperature": 0.8, "num_ctx": 2048, "num_gpu": 1, "num_thread": 2, "num_keep": 5, "use_mmap": True},
    "keep_alive": "5m",
}
ZED = {
    "model": "tiny:latest",
    "messages": [
        {"role": "system", "content": "You are."},
        {"role": "user", "content": "hi", "images": None},
        {"role": "assistant", "content": "", "tool_calls": [CALL | {"id": "a"}], "thinking": None},
        {"role": "tool", "tool_name": "weather", "content": "7°"},
    ],
    "stream": True,
    "keep_alive": -1,
    "options": {"num_ctx": 16384, "stop": [], "temperature": 1.0},
    "think": None,
    "tools": [WEATHER],
}
CONTINUE = {
    "model": "tiny",
    "prompt": "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
    "raw": True,
    "options": {
        "temperature": 0.01,
        "num_predict": 256,
        "stop": ["<|fim_prefix|>", "\n\n"],
        "num_ctx": 8192,
        "mirostat": None,
        "num_thread": None,
    },
    "keep_alive": 1800,
    "stream": True,
}


@pytest.mark.parametrize("strict", [False, True])
def test_what_known_clients_send_is_taken(strict: bool) -> None:
    ignored = IgnoredFields(strict)
    assert read_ollama_chat(OPEN_WEBUI, VOCABULARY, ignored).streamed
    assert set(ignored.names) == {
        *("keep_alive", "options.num_ctx", "options.num_gpu", "options.num_thread", "options.num_keep"),
        "options.use_mmap",
    }
    made = read_ollama_chat(ZED, VOCABULARY, IgnoredFields(strict)).generation
    assert isinstance(made, ChatRequest) and len(made.prompt.tools.shown) == 1
    made = read_ollama_generate(CONTINUE, VOCABULARY, IgnoredFields(strict)).generation
    assert isinstance(made, CompletionRequest) and made.prompts == (CONTINUE["prompt"],)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "messages[0].images"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "thinking": 1}]}, "messages[0].thinking"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
            "messages[0].tool_calls[0].function.name",
        ),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
        ({"format": "yaml"}, "format"),
        ({"think": "much"}, "think"),
        ({"think": 1}, "think"),
        ({"keep_alive": []}, "keep_alive"),
        ({"options": []}, "options"),
        ({"options": {"temperature": 9}}, "options.temperature"),
        ({"options": {"num_predict": -3}}, "options.num_predict"),
        ({"options": {"mirostat": 1}}, "options.mirostat"),
        ({"options": {"repeat_last_n": 64}}, "options.repeat_last_n"),
        ({"options": {"temprature": 1}}, "options.temprature"),
        ({"options": {"stop": [""]}}, "options.stop"),
        ({"top_logprobs": 2}, "top_logprobs"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_refused_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(**fields)
    assert caught.value.param == param and caught.value.status == 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"context": [1, 2]}, "context"),
        ({"images": ["aGk="]}, "images"),
        ({"raw": True, "system": "x"}, "system"),
        ({"width": 512}, "width"),
        ({"prompt": ["x"]}, "prompt"),
    ],
)
def test_what_is_refused_of_a_prompt_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        generated(**fields)
    assert caught.value.param == param and caught.value.status == 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "role", "content", "name", "function", "seed", "stop"]), inner)
    ),
)
NAMES = [declared.name for declared in (*CHAT, *GENERATE)]
STATED = st.dictionaries(st.sampled_from([declared.name for declared in OPTIONS]), JSON, max_size=3)


@given(st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4), STATED)
def test_hostile_bodies_are_read_or_refused(body: dict[str, Any], options: dict[str, Any]) -> None:
    for reader in (read_ollama_chat, read_ollama_generate):
        try:
            reader({"model": "tiny", "options": options} | body, VOCABULARY)
        except RequestError as error:
            assert error.status in (400, 404) and str(error)


def test_the_page_shows_the_parameters_as_declared() -> None:
    page = (ROOT / "docs" / "guide" / "ollama.md").read_text().splitlines() + [""]
    for table in ollama_tables():
        begin = page.index(table[2]) - 2
        assert page[begin : begin + len(table)] == table, "tests/support/checks/api_table.py prints the tables"
