# SPDX-License-Identifier: Apache-2.0
"""Reader of a request's fields with types and ranges. Fields that were not read are refused, or noted as without
effect (F3)."""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pontil.http.schema.json_body import kind_of
from pontil.runtime.errors import RequestError

HEADER = "x-pontil-ignored"
LINES_HEADER = "x-pontil-lines"
MOST_NAMES = 24
MOST_CHARACTERS = 64
"""Of one name: names may come from clients, and may be as long as a body."""
INDEX = re.compile(r"\[\d+\]")
UNSAFE = re.compile(r"[^A-Za-z0-9_.\[\]-]")


class IgnoredFields:
    """The names of one request, in the order in which they were noted. A `strict` server accepts no such field unless
    its value asks for nothing; the readers of fields see to that. `lines` are lines of its prompt that are known, by
    name, with what was done with them: they are few."""

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self.names: dict[str, None] = {}
        self.lines: dict[str, str] = {}
        self.more = False

    def note(self, path: str) -> None:
        """Note a field by its path. Items of a list count as one field; beyond MOST_NAMES only that there are more is
        kept."""
        if self.more:
            return
        name = UNSAFE.sub("?", INDEX.sub("[]", path[: 4 * MOST_CHARACTERS]))
        self.names.setdefault(name if len(name) <= MOST_CHARACTERS else f"{name[:MOST_CHARACTERS]}...")
        if len(self.names) > MOST_NAMES:
            self.names.popitem()
            self.more = True

    @property
    def headers(self) -> dict[str, str]:
        """The headers that name the fields, and the lines; none where there are none."""
        headers = {}
        if self.names:
            headers[HEADER] = ", ".join([*self.names, "..."] if self.more else self.names)
        if self.lines:
            headers[LINES_HEADER] = ", ".join(f"{name}={done}" for name, done in self.lines.items())
        return headers


SHORTEST = 4
LONGEST = 40
"""Shorter and longer names are not compared."""


class Spelling:
    """The `known` names, by what they may be misspelt as."""

    def __init__(self, known: Iterable[str]) -> None:
        self.meant = {variant: name for name in known for variant in variants(name)}

    def meant_by(self, name: str) -> str | None:
        """Return a known name that this one is like; None if there is none."""
        return next((self.meant[variant] for variant in variants(name) if variant in self.meant), None)


def variants(name: str) -> Iterator[str]:
    """Yield the plain name, and it without each one of its letters."""
    if len(name) > LONGEST:
        return
    plain = name.lower().replace("_", "").replace("-", "")
    if len(plain) >= SHORTEST:
        yield plain
        yield from (plain[:at] + plain[at + 1 :] for at in range(len(plain)))


# Characters of a client's field name that are shown, since it may be very long.
MAX_SHOWN = 200
# Characters that are shown of a value.
MAX_VALUE = 60
# Undeclared fields that a request may have beside its parameters.
MAX_UNKNOWN = 64
# Values with which an undeclared field asks for nothing.
NOTHING: tuple[Any, ...] = (None, "", [], {})


