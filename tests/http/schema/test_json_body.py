# SPDX-License-Identifier: Apache-2.0
"""Parsing of bodies: its cost, counted, and the refusal of invalid JSON."""

import json
import sys
import threading
from typing import Any, ClassVar

import pytest

from pontil.http.schema import json_body
from pontil.http.schema.json_body import (
    MAX_PARTS,
    first_repeated,
    outside_strings,
    parse,
    parse_body,
    with_each_name_once,
)
from pontil.runtime.errors import RequestError


class Name(str):
    """A string that counts how often it is hashed or compared."""

    looks: ClassVar[list[None]] = []

    def __eq__(self, other: object) -> bool:
        self.looks.append(None)
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        self.looks.append(None)
        return str.__hash__(self)


@pytest.mark.parametrize("count", [100, 3000])
def test_a_doubled_name_is_found_in_one_pass(count: int) -> None:
    """The duplicate comes last, after many unique names."""
    pairs: list[tuple[str, Any]] = [(Name(f"name {number}"), number) for number in range(count)]
    pairs.append((Name(f"name {count - 1}"), 0))
    Name.looks.clear()
    with pytest.raises(RequestError, match=f"name {count - 1} is there twice"):
        with_each_name_once(pairs)
    assert len(Name.looks) < 8 * count


def test_the_name_that_is_named_is_the_first_that_repeats() -> None:
    assert first_repeated([("a", 1), ("b", 1), ("b", 2), ("a", 2)]) == "b"


@pytest.mark.parametrize(
    ("unit", "param"),
    [(b"[]", None), (b"{}", None), (b'{"a":1}', None), (b"[[]]", None)],
    ids=["lists", "objects", "names", "nested"],
)
def test_a_wide_body_is_refused_before_it_is_built(
    unit: bytes, param: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b'{"prompt": [' + b",".join([unit] * MAX_PARTS) + b"]}"
    monkeypatch.setattr(json, "loads", lambda *args, **known: pytest.fail("it was parsed"))
    with pytest.raises(RequestError, match="more than 131072 objects, lists and names"):
        parse_body(body)


def test_what_stands_in_text_is_no_part() -> None:
    """Code and JSON within a string may have any number of brackets, escaped or not."""
    text = '{"a": [1, 2, {"b": "\\"[["}]}' * MAX_PARTS
    assert parse_body(json.dumps({"prompt": text, "more": [text[:9]]}).encode()) == {"prompt": text, "more": [text[:9]]}


@pytest.mark.parametrize(
    ("text", "outside"),
    [
        (b'{"a": [1, "[", "\\"[", "\\\\", [2], "\\\\\\"["]}', b"{: [1, , , , [2], ]}"),
        (b'["a\\\\"]["b', b"[]["),
        (b'[""""]', b"[]"),
        (b"", b""),
    ],
)
def test_strings_end_where_they_end(text: bytes, outside: bytes) -> None:
    assert b"".join(outside_strings(text)) == outside


def test_large_bodies_are_what_small_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"ids": [1, -2, 10**30], "numbers": [1.5, -2e-7], "rest": [True, None, "é😀", {}, {"a": [[]]}]}
    body = json.dumps(values).encode()
    small = parse(body)
    monkeypatch.setattr(json_body, "LARGE_BODY", 0)
    assert parse(body) == small == values
    for wrong in (b"[NaN]", b"[-Infinity]", b"[1", b"[01]", b'["\xff"]', b"9" * 5000):
        with pytest.raises(ValueError):
            parse(wrong)


@pytest.mark.parametrize("body", [b"[%s]" % b",".join([b"12345"] * 200_000), b"[%s]" % b",".join([b"1.5"] * 200_000)])
def test_others_run_while_numbers_are_parsed(body: bytes) -> None:
    """C code that never releases the GIL can only be interrupted by the interpreter, which checks between bytecode
    instructions."""
    assert runs_meanwhile(lambda: parse(body)), "ids in their thousands are parsed in one step of C"


def runs_meanwhile(work: Any) -> bool:
    """Return whether this thread ran while another one did `work`."""
    begun, ended = threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        work()
        ended.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        begun.wait()
        steps = 0
        while not ended.is_set():
            steps += not ended.wait(0.0001)
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    return steps > 3
