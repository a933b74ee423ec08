# SPDX-License-Identifier: Apache-2.0
"""A profile's file: what was written is read, and anything else is one sentence."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_profile import small_profile

from pontil.runtime.planner.device_profile import (
    DIGEST,
    DeviceProfile,
    DiskTimes,
    DraftTimes,
    LendingTimes,
    ProfileError,
    digest_of,
    read_profile,
)

SMALL = small_profile()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def signed(change: Callable[[dict[str, Any]], object]) -> bytes:
    """Return the file with a change, and the digest that belongs to it."""
    told = json.loads(SMALL.text())
    change(told)
    return json.dumps({**told, DIGEST: digest_of(told)}).encode()


DRAFT = DraftTimes("smaller", 1024, 1 << 20, 0.25, ((1.0, 32.0, 0.5), (64.0, 32.0, 4.0)), ((1.0, 0.4),))


ALL = replace(
    SMALL, disk=DiskTimes(0.5, 0.2, 1.0), draft=DRAFT, lending=LendingTimes(((1.0, 0.0, 0.75), (0.0, 64.0, 0.5)))
)


@pytest.mark.parametrize("made", [SMALL, ALL])
def test_what_was_written_is_read(made: DeviceProfile) -> None:
    """Leave out what was not measured, and read an earlier version's file, which has none of it."""
    assert read_profile(made.text().encode()) == made
    assert ("draft" in json.loads(made.text())) == ("lending" in json.loads(made.text())) == (made.draft == DRAFT)


def test_a_change_behind_the_digest_is_seen() -> None:
    text = SMALL.text().replace('"cores": 1', '"cores": 2')
    with pytest.raises(ProfileError, match="changed since it was measured"):
        read_profile(text.encode())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda told: told.update(pontil_profile=2), "no profile of format 1"),
        (lambda told: told["sizes"].pop("blocks"), "has not the fields"),
        (lambda told: told["sizes"].update(more=1), "has not the fields"),
        (lambda told: told["sizes"].update(blocks=1), "those of no worker"),
        (lambda told: told["sizes"].update(seats=1.5), "sizes.seats is none of the values"),
        (lambda told: told["about"].update(model=None), "about.model is none of the values"),
        (lambda told: told["host"].update(worker_turn=-1.0), "host.worker_turn is none"),
        (lambda told: told["host"].update(worker_turn=float("inf")), "host.worker_turn is none"),
        (lambda told: told["times"].update(steps=[]), "times.steps is no list"),
        (lambda told: told["times"].update(pulls=[[1, 2, 3]]), "each of 2 numbers"),
        (lambda told: told["times"].update(pulls=[[1, True]]), "each of 2 numbers"),
        (lambda told: told.update(times=[]), "has not the fields"),
        (lambda told: told["times"].update(prompt_variation=1.5), "steps of a kind vary by more than 1: "),
        (lambda told: told.update(draft={"model": "smaller"}), "no steps of smaller, which guesses"),
        (lambda told: told.update(draft={"model": "x", "guesses": [[1, 0, 1]]}), "no steps of x, which guesses"),
        (
            lambda told: told.update(draft={"model": "x", "runs": [[1, 1]]}),
            '"draft" has not the fields of this version',
        ),
        (lambda told: told.update(disk={"read": "fast"}), "disk.read is none of the values"),
        (lambda told: told.update(lending={"factors": [[1, 0, 0]]}), "factors of lent cores are not above 0"),
        (lambda told: told.update(lending={"factors": [[1, 0, 1.5]]}), "factors of lent cores are not above 0"),
        (lambda told: told.update(lending={"factors": [[1, 0.5]]}), "lending.factors is no list of measured points"),
        (lambda told: told.update(company={"prompt_host": 1e308}), "beside others take more than 1000 times as long"),
    ],
)
def test_what_no_profile_has_is_one_sentence(change: Callable[[dict[str, Any]], object], reason: str) -> None:
    with pytest.raises(ProfileError, match=reason) as raised:
        read_profile(signed(change))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"{}", b"[" * 100_000, b"1e999", b" " * (5 << 20)])
def test_no_json_of_ours_is_one_sentence(data: bytes) -> None:
    with pytest.raises(ProfileError):
        read_profile(data)


FIELDS = [(part, name) for part in ("about", "sizes", "times", "host") for name in json.loads(SMALL.text())[part]]


@given(st.sampled_from(FIELDS), JSON)
def test_any_value_of_a_field_is_read_or_refused(field: tuple[str, str], value: Any) -> None:
    part, name = field
    try:
        read_profile(signed(lambda told: told[part].update({name: value})))
    except ProfileError as error:
        assert "\n" not in str(error)
