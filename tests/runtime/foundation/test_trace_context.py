# SPDX-License-Identifier: Apache-2.0
"""W3C trace context: what is read from headers, what is refused, and what is passed on."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pontil.runtime.foundation.trace_context import (
    MOST_STATE,
    TraceContext,
    is_within,
    new_trace,
    read_context,
    read_state,
    trace_id_of,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{SPAN}-01"
HEX = st.sampled_from("0123456789abcdef")


def digits(count: int) -> st.SearchStrategy[str]:
    return st.text(HEX, min_size=count, max_size=count).filter(lambda text: set(text) != {"0"})


@pytest.mark.parametrize(
    ("header", "flags"),
    [
        (VALID, 1),
        (f"00-{TRACE}-{SPAN}-00", 0),
        (f"00-{TRACE}-{SPAN}-ff", 255),
        (f"cc-{TRACE}-{SPAN}-01", 1),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", 1),
    ],
)
def test_a_valid_header_names_its_trace(header: str, flags: int) -> None:
    assert read_context([header]) == TraceContext(TRACE, SPAN, flags)


@pytest.mark.parametrize(
    "header",
    [
        "",
        VALID.upper(),
        VALID[:-1],
        VALID + "0",
        VALID + "-00",
        VALID + "\n",
        " " + VALID,
        f"ff-{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01.later",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00_{TRACE}_{SPAN}_01",
        f"00-{TRACE[:-1]}g-{SPAN}-01",
        f"00-{TRACE[:-1]}٣-{SPAN}-01",
        f"{VALID}," + VALID,
        "0" * 100_000,
    ],
)
def test_a_malformed_header_is_none(header: str) -> None:
    assert read_context([header]) is None


def test_two_headers_are_none() -> None:
    assert read_context([VALID, VALID]) is None
    assert read_context([]) is None


@given(st.text(), st.lists(st.text(), max_size=4))
@example("\udcff" * 40, ["\x00"])
def test_no_header_is_an_error(parent: str, states: list[str]) -> None:
    assert read_context([parent], states) is None
    found = read_context([VALID], states)
    assert found is not None and len(found.state) <= MOST_STATE


@given(digits(32), digits(16), st.integers(0, 3))
def test_what_is_passed_on_reads_the_same(trace: str, span: str, flags: int) -> None:
    context = TraceContext(trace, span, flags)
    assert read_context([context.traceparent]) == context
    assert trace_id_of(context.traceparent) == trace


def test_unknown_flags_are_not_passed_on() -> None:
    found = read_context([f"00-{TRACE}-{SPAN}-fd"])
    assert found is not None and found.is_sampled and found.traceparent == VALID


def test_a_child_is_another_span_of_the_same_trace() -> None:
    parent = TraceContext(TRACE, SPAN, 1, "a=1")
    child = parent.child()
    assert (child.trace_id, child.flags, child.state) == (TRACE, 1, "a=1")
    assert re.fullmatch("[0-9a-f]{16}", child.span_id) and child.span_id != SPAN


@pytest.mark.parametrize(
    ("states", "passed_on"),
    [
        ([], ""),
        (["rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"], "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
        (["a=1", "b=2"], "a=1,b=2"),
        ([" a=1 , ,\tb=2"], "a=1,b=2"),
        (["1t@sys=x y"], "1t@sys=x y"),
        (["a=1,a=2"], ""),
        (["A=1"], ""),
        (["a"], ""),
        (["a=b=c"], ""),
        (["a=é"], ""),
        ([",".join(f"k{number}=v" for number in range(33))], ""),
        (["a=" + "x" * 256], "a=" + "x" * 256),
        (["a=" + "x" * 257], ""),
        (["a=1," + "x" * 8192], ""),
    ],
)
def test_a_tracestate_is_passed_on_or_dropped_whole(states: list[str], passed_on: str) -> None:
    assert read_state(states) == passed_on


def test_a_long_tracestate_loses_long_members_first_and_then_the_last() -> None:
    long, short = "long=" + "x" * 200, [f"k{number}=" + "v" * 100 for number in range(4)]
    assert read_state([",".join([long, *short])]) == ",".join(short)
    more = [f"k{number}=" + "v" * 100 for number in range(8)]
    assert read_state([",".join(more)]) == ",".join(more[:4])


def test_a_share_of_all_traces_is_sampled() -> None:
    assert new_trace(1.0).is_sampled and not new_trace(0.0).is_sampled
    found = sum(new_trace(0.5).is_sampled for _ in range(1000))
    assert 350 < found < 650
    assert is_within("0" * 16 + "7" + "f" * 15, 0.5) and not is_within("0" * 16 + "8" + "0" * 15, 0.5)
