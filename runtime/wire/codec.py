# SPDX-License-Identifier: Apache-2.0
"""Conversion of messages to bytes and back: one msgpack map per message, its tag under "t".

Unknown fields are ignored, a missing field takes its default, and a value of the wrong type is refused here, so that
later code need not check types. The one exception is an introduction from a process of another protocol version: its
known fields are accepted, so that it can be told why it is refused.

Ordinary tokens of many sequences are rows of one Step: most of a token's cost on its way to the proxy is per message.

The checks are ours: msgspec.convert makes floats of whole numbers in fields of floats, where logprobs have token ids
(docs/measurements-history.md).
"""

import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, fields
from itertools import chain
from operator import attrgetter
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgpack

from pontil.runtime.errors import MalformedFrame
from pontil.runtime.wire.messages import SCHEMA, TAGS, Message, Step, Tokens

# The values that a field takes: those of exact types, or those of a predicate.
Check = Callable[[Any], bool] | frozenset[type]

# A prompt of a million tokens is about 5 MB; no message is larger than this.
MAX_FRAME_BYTES = 64 << 20
# Substitutes for required values that a process of another protocol version omits, or sends with another type.
EMPTY = {str: "", int: 0}
ADDRESSES = ("sender", "receiver")
PLAIN = (int, float, bool, str, bytes, types.NoneType)
TEXT, LISTS = frozenset((str,)), frozenset((list,))
# Fields of a Step's row before the ids.
HEAD = 5


def is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def exact_types(hint: Any) -> frozenset[type] | None:
    """Return the exact types of a plain annotation's values, as msgpack makes them; None for one that is not plain. An
    int is a float, too, and a bool is no int."""
    if get_origin(hint) in (Union, types.UnionType):
        parts = [exact_types(part) for part in get_args(hint)]
        return None if None in parts else frozenset().union(*(part for part in parts if part is not None))
    if hint is float:
        return frozenset((float, int))
    return frozenset((hint,)) if hint in PLAIN else None


def passes(check: Check, value: Any) -> bool:
    return type(value) in check if isinstance(check, frozenset) else check(value)


def checker(hint: Any) -> Check:
    """Return the check for one annotation: a plain one, dict, list[…], or a union of these and None."""
    kinds, origin = exact_types(hint), get_origin(hint)
    if kinds is not None:
        return kinds
    if origin in (Union, types.UnionType):
        checks = [checker(part) for part in get_args(hint)]
        return lambda value: any(passes(check, value) for check in checks)
    if origin is list:
        (inner,) = get_args(hint)
        items = exact_types(inner)
        if items is not None:
            # At C speed.
            return lambda value: type(value) is list and items.issuperset(map(type, value))
        cells = exact_types(get_args(inner)[0]) if get_origin(inner) is list else None
        if cells is not None:
            return lambda value: (
                type(value) is list
                and LISTS.issuperset(map(type, value))
                and cells.issuperset(map(type, chain.from_iterable(value)))
            )
        element = checker(inner)
        return lambda value: isinstance(value, list) and all(passes(element, item) for item in value)
    assert origin is dict, f"no message has a field of type {hint}"
    _, inner = get_args(hint)
    if inner is Any:
        return lambda value: isinstance(value, dict) and all(isinstance(key, str) for key in value)
    values = exact_types(inner)
    if values is not None:
        return lambda value: (
            type(value) is dict and TEXT.issuperset(map(type, value)) and values.issuperset(map(type, value.values()))
        )
    element = checker(inner)
    return lambda value: (
        isinstance(value, dict) and all(isinstance(key, str) and passes(element, item) for key, item in value.items())
    )


class Shape:
    """The fields of one message type: their names in order, checks, and which may be missing."""

    def __init__(self, kind: type[Message]) -> None:
        hints = get_type_hints(kind)
        self.kind, self.hints = kind, hints
        self.checks = {field.name: checker(hints[field.name]) for field in fields(kind)}
        # Those of plain fields, which most are.
        self.exact = {name: check for name, check in self.checks.items() if isinstance(check, frozenset)}
        self.calls = {name: check for name, check in self.checks.items() if not isinstance(check, frozenset)}
        # All fields of a message, in the same order: each message has at least two.
        self.values: Callable[[Message], tuple[Any, ...]] = attrgetter(*self.checks)
        self.required = {
            field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING
        }

    def build(self, data: dict[str, Any]) -> Message:
        """Return the message with these fields, without those that it does not know. Raises MalformedFrame."""
        checks, exact, calls = self.checks, self.exact, self.calls
        # Nearly always all are known: then nothing is copied.
        fields = data if data.keys() <= checks.keys() else {one: data[one] for one in data if one in checks}
        if "schema" in fields and is_int(fields["schema"]) and fields["schema"] != SCHEMA:
            fields = self.understood(fields)
        if not self.required <= fields.keys():
            raise MalformedFrame(f"{self.kind.__name__} lacks {', '.join(sorted(self.required - fields.keys()))}")
        for name, value in fields.items():
            # As `passes`, whose call takes as long as most checks.
            if not (type(value) in exact[name] if name in exact else calls[name](value)):
                raise MalformedFrame(f"{self.kind.__name__}.{name} has a value of the wrong type")
        return self.kind(**fields)

    def understood(self, known: dict[str, Any]) -> dict[str, Any]:
        """Keep the fields of another version's introduction that have the known type; fill in EMPTY for the rest but
        addresses."""
        empty = {name: EMPTY[self.hints[name]] for name in self.required if name not in ADDRESSES}
        fitting = {
            name: value for name, value in known.items() if name in ADDRESSES or passes(self.checks[name], value)
        }
        return empty | fitting