class Fields:
    """The fields of an object. A null counts as absent. Every reader raises RequestError that names the field, with
    `path` in front. Token ids are below `vocab_size`. Fields without effect are noted as `ignored`, one list for a
    whole request."""

    def __init__(
        self, data: Mapping[str, Any], path: str = "", vocab_size: int = 0, ignored: IgnoredFields | None = None
    ) -> None:
        self.data = data
        self.path = path
        self.vocab_size = vocab_size
        self.ignored = IgnoredFields() if ignored is None else ignored
        self.read: set[str] = set()

    def take(self, name: str) -> Any:
        self.read.add(name)
        return self.data.get(name)

    def wrong(self, name: str, says: str, code: str | None = None) -> RequestError:
        place = f"{self.path}{name}"
        shown_path = place if len(place) <= MAX_SHOWN else f"{place[:MAX_SHOWN]}…"
        return RequestError(f"{shown_path} {says}", param=shown_path, code=code)

    def typed(self, name: str, value: Any, wanted: str) -> RequestError:
        return self.wrong(name, f"must be {wanted}, not {'an' if kind_of(value)[0] in 'aio' else 'a'} {kind_of(value)}")

    def unfit(self, name: str, value: Any, wanted: str, code: str | None = None) -> RequestError:
        """Return the error for a value of the right type that is not `wanted`."""
        return self.wrong(name, f"must be {wanted}, not {shown(value)}", code)

    def outside_vocabulary(self, name: str, token_id: Any, high: int) -> RequestError:
        return self.wrong(name, f"holds the id {shown(token_id)}, outside the vocabulary: ids go from 0 to {high - 1}")

    def boolean(self, name: str, default: bool) -> bool:
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.typed(name, value, "true or false")
        return value

    def text(self, name: str) -> str | None:
        value = self.take(name)
        if value is not None and not isinstance(value, str):
            raise self.typed(name, value, "a string")
        return value

    def required_text(self, name: str) -> str:
        text = self.text(name)
        if text is None:
            raise self.wrong(name, "is missing")
        return text

    def integer(self, name: str, low: int, high: int | None = None) -> int | None:
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.typed(name, value, "an integer")
        if value < low or (high is not None and value > high):
            raise self.unfit(name, value, at_least_or_between(low, high))
        return value

    def number(self, name: str, default: float, low: float, high: float, above: bool = False) -> float:
        """Return a number from `low` to `high` inclusive; `above` excludes `low`."""
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.typed(name, value, "a number")
        if not low <= value <= high or (above and value == low) or not math.isfinite(value):
            raise self.unfit(name, value, f"{'above' if above else 'at least'} {low:g} and at most {high:g}")
        return float(value)

    def integers(self, name: str, high: int, most: int) -> tuple[int, ...]:
        """Return a list of at most `most` integers from 0 to `high` - 1."""
        value = self.take(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise self.typed(name, value, "a list of integers")
        if len(value) > most:
            raise self.wrong(name, f"may hold at most {most} items")
        return self.token_ids(name, value, high)

    def token_ids(self, name: str, values: list[Any], high: int) -> tuple[int, ...]:
        if not set(map(type, values)) <= {int}:
            invalid_id = next(value for value in values if type(value) is not int)
            raise self.typed(name, invalid_id, "a list of integers only")
        if values and not (min(values) >= 0 and max(values) < high):
            invalid_id = next(value for value in values if not 0 <= value < high)
            raise self.outside_vocabulary(name, invalid_id, high)
        return tuple(values)

    def object(self, name: str) -> "Fields | None":
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.typed(name, value, "an object")
        return Fields(value, f"{self.path}{name}.", self.vocab_size, self.ignored)

    def required_object(self, name: str, says: str = "is missing") -> "Fields":
        inner = self.object(name)
        if inner is None:
            raise self.wrong(name, says)
        return inner

    def objects(self, name: str, most: int) -> "list[Fields]":
        value = self.take(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.typed(name, value, "a list of objects")
        if len(value) > most:
            raise self.wrong(name, f"may hold at most {most} items")
        return [self.item(element, f"{name}[{index}]") for index, element in enumerate(value)]

    def item(self, value: Any, name: str) -> "Fields":
        """Return the fields of an object in a list."""
        if not isinstance(value, dict):
            raise self.wrong(name, f"must be an object, not {kind_of(value)}")
        return Fields(value, f"{self.path}{name}.", self.vocab_size, self.ignored)

    def neutral(self, neutral_values: Mapping[str, tuple[Any, ...]]) -> None:
        """Accept unsupported parameters only with a value that has no effect."""
        for name in neutral_values.keys() & self.data.keys():
            value = self.take(name)
            if value is not None and not any(same(value, allowed_value) for allowed_value in neutral_values[name]):
                raise self.wrong(name, "is not supported yet: leave it out", "unsupported_parameter")

    def without_effect(self, name: str) -> None:
        """Note a field that was accepted and changes nothing. A null asks for nothing."""
        if self.data.get(name) is not None:
            self.ignored.note(f"{self.path}{name}")

    def finish(self) -> None:
        """Refuse fields that were not read."""
        for name in self.unread:
            raise self.wrong(name, "is not a parameter of this endpoint: leave it out", "unknown_parameter")

    def ignore_rest(self) -> None:
        """Accept the fields that were not read, as without effect; a strict server refuses them."""
        if self.ignored.strict:
            self.finish()
        for name in self.unread:
            self.without_effect(name)

    def ignore_unknown(self, spelling: Callable[[], Spelling]) -> None:
        """Do the same where parameters were read: an unread field that is like one of them is a mistake, which would
        change the answer. `spelling` knows their names, and is called only if there are unread fields."""
        unread = [name for name in self.unread if self.data[name] not in NOTHING]
        if len(unread) > MAX_UNKNOWN:
            raise self.wrong(
                unread[0], f"and {len(unread) - 1} other fields are no parameters: leave them out", "unknown_parameter"
            )
        known_names = spelling() if unread else None
        for name in unread:
            if known_names is not None and (meant := known_names.meant_by(name)):
                says = f"is not a parameter of this endpoint: did you mean {meant}?"
                raise self.wrong(name, says, "unknown_parameter")
        self.ignore_rest()

    @property
    def known(self) -> dict[str, Any]:
        """The fields that were read, as they were sent."""
        return {name: value for name, value in self.data.items() if name in self.read}

    @property
    def unread(self) -> list[str]:
        return [name for name in self.data if name not in self.read]


def same(value: Any, allowed_value: Any) -> bool:
    """Return whether the values are equal, with booleans distinct from numbers."""
    return isinstance(value, bool) == isinstance(allowed_value, bool) and bool(value == allowed_value)


def shown(value: Any) -> str:
    """Return a number, a boolean, null or the beginning of a string as JSON in ASCII, and the type of anything else."""
    if isinstance(value, list | dict):
        return f"an {kind_of(value)}"
    text = json.dumps(value[:MAX_VALUE] if isinstance(value, str) else value)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}…"


def at_least_or_between(low: int, high: int | None) -> str:
    return f"at least {low}" if high is None else f"between {low} and {high}"
