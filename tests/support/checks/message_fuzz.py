# SPDX-License-Identifier: Apache-2.0
"""Messages in which one or two fields are wrong, as a peer or proxy that is broken or hostile could send them."""

import random
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from pontil.runtime.errors import MalformedFrame
from pontil.runtime.wire.codec import decode, encode
from pontil.runtime.wire.messages import Message

# Fields by which a message finds its receiver: with another it is stale, and nobody looks at the rest.
ADDRESS = frozenset({"sender", "receiver"})
INTEGERS = (
    -(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 255, 1 << 16, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63,
    2**64 - 1,
)  # fmt: skip
FLOATS = (float("nan"), float("inf"), float("-inf"), -1.0, 0.0, 5e-324, 1e-9, 1.0, 1e18, 1.7e308)
TEXTS = ("", "x", "..", "\0", "ä€😀", "tcp://", "ipc://", "tcp://127.0.0.1:99999", "tcp://[::1", "a/b/c", "x" * 5000)
LONG = 3000


def wrong(value: Any, chance: random.Random, depth: int = 0) -> Any:
    """Return another value, mostly of the same type: at a boundary, too long, repeated, or wrong inside."""
    if chance.random() < 0.05:
        return chance.choice([None, [], {}, "", 0, b""])
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chance.choice([*INTEGERS, value + 1, value - 1, -value])
    if isinstance(value, float):
        return chance.choice([*FLOATS, -value])
    if isinstance(value, str):
        return chance.choice([*TEXTS, value + "x", value[:-1], value[::-1]])
    if isinstance(value, bytes):
        return chance.choice([b"", value[:-1], value + b"\0", b"\xff" * (len(value) or 8), b"\0" * LONG])
    if isinstance(value, dict):
        return wrong_map(value, chance, depth)
    if isinstance(value, list | tuple):
        return wrong_list(list(value), chance, depth)
    return chance.choice([*INTEGERS[:8], *FLOATS[:3], *TEXTS[:4], [], {}, [[]], {"": 0}, b"\0"])


def wrong_map(value: dict[str, Any], chance: random.Random, depth: int) -> dict[str, Any]:
    if not value or depth > 3:
        return {chance.choice(TEXTS[:6]): chance.choice(INTEGERS)}
    name = chance.choice(sorted(value))
    if chance.random() < 0.15:
        return {key: one for key, one in value.items() if key != name}
    return value | {name: wrong(value[name], chance, depth + 1)}


def wrong_list(value: list[Any], chance: random.Random, depth: int) -> list[Any]:
    if not value or depth > 3:
        return chance.choice([[0], [-1], [2**63 - 1], [[]], [[0, 1]], [""], [0] * LONG])
    place = chance.randrange(len(value))
    before, after = value[:place], value[place + 1 :]
    changed = [*before, wrong(value[place], chance, depth + 1), *after]
    others = [before + after, value[: place + 1] + value[place:], value[::-1], [], value + [value[place]] * LONG]
    return chance.choice([changed, *others])


def mutated(message: Message, chance: random.Random) -> Message:
    """Return the message as its receiver decodes it, with one or two fields wrong. The codec refuses values of a wrong
    type, so that no receiver sees them: others are tried."""
    names = [field.name for field in fields(message) if field.name not in ADDRESS]
    if not names:
        return message
    while True:
        some = chance.sample(names, 2 if len(names) > 1 and chance.random() < 0.3 else 1)
        changed = {name: wrong(getattr(message, name), chance) for name in some}
        try:
            return decode(encode(replace(message, **changed)))
        except (MalformedFrame, OverflowError, TypeError, ValueError, UnicodeEncodeError):
            continue


class Interceptor:
    """A stand-in for a peer on the way: of the messages of one `kind` it changes the one with this number, or repeats
    it, or, if that is `lossy`, leaves it out."""

    def __init__(self, kind: type[Message], number: int, chance: random.Random, lossy: bool = True) -> None:
        self.kind, self.number, self.chance, self.lossy = kind, number, chance, lossy
        self.is_open = True

    def __call__(self, message: Message) -> Sequence[Message]:
        if not self.is_open or type(message) is not self.kind:
            return [message]
        self.number -= 1
        if self.number != -1:
            return [message]
        what = self.chance.random()
        if self.lossy and what < 0.05:
            return []
        if what < 0.15:
            return [message, mutated(message, self.chance), message]
        return [mutated(message, self.chance)]
