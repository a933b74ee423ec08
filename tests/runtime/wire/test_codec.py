# SPDX-License-Identifier: Apache-2.0
"""The codec of every process: valid messages come back equal, everything else is refused with a reason."""

from contextlib import suppress
from dataclasses import fields
from typing import Any, get_type_hints

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pontil.runtime.errors import MalformedFrame
from pontil.runtime.wire.codec import decode, encode
from pontil.runtime.wire.messages import SCHEMA, TAGS, Cancel, Greet, Hello, Logprobs, Message, Tokens

ints = st.integers(min_value=-(2**63), max_value=2**64 - 1)
values: dict[Any, st.SearchStrategy[Any]] = {
    int: ints,
    str: st.text(max_size=20),
    bytes: st.binary(max_size=20),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    list[int]: st.lists(ints, max_size=5),
    list[float]: st.lists(st.floats(allow_nan=False) | ints, max_size=3),
    list[str]: st.lists(st.text(max_size=5), max_size=3),
    list[list[int]]: st.lists(st.lists(ints, max_size=3), max_size=3),
    Logprobs | None: st.lists(st.lists(st.lists(st.floats(allow_nan=False) | ints))) | st.none(),
    dict[str, int]: st.dictionaries(st.text(max_size=5), ints, max_size=3),
    dict[str, Any]: st.dictionaries(st.text(max_size=5), ints | st.text() | st.none(), max_size=3),
    list[list[int]] | None: st.lists(st.lists(ints, max_size=3), max_size=3) | st.none(),
    list[int] | None: st.lists(ints, max_size=3) | st.none(),
    list[str] | None: st.lists(st.text(max_size=5), max_size=3) | st.none(),
    int | None: ints | st.none(),
    float | None: st.floats(allow_nan=False) | st.none(),
    str | None: st.text(max_size=20) | st.none(),
    bytes | None: st.binary(max_size=20) | st.none(),
    list[bytes] | None: st.lists(st.binary(max_size=20), max_size=3) | st.none(),
    list[list[str]]: st.lists(st.lists(st.text(max_size=5), max_size=3), max_size=3),
    list[dict[str, Any]]: st.lists(st.dictionaries(st.text(max_size=5), ints, max_size=3), max_size=3),
    dict[str, dict[str, Any]]: st.dictionaries(
        st.text(max_size=5), st.dictionaries(st.text(max_size=5), ints, max_size=3), max_size=3
    ),
    dict[str, list[int]]: st.dictionaries(st.text(max_size=5), st.lists(ints, max_size=3), max_size=3),
    dict[str, str]: st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    dict[str, int] | None: st.dictionaries(st.text(max_size=5), ints, max_size=3) | st.none(),
    dict[str, Any] | None: st.dictionaries(st.text(max_size=5), ints, max_size=3) | st.none(),
}


def messages() -> st.SearchStrategy[Message]:
    return st.sampled_from(list(TAGS.values())).flatmap(build)


def build(kind: type[Message]) -> st.SearchStrategy[Message]:
    hints = get_type_hints(kind)
    return st.builds(kind, **{field.name: values[hints[field.name]] for field in fields(kind)})


@pytest.mark.parametrize("kind", TAGS.values())
@settings(max_examples=5)
@given(data=st.data())
def test_a_message_of_each_kind_comes_back_equal(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(build(kind))
    assert decode(encode(message)) == message


@given(messages())
def test_every_message_comes_back_equal(message: Message) -> None:
    assert decode(encode(message)) == message


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_a_message(frame: bytes) -> None:
    with suppress(MalformedFrame):
        assert type(decode(frame)) in TAGS.values()


@given(messages(), st.data())
def test_a_damaged_frame_never_raises_anything_else(message: Message, data: st.DataObject) -> None:
    frame = bytearray(encode(message))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with suppress(MalformedFrame):
        decode(bytes(frame))


def test_unknown_fields_are_ignored_and_missing_optional_ones_are_none() -> None:  # A4
    data = {"t": "tokens", "sender": "w", "receiver": "p", "request_id": "r", "attempt": 0, "index": 0, "ids": [0]}
    assert decode(msgpack.packb(data | {"new": 1})) == Tokens("w", "p", "r", 0, 0, [0])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"t": "nobody"}, "unknown tag"),
        ({}, "unknown tag"),
        ([1], "expected a map"),
        ({"t": "cancel", "sender": "a", "receiver": "b", "request_id": "r"}, "lacks attempt"),
        ({"t": "cancel", "sender": "a", "receiver": "b", "request_id": 7, "attempt": 0}, "request_id"),
        ({"t": "cancel", "sender": "a", "receiver": "b", "request_id": "r", "attempt": True}, "attempt"),
    ],
)
def test_what_is_not_a_message_is_named(data: Any, says: str) -> None:
    with pytest.raises(MalformedFrame, match=says):
        decode(msgpack.packb(data))


@given(st.one_of(build(Hello), build(Greet)), st.data())
def test_an_introduction_of_another_version_is_let_in_whatever_it_lacks(message: Message, data: st.DataObject) -> None:
    """The receiver needs it to refuse the peer with a reason rather than drop it without one (C8)."""
    frame: dict[str, Any] = msgpack.unpackb(encode(message))
    frame["schema"] = data.draw(ints.filter(lambda schema: schema != SCHEMA))
    kept = {"t", "schema", "sender", "receiver"}
    for name in sorted(frame.keys() - kept):
        if not data.draw(st.booleans()):
            frame[name] = data.draw(st.sampled_from([None, [], -0.5, {"a": 1}]))
            if frame[name] is None:
                del frame[name]
    known = decode(msgpack.packb(frame))
    assert isinstance(known, Hello | Greet) and known.schema == frame["schema"]
    for field in fields(known):
        value = getattr(known, field.name)
        assert value == frame.get(field.name) or not value
    assert decode(encode(known)) == known


@pytest.mark.parametrize("schema", [SCHEMA, "2", True, None])
def test_an_introduction_of_our_version_or_of_none_must_be_whole(schema: Any) -> None:
    with pytest.raises(MalformedFrame, match="lacks|schema"):
        decode(msgpack.packb({"t": "hello", "sender": "w", "name": "decode:0", "schema": schema}))
    with pytest.raises(MalformedFrame, match="lacks sender"):
        decode(msgpack.packb({"t": "hello", "name": "decode:0", "schema": SCHEMA + 1}))


def test_deeply_nested_maps_are_refused() -> None:
    with pytest.raises(MalformedFrame):
        decode(b"\x81\xa1t" * 5000)


def test_none_is_not_sent() -> None:
    assert b"finish_reason" not in encode(Tokens("w", "p", "r", 0, 0, [1]))
    assert decode(encode(Cancel("p", "w", "r", 1))) == Cancel("p", "w", "r", 1)
