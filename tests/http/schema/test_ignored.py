# SPDX-License-Identifier: Apache-2.0
"""The header that names fields without effect is bounded and safe, whatever clients call their fields."""

import re

from hypothesis import given
from hypothesis import strategies as st

from pontil.http.schema.reader import HEADER, IgnoredFields


@given(st.lists(st.text(max_size=300), max_size=60))
def test_a_header_is_short_and_of_plain_characters(paths: list[str]) -> None:  # F3
    ignored = IgnoredFields()
    for path in paths:
        ignored.note(path)
    assert set(ignored.headers) == ({HEADER} if paths else set())
    for value in ignored.headers.values():
        assert re.fullmatch(r"[A-Za-z0-9_.\[\], ?-]*", value) and len(value) < 2048
        assert len(value.split(", ")) == len(ignored.names) + ignored.more <= 25


def test_items_of_a_list_are_named_once() -> None:
    ignored = IgnoredFields()
    for number in range(100):
        ignored.note(f"messages[{number}].tool_calls[{number}].odd")
        ignored.note("user")
    assert ignored.headers == {HEADER: "messages[].tool_calls[].odd, user"}


def test_what_is_beyond_the_bound_is_told() -> None:
    ignored = IgnoredFields()
    for number in range(1000):
        ignored.note(f"f{number}")
    assert ignored.headers[HEADER].startswith("f0, f1, ") and ignored.headers[HEADER].endswith("f23, ...")
