# SPDX-License-Identifier: Apache-2.0
"""Parameters are declared once: parsers, schemas and docs/guide/api.md agree (F2, F3)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from api_table import batch_table, foreign, table
from hypothesis import given
from hypothesis import strategies as st

from pontil.http.openai.chat.request import CHAT, read_chat
from pontil.http.openai.completions.request import COMPLETION, read_completion
from pontil.http.schema.parameter import Parameter, ParameterTable, ParameterType, object_schema, read_all
from pontil.http.schema.parameter_types import (
    FlagType,
    IdsType,
    InertType,
    IntegerType,
    NeutralType,
    NumberType,
    ObjectType,
    OptionsType,
    TextType,
)
from pontil.http.schema.reader import NOTHING, Fields, IgnoredFields
from pontil.http.vllm.chat_batch import CHAT_BATCH, read_chat_batch
from pontil.runtime.errors import RequestError

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = 50
MESSAGES = [{"role": "user", "content": "hi"}]
ENDPOINTS: dict[str, tuple[tuple[Parameter, ...], Callable[..., Any], dict[str, Any]]] = {
    "completions": (COMPLETION, read_completion, {"prompt": "hi"}),
    "chat": (CHAT, read_chat, {"messages": MESSAGES}),
    "batch": (CHAT_BATCH, read_chat_batch, {"messages": [MESSAGES, MESSAGES]}),
}
OBJECTS = (
    "audio",
    "chat_template_kwargs",
    "json_schema",
    "kv_transfer_params",
    "logit_bias",
    "metadata",
    "stream_options",
)
BOTH = pytest.mark.parametrize("endpoint", ENDPOINTS)
# Fields of no server in particular, and misspelt names of parameters.
UNKNOWN = ("mm_processor_kwargs", "litellm_metadata", "", "\u00e9\n, b", "x" * 5000, "n1")
MISSPELT = {"Model": "model", "temprature": "temperature", "max_token": "max_tokens", "logprob": "logprobs",
            "topP": "top_p", "stpo": "stop", "streem": "stream"}  # fmt: skip
INNER = (Parameter("deep", IntegerType(0, 3), "a number"), Parameter("needed", FlagType(), "a flag", required=True))
KINDS: list[ParameterType] = [
    FlagType(), IntegerType(-2, 7), IntegerType(1), NumberType(0.0, 2.0), NumberType(0.0, 1.0, above=True), TextType(),
    TextType(1, 3), IdsType(3), IdsType(3, least=1), NeutralType(),
    NeutralType((1, False, "auto", [], {"type": "text"})), OptionsType(INNER), ObjectType(), InertType(FlagType()),
]  # fmt: skip
NUMBERS = st.integers(-10, 60) | st.floats(-3, 3).filter(lambda number: not number.is_integer())
SCALARS = st.none() | st.booleans() | NUMBERS | st.sampled_from(["", "a", "auto", "none", "abcd", "text"])
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["deep", "needed", "type"]), inner),
    max_leaves=6,
)


def test_the_page_shows_what_is_declared() -> None:  # F2, F3
    page = (ROOT / "docs" / "guide" / "api.md").read_text().splitlines()
    begin = page.index(table()[0])
    end = page.index("", begin)
    assert page[begin:end] == table(), "python tests/support/checks/api_table.py prints the table"
    assert foreign() in page
    begin = page.index(batch_table()[2])
    end = page.index("", begin)
    assert page[begin:end] == batch_table()[2:]


@BOTH
def test_beam_search_is_refused_by_name(endpoint: str) -> None:  # F3
    _, read, least = ENDPOINTS[endpoint]
    read(least | {"use_beam_search": False}, VOCABULARY)
    with pytest.raises(RequestError, match="use_beam_search is not supported") as caught:
        read(least | {"use_beam_search": True}, VOCABULARY)
    assert caught.value.param == "use_beam_search" and caught.value.code == "unsupported_parameter"


@given(st.sampled_from(KINDS), JSON)
def test_a_schema_takes_what_its_reader_takes(kind: ParameterType, value: Any) -> None:  # F3
    parameter = Parameter("it", kind, "something")
    try:
        read_all(Fields({"it": value}, vocab_size=VOCABULARY), [parameter])
        taken = True
    except RequestError as error:
        assert error.param is not None and error.param.startswith("it")
        taken = False
    schema = object_schema([parameter], VOCABULARY)
    assert taken == jsonschema.Draft202012Validator(schema).is_valid({"it": value})


@BOTH
def test_names_are_unique_and_explained(endpoint: str) -> None:
    parameters = ENDPOINTS[endpoint][0]
    assert len({one.name for one in parameters}) == len(parameters)
    assert all(one.says for one in parameters)
    jsonschema.Draft202012Validator.check_schema(object_schema(parameters, VOCABULARY))


@BOTH
def test_nulls_and_defaults_ask_for_nothing(endpoint: str) -> None:
    parameters, read, least = ENDPOINTS[endpoint]
    read(least | {one.name: None for one in parameters if not one.required}, VOCABULARY)
    given = {one.name: one.default for one in parameters if one.default not in (None, ())}
    read(least | given, VOCABULARY)


@BOTH
def test_what_is_not_supported_passes_only_where_it_asks_for_nothing(endpoint: str) -> None:  # F3
    parameters, read, least = ENDPOINTS[endpoint]
    neutral = [one for one in parameters if isinstance(one.kind, NeutralType)]
    assert neutral
    for one in neutral:
        assert isinstance(one.kind, NeutralType)
        for value in one.kind.allowed:
            ignored = IgnoredFields()
            read(least | {one.name: value}, VOCABULARY, ignored)
            assert list(ignored.names) == [one.name]
        with pytest.raises(RequestError) as caught:
            read(least | {one.name: "something else"}, VOCABULARY)
        assert caught.value.param == one.name and caught.value.code == "unsupported_parameter"


@BOTH
@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_declared_has_no_effect_and_is_named(endpoint: str, name: str) -> None:  # F3
    _, read, least = ENDPOINTS[endpoint]
    for value in (None, 0, {"a": 1}):
        ignored = IgnoredFields()
        read(least | {name: value}, VOCABULARY, ignored)
        assert len(ignored.names) == (value is not None)
        with pytest.raises(RequestError) as caught:
            read(least | {name: value}, VOCABULARY, IgnoredFields(strict=True))
        assert str(caught.value.param).startswith(name[:200]) and caught.value.code == "unknown_parameter"


@BOTH
@pytest.mark.parametrize("name", MISSPELT)
def test_what_is_misspelt_is_refused_unless_it_asks_for_nothing(endpoint: str, name: str) -> None:  # F3
    _, read, least = ENDPOINTS[endpoint]
    with pytest.raises(RequestError, match=f"did you mean {MISSPELT[name]}") as caught:
        read(least | {name: 0}, VOCABULARY)
    assert caught.value.param == name and caught.value.code == "unknown_parameter"
    for nothing in NOTHING:
        ignored = IgnoredFields()
        read(least | {name: nothing}, VOCABULARY, ignored)
        assert list(ignored.names) == [name] * (nothing is not None)


@BOTH
def test_very_many_unknown_fields_are_a_mistake(endpoint: str) -> None:
    _, read, least = ENDPOINTS[endpoint]
    ignored = IgnoredFields()
    read(least | {f"odd field {number}": 1 for number in range(64)}, VOCABULARY, ignored)
    assert ignored.more and len(ignored.headers["x-pontil-ignored"]) < 2048
    with pytest.raises(RequestError, match="and 64 other fields"):
        read(least | {f"odd field {number}": 1 for number in range(65)}, VOCABULARY)


@BOTH
def test_what_changes_no_answer_is_named_and_refused_by_a_strict_server(endpoint: str) -> None:  # F3
    parameters, read, least = ENDPOINTS[endpoint]
    inert: dict[str, tuple[Any, tuple[Any, ...] | None]] = {
        one.name: (one.kind.schema(VOCABULARY), one.kind.allowed)
        for one in parameters
        if isinstance(one.kind, InertType)
    }
    assert {"metadata", "store", "user", "safety_identifier"} <= inert.keys()
    some = {"string": "x", "boolean": True, "object": {"a": "b"}}
    for name, (schema, allowed) in inert.items():
        value = some[schema["type"]]
        ignored = IgnoredFields()
        read(least | {name: value}, VOCABULARY, ignored)
        assert list(ignored.names) == [name]
        for harmless in (None, *(allowed or ())):
            read(least | {name: harmless}, VOCABULARY, IgnoredFields(strict=True))
        if allowed is None:
            read(least | {name: value}, VOCABULARY, IgnoredFields(strict=True))
            continue
        with pytest.raises(RequestError) as caught:
            read(least | {name: value}, VOCABULARY, IgnoredFields(strict=True))
        assert caught.value.param == name and caught.value.code == "unsupported_parameter"


@BOTH
def test_wrong_types_are_refused_by_name(endpoint: str) -> None:  # F3
    """No declared parameter accepts this value, whatever its type."""
    parameters, read, least = ENDPOINTS[endpoint]
    # A batch has no streams.
    streamed = {} if endpoint == "batch" else {"stream": True}
    for one in parameters:
        for value in ([[[1.5]]], {"?": 1}) if one.name not in OBJECTS else ([[[1.5]]],):
            with pytest.raises(RequestError) as caught:
                read(least | streamed | {one.name: value}, VOCABULARY)
            assert str(caught.value.param).startswith(one.name), json.dumps({one.name: value})


@pytest.mark.parametrize("sent", [("first", "second"), ("second", "first")])
def test_the_first_wrong_parameter_in_the_order_of_the_table_is_named(sent: tuple[str, str]) -> None:
    flags = ParameterTable([Parameter(name, FlagType(), "a flag", False) for name in ("first", "second")])
    with pytest.raises(RequestError, match="first must be true or false"):
        flags.read(Fields(dict.fromkeys(sent, 1)))
    missing = ParameterTable([Parameter("must", FlagType(), "a flag", required=True), *flags.parameters.values()])
    with pytest.raises(RequestError, match="must is missing"):
        missing.read(Fields(dict.fromkeys(sent, 1)))
    assert flags.read(Fields({"second": True, "first": None})) == {"first": False, "second": True}
    assert flags.read(Fields({})) == {"first": False, "second": False}, "no request changes what others get"
