# SPDX-License-Identifier: Apache-2.0
"""Old senders and old receivers: fields are only ever added, so each understands the other (A4)."""

from dataclasses import MISSING, Field, fields, make_dataclass, replace
from typing import Any

import msgpack
import pytest
from recorded_frames import MESSAGES, RECORDED
from shortest_frames import SHORTEST

from pontil.runtime.wire.codec import Shape, decode, encode
from pontil.runtime.wire.messages import TAGS, Tokens


def map_of(frame: bytes) -> dict[str, Any]:
    data: dict[str, Any] = msgpack.unpackb(frame)
    return data


def default_of(one: "Field[Any]") -> Any:
    """Return a field's default, MISSING for a required one."""
    return one.default if one.default_factory is MISSING else one.default_factory()


def test_every_message_was_recorded() -> None:
    assert list(MESSAGES) == list(RECORDED) == list(TAGS)
    for tag, message in MESSAGES.items():
        assert type(message) is TAGS[tag] and map_of(bytes.fromhex(RECORDED[tag]))["t"] == tag
        assert all(getattr(message, one.name) != default_of(one) for one in fields(message) if optional(one)), tag
    assert list(SHORTEST) == [tag for tag, kind in TAGS.items() if any(optional(one) for one in fields(kind))]


def optional(one: "Field[Any]") -> bool:
    return default_of(one) is not MISSING


@pytest.mark.parametrize("tag", RECORDED)
def test_a_recorded_frame_is_read_as_it_was_meant(tag: str) -> None:
    assert decode(bytes.fromhex(RECORDED[tag])) == MESSAGES[tag]


@pytest.mark.parametrize("tag", RECORDED)
def test_what_is_sent_today_has_every_recorded_field(tag: str) -> None:
    assert map_of(encode(MESSAGES[tag])).items() >= map_of(bytes.fromhex(RECORDED[tag])).items()


@pytest.mark.parametrize(("tag", "frame"), SHORTEST.items())
def test_what_an_older_sender_leaves_out_takes_its_default(tag: str, frame: str) -> None:
    data = map_of(bytes.fromhex(frame))
    left_out = {one.name: default_of(one) for one in fields(TAGS[tag]) if one.name not in data}
    assert left_out and MISSING not in left_out.values()
    message = decode(bytes.fromhex(frame))
    assert message == replace(MESSAGES[tag], **left_out)


def test_a_sender_without_counts_states_none() -> None:
    """A sum is authoritative only if every part stated one (A5): silence must never read as 0."""
    message = decode(bytes.fromhex(SHORTEST["tokens"]))
    assert isinstance(message, Tokens)
    assert (message.generated_tokens, message.cached_tokens, message.finish_reason) == (None, None, None)
    assert (message.choice, message.logprobs) == (0, None)


@pytest.mark.parametrize("tag", SHORTEST)
def test_an_older_reader_ignores_what_it_does_not_know(tag: str) -> None:
    """The oldest reader knows the required fields alone."""
    kind: Any = make_dataclass("OldestReader", [(one.name, one.type) for one in fields(TAGS[tag]) if not optional(one)])
    known = {one.name: getattr(MESSAGES[tag], one.name) for one in fields(kind)}
    assert len(known) < len(fields(TAGS[tag]))
    assert Shape(kind).build(map_of(encode(MESSAGES[tag]))) == kind(**known)


@pytest.mark.parametrize("tag", RECORDED)
def test_fields_of_the_future_are_ignored(tag: str) -> None:
    future = {"drafts": [[1, 2], []], "zone": None, "t2": tag, "spans": {"a": 1.5}}
    assert decode(msgpack.packb(map_of(bytes.fromhex(RECORDED[tag])) | future)) == MESSAGES[tag]
