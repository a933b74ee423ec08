# SPDX-License-Identifier: Apache-2.0
"""Parsing of a request's body as one JSON object; a RequestError says why it is none.

The C code that parses JSON holds the GIL from the first byte to the last. For a large body it is given Python callbacks
for each number and object, so that other threads run in between. Lists and names have no callback and cost most, so
their number is bounded.
"""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from pontil.runtime.errors import RequestError

MAX_PARTS = 1 << 17
"""Objects, lists and names of a body together. What a large one has many of is ids, or text in few strings."""
LARGE_BODY = 16 << 10
"""Of more bytes work is done in a thread."""
STRING = re.compile(rb'"[^"]*"?')
PARTS = (b"{", b"[", b":")
ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_body(body: bytes) -> dict[str, Any]:
    """Parse stricter than json.loads: UTF-8 only, no NaN or Infinity, no lone surrogates, no duplicate names, an object
    at the top."""
    try:
        data = parse(body, object_pairs_hook=with_each_name_once)
        if ESCAPED_SURROGATE.search(body):
            # An escaped lone surrogate parses but cannot be encoded.
            for piece in json.JSONEncoder(ensure_ascii=False).iterencode(data):
                piece.encode()
    except UnicodeDecodeError:
        raise RequestError("the body is not UTF-8: send JSON as UTF-8") from None
    except UnicodeEncodeError:
        raise RequestError("the body holds half of a surrogate pair: send valid Unicode") from None
    except RecursionError:
        raise RequestError("the body is nested too deeply: no request needs that") from None
    except ValueError as error:
        raise RequestError(f"the body is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise RequestError(f"the body is a JSON {kind_of(data)}: send an object")
    return data


def parse(text: bytes, object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] = dict) -> Any:
    """Return any JSON value in UTF-8, without NaN and Infinity. Raises ValueError, RecursionError, and RequestError for
    one of too many parts."""
    # json.loads has a sentence for the mark.
    if len(text) <= LARGE_BODY and not text.startswith(BOM_UTF8):
        return DECODERS[object_pairs_hook].decode(text.decode("utf-8"))
    if has_many_parts(text):
        raise RequestError(f"the JSON has more than {MAX_PARTS} objects, lists and names: no request needs that")
    return json.loads(
        text.decode("utf-8"),
        parse_constant=refuse_constant,
        parse_int=whole_number,
        parse_float=broken_number,
        object_pairs_hook=object_pairs_hook,
    )


def has_many_parts(text: bytes) -> bool:
    """Return whether the text has more than MAX_PARTS. Characters inside strings are excluded only once the plain count
    is too high."""
    if parts_in(text) <= MAX_PARTS:
        return False
    count = 0
    for piece in outside_strings(text):
        count += parts_in(piece)
        if count > MAX_PARTS:
            return True
    return False


def outside_strings(text: bytes) -> Iterator[bytes]:
    """Yield the text between strings, whether or not the last string ends. Other threads run in between."""
    bare = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    end = 0
    for string in STRING.finditer(bare):
        yield bare[end : string.start()]
        end = string.end()
    yield bare[end:]


def parts_in(text: bytes) -> int:
    return sum(map(text.count, PARTS))


def whole_number(digits: str) -> int:
    return int(digits)


def broken_number(digits: str) -> float:
    return float(digits)


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def with_each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object; refuses duplicate names, one of whose values would be ignored silently."""
    json_object = dict(pairs)
    if len(json_object) < len(pairs):
        twice = first_repeated(pairs)
        # A lone surrogate could not be encoded into the response.
        shown_name = twice[:100] if twice.isascii() else ascii(twice)[1:-1][:100]
        raise RequestError(f"{shown_name} is there twice: say it once", param=shown_name)
    return json_object


def first_repeated(pairs: list[tuple[str, Any]]) -> str:
    """Return the first duplicate name, in one scan."""
    seen_names: set[str] = set()
    for name, _ in pairs:
        if name in seen_names:
            return name
        seen_names.add(name)
    raise AssertionError("each name is there once")


def kind_of(value: Any) -> str:
    """Return JSON's name of a value's type."""
    for kind, name in ((bool, "boolean"), (str, "string"), (int, "integer"), (float, "number"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"


# Made once: json.loads makes a decoder for each call with hooks.
DECODERS: dict[Callable[[list[tuple[str, Any]]], Any], json.JSONDecoder] = {
    hook: json.JSONDecoder(parse_constant=refuse_constant, object_pairs_hook=hook)
    for hook in (dict, with_each_name_once)
}
