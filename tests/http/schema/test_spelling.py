# SPDX-License-Identifier: Apache-2.0
"""A name that is one mistake away from a known one is recognised, others are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.http.schema.reader import Spelling

KNOWN = ("temperature", "max_tokens", "top_p", "n", "stop", "user")
SPELLING = Spelling(KNOWN)


@given(st.sampled_from([name for name in KNOWN if len(name) > 5]), st.data())
def test_one_letter_may_be_wrong(name: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(name) - 1))
    letter = data.draw(st.sampled_from("abcxyz"))
    for written in (name[:at] + name[at + 1 :], name[:at] + letter + name[at:], name[:at] + letter + name[at + 1 :]):
        assert SPELLING.meant_by(written) == name, written
    assert SPELLING.meant_by(name.upper().replace("_", "-")) == name


@pytest.mark.parametrize("name", ["", "x", "m", "metadata", "store", "usage", "tokens", "temp", "x" * 10**6])
def test_other_names_are_other_names(name: str) -> None:
    assert SPELLING.meant_by(name) is None