SHAPES = {tag: Shape(kind) for tag, kind in TAGS.items()}
TAG_OF = {kind: tag for tag, kind in TAGS.items()}


def encode(message: Message) -> bytes:
    tag = TAG_OF[type(message)]
    shape = SHAPES[tag]
    there: dict[str, Any] = {"t": tag}
    for name, value in zip(shape.checks, shape.values(message), strict=True):
        if value is not None:
            there[name] = value
    frame: bytes = msgpack.packb(there, use_bin_type=True)
    return frame


def decode(frame: bytes) -> Message:
    """Return the message in `frame`. Raise MalformedFrame, with the reason, for anything that is not one."""
    if len(frame) > MAX_FRAME_BYTES:
        raise MalformedFrame(f"a frame of {len(frame)} bytes is larger than {MAX_FRAME_BYTES}")
    try:
        data = msgpack.unpackb(frame, raw=False, strict_map_key=True)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise MalformedFrame(f"not msgpack: {error}") from None
    if not isinstance(data, dict):
        raise MalformedFrame(f"expected a map, got {type(data).__name__}")
    tag = data.pop("t", None)
    shape = SHAPES.get(tag) if isinstance(tag, str) else None
    if shape is None:
        raise MalformedFrame(f"unknown tag {tag!r:.40}")
    return shape.build(data)


def fits_a_row(frame: Tokens) -> bool:
    """Return whether a step can carry everything in this frame."""
    return (
        len(frame.ids) > 0
        and frame.finish_reason is None
        and frame.generated_tokens is None
        and frame.logprobs is None
        and frame.prompt_logprobs is None
        and frame.queue_seconds is None
        and frame.computed_tokens is None
        and frame.draft_tokens is None
        and frame.first_cached_tokens is None
        and frame.pulled_bytes is None
        and frame.frames is None
        and frame.prompt_tokens is not None
        and frame.cached_tokens is not None
    )


def joined(frames: Sequence[Tokens], *, with_logits: bool) -> Iterator[Tokens | Step]:
    """Yield the same tokens in fewer and smaller messages, of which a Step may carry logits or not. Frames of one
    choice keep their order as long as each choice has at most one. All frames have one sender; one Step goes to each
    receiver, also with one row: it has a fifth of a frame's fields."""
    steps = dict[str, tuple[list[str], list[list[int]], list[bytes]]]()
    for frame in frames:
        if not fits_a_row(frame) or frame.top_logits is not None and not with_logits:
            yield frame
            continue
        requests, rows, logits = steps.setdefault(frame.receiver, ([], [], []))
        requests.append(frame.request_id)
        rows.append(row_of(frame))
        logits.append(frame.top_logits or b"")
    for receiver, (requests, rows, logits) in steps.items():
        yield Step(frames[0].sender, receiver, requests, rows, logits if any(logits) else None)


def row_of(frame: Tokens) -> list[int]:
    prompt_tokens, cached_tokens = frame.prompt_tokens, frame.cached_tokens
    assert prompt_tokens is not None and cached_tokens is not None, "a plain frame has both"
    return [frame.attempt, frame.choice, frame.index, prompt_tokens, cached_tokens, *frame.ids]


def rows_of(step: Step) -> Iterator[tuple[str, list[int], bytes]]:
    """Return each row with its request, and the logits stated of it. Raise MalformedFrame for rows that do not match
    the requests."""
    logits = [b""] * len(step.rows) if step.top_logits is None else step.top_logits
    if not len(logits) == len(step.rows) == len(step.requests) or min(map(len, step.rows), default=HEAD + 1) <= HEAD:
        raise MalformedFrame("a step whose rows are not those of its requests")
    return zip(step.requests, step.rows, logits, strict=True)


def frame_of(step: Step, request: str, row: list[int], top_logits: bytes = b"") -> Tokens:
    return Tokens(
        step.sender, step.receiver, request, row[0], row[2], row[HEAD:], row[1], prompt_tokens=row[3],
        cached_tokens=row[4], top_logits=top_logits or None,
    )  # fmt: skip
