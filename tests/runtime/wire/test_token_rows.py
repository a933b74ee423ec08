# SPDX-License-Identifier: Apache-2.0
"""Tokens of many sequences in one message: nothing is lost, and frames with optional fields are sent by themselves."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.errors import MalformedFrame
from pontil.runtime.wire.codec import frame_of, joined, rows_of
from pontil.runtime.wire.messages import Step, Tokens

PLAIN = Tokens("w", "p", "r", 1, 7, [0], 2, prompt_tokens=3, cached_tokens=0)
counts = st.integers(0, 2**53)
plain = st.builds(
    Tokens, st.just("w"), st.sampled_from(["p", "q"]), st.text(max_size=4), counts, counts,
    st.lists(counts, min_size=1, max_size=3), counts, prompt_tokens=counts, cached_tokens=counts,
    top_logits=st.none() | st.binary(min_size=1, max_size=9),
)  # fmt: skip
OTHER: dict[str, Any] = {
    "finish_reason": "stop",
    "stop_match": "x",
    "generated_tokens": 0,
    "prompt_tokens": None,
    "cached_tokens": None,
    "logprobs": [[[0, 0.0, 1]]],
    "prompt_logprobs": [],
    "queue_seconds": 0.0,
    "computed_tokens": 0,
    "draft_tokens": 1,
    "accepted_draft_tokens": 0,
    "first_cached_tokens": 0,
    "pulled_bytes": 0,
    "pulled_seconds": 0.0,
    "pull_error": "late",
    "frames": [[7, 0]],
    "kept_blocks": [3, 0],
}
IN_A_ROW = {"sender", "receiver", "request_id", "attempt", "index", "ids", "choice", "top_logits"}


def parted(step: Step) -> list[Tokens]:
    return [frame_of(step, *row) for row in rows_of(step)]


@given(st.lists(plain, max_size=6))
def test_what_was_joined_comes_back(frames: list[Tokens]) -> None:
    messages = list(joined(frames, with_logits=True))
    back = [frame for one in messages for frame in (parted(one) if isinstance(one, Step) else [one])]
    for receiver in ("p", "q"):
        assert [one for one in back if one.receiver == receiver] == [one for one in frames if one.receiver == receiver]
    assert len(messages) == len({frame.receiver for frame in frames})


@pytest.mark.parametrize("name", sorted(OTHER))
def test_what_says_more_goes_by_itself(name: str) -> None:
    """A row cannot hold the optional fields: they must not be dropped on the way."""
    more = replace(PLAIN, request_id="more", **{name: OTHER[name]})
    if name in ("stop_match", "accepted_draft_tokens", "kept_blocks"):
        more = replace(more, finish_reason="stop", draft_tokens=1)
    if name in ("pulled_seconds", "pull_error"):
        more = replace(more, pulled_bytes=0)
    steps = joined([PLAIN, PLAIN], with_logits=True)
    assert list(joined([PLAIN, more, PLAIN], with_logits=True)) == [more, *steps]


def test_logits_go_by_themselves_to_a_proxy_that_reads_none_in_a_step() -> None:
    stated = replace(PLAIN, top_logits=b"\0" * 8)
    first, step = joined([PLAIN, stated, PLAIN], with_logits=False)
    assert first == stated and isinstance(step, Step) and step.top_logits is None
    (step,) = joined([PLAIN, stated, PLAIN], with_logits=True)
    assert isinstance(step, Step) and step.top_logits == [b"", b"\0" * 8, b""]


def test_every_field_is_known_here() -> None:
    """A field that is added to Tokens must be in a row, or keep its frame out of a Step."""
    assert {field.name for field in fields(Tokens)} == IN_A_ROW | set(OTHER)


@pytest.mark.parametrize("rows", [[], [[1, 2, 3, 4, 5]], [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]], [[]]])
def test_rows_that_cannot_be_are_refused(rows: list[list[int]]) -> None:
    with pytest.raises(MalformedFrame):
        parted(Step("w", "p", ["r"], rows))


@pytest.mark.parametrize("top_logits", [[], [b"", b""]])
def test_logits_that_are_not_those_of_the_rows_are_refused(top_logits: list[bytes]) -> None:
    with pytest.raises(MalformedFrame):
        parted(Step("w", "p", ["r"], [[1, 2, 3, 4, 5, 6]], top_logits))


def test_rows_without_logits_cost_no_bytes() -> None:
    (step,) = joined([PLAIN, PLAIN], with_logits=True)
    assert isinstance(step, Step) and step.top_logits is None
