# SPDX-License-Identifier: Apache-2.0
"""The part that took most of a request's time."""

from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.timeline.recorder import HIDING, largest_part
from pontil.runtime.timeline.timeline import LargestPart, TimeSpan

PAIR = [
    TimeSpan("receive", "proxy", 0.0, 0.5),
    TimeSpan("attempt", "proxy", 0.5, 9.0, 0),
    TimeSpan("compute", "prefill:0", 1.0, 2.0, 0),
    TimeSpan("compute", "prefill:0", 2.0, 3.0, 0),
    TimeSpan("pull", "decode:0", 2.0, 2.5, 0),
    TimeSpan("pull", "decode:0", 3.0, 6.5, 0),
    TimeSpan("handoff", "prefill:0", 3.0, 7.0, 0),
    TimeSpan("decode", "decode:0", 7.0, 9.0, 0),
]


def test_hidden_time_counts_for_what_hides_it() -> None:
    # The pull is 3.5 s of exposed time, the handoff the 0.5 s after it; 2 s of computing hide the pull before.
    assert largest_part(PAIR, 9.0) == LargestPart("pull of decode:0", 3.5)
    assert largest_part([one for one in PAIR if one.name != "pull"], 9.0) == LargestPart("handoff of prefill:0", 4.0)


def test_without_reports_of_workers_the_attempt_is_named() -> None:
    assert largest_part([one for one in PAIR if one.process == "proxy"], 9.0) == LargestPart("attempt", 8.5)
    assert largest_part([], 9.0) is None and largest_part([TimeSpan("queue", "proxy", 1.0, 1.0)], 9.0) is None


def test_what_goes_on_counts_until_now_and_no_further() -> None:
    assert largest_part([TimeSpan("queue", "proxy", 1.0, None)], 5.0) == LargestPart("queue", 4.0)
    assert largest_part([TimeSpan("write", "proxy", 1.0, 60.0)], 5.0) == LargestPart("write", 4.0)


times = st.floats(0, 20)
spans = st.builds(
    lambda name, process, one, other: TimeSpan(name, process, min(one, other), max(one, other)),
    st.sampled_from([*HIDING, "unknown"]), st.sampled_from(["proxy", "decode:0"]), times, times,
)  # fmt: skip


@given(st.lists(spans, max_size=12), times)
def test_it_is_never_longer_than_the_request_nor_than_its_spans(some: list[TimeSpan], seconds: float) -> None:
    largest = largest_part(some, seconds)
    if largest is None:
        assert all(min(seconds, one.end or 0.0) <= one.begin for one in some)
        return
    name, _, process = largest.name.partition(" of ")
    own = [one for one in some if (one.name, one.process) == (name, process or "proxy")]
    assert 0 < largest.seconds <= seconds + 1e-9
    assert largest.seconds <= sum((one.end or 0.0) - one.begin for one in own) + 1e-9
