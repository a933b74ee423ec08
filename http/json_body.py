# SPDX-License-Identifier: Apache-2.0
"""A request's body as one JSON object, or a RequestError that says why it is none."""

import json
from typing import Any, NoReturn

from pontil.runtime.errors import RequestError


def parse_body(body: bytes) -> dict[str, Any]:
    """Stricter than json.loads: UTF-8 only, no NaN or Infinity, no half surrogate pairs, no name twice in an object, an
    object at the top."""
    try:
        data = json.loads(body.decode("utf-8"), parse_constant=refuse_constant, object_pairs_hook=with_each_name_once)
        if b"\\u" in body:
            # An escaped half of a surrogate pair parses but is no text: it cannot be encoded.
            json.dumps(data, ensure_ascii=False).encode()
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


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def with_each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two values for one name, one would be ignored silently."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        # Half a surrogate pair could not be encoded into the answer.
        shown = twice[:100] if twice.isascii() else ascii(twice)[1:-1][:100]
        raise RequestError(f"{shown} is there twice: say it once", param=shown)
    return made


def kind_of(value: Any) -> str:
    """JSON's own name of a value's type."""
    for kind, name in ((bool, "boolean"), (str, "string"), (int, "integer"), (float, "number"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"
