# SPDX-License-Identifier: Apache-2.0
"""A trace is exported once, when all of it is known, and only if it is sampled."""

from collections.abc import Callable

import pytest
from traces import PARENT, complete, timeline

from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.timeline.received import ReceivedRequest
from pontil.runtime.tracing.tracer import MOST_AWAITED, ServedTrace, Tracer

PARAMS = SamplingParams(7, 1)


class KeptTraces(list[ServedTrace]):
    """An export that keeps the traces."""

    put = list.append

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass


def tracer(rate: float = 1.0) -> tuple[Tracer, KeptTraces]:
    exported = KeptTraces()
    return Tracer(rate, exported), exported


def received() -> ReceivedRequest:
    return ReceivedRequest("/v1/completions")


def test_the_clients_trace_goes_on() -> None:
    made, exported = tracer(0.0)
    trace = complete(made, parents=(PARENT,), states=("a=1",))
    assert exported == [trace] and trace.parent is not None and trace.parent.traceparent == PARENT
    assert trace.context.trace_id == trace.parent.trace_id and trace.context.state == "a=1"
    assert trace.context.span_id != trace.parent.span_id and made.awaited == {}


@pytest.mark.parametrize("flags", ["00", "02"])
def test_a_client_that_samples_nothing_is_not_overruled(flags: str) -> None:
    made, exported = tracer(1.0)
    trace = complete(made, parents=(PARENT[:-2] + flags,))
    assert exported == [] and made.awaited == {} and trace.context.traceparent.endswith(flags)


def test_without_a_parent_the_rate_decides() -> None:
    assert complete(tracer(1.0)[0]).context.is_sampled and not complete(tracer(0.0)[0]).context.is_sampled
    assert complete(tracer(1.0)[0], parents=("nonsense" * 1000,)).parent is None


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_it_is_complete_in_whatever_order_its_parts_come(order: tuple[int, ...]) -> None:
    made, exported = tracer()
    http = received()
    trace = made.begin(http, "r", "POST")
    for name in ("r-1", "r-2"):
        assert made.join(name, PARAMS, http) == trace.context
    made.take(timeline("r-2"))
    made.take(timeline("nobody's"))
    steps: list[Callable[[], None]] = [
        lambda: made.responded(trace, 200), lambda: made.handled(trace), lambda: made.take(timeline("r-1")),
    ]  # fmt: skip
    for place in order:
        assert exported == []
        steps[place]()
    assert exported == [trace] and len(trace.requests) == 2


@pytest.mark.parametrize("rate", [1.0, 0.0])
def test_it_is_exported_once_and_let_go_by_its_request(rate: float) -> None:
    """A handler that asked no model has ended before its response is named. What is exported must not be held by the
    timelines that are kept."""
    made, exported = tracer(rate)
    http = received()
    trace = made.begin(http, "r", "POST")
    made.handled(trace, 200)
    made.responded(trace, 200)
    assert exported == [trace] * int(rate) and http.trace is None


def test_a_client_that_left_has_a_status_too() -> None:
    made, exported = tracer()
    made.handled(made.begin(received(), "r", "POST"), 499)
    assert [one.status for one in exported] == [499]


def test_what_belongs_to_no_http_request_has_no_trace() -> None:
    made, _ = tracer()
    assert made.join("self-test-1", PARAMS, None) is None and made.join("r-1", PARAMS, received()) is None
    assert made.awaited == {}


def test_a_request_that_came_back_has_a_part_in_both_traces() -> None:
    """A stream may go on at another proxy, and here again before the first timeline is told."""
    made, exported = tracer()
    traces = []
    for _ in range(2):
        http = received()
        trace = made.begin(http, "r", "POST")
        made.join("r-1", PARAMS, http)
        made.handled(trace, 200)
        traces.append(trace)
    parts = [timeline("r-1", state="cancelled"), timeline("r-1")]
    for part in parts:
        made.take(part)
    assert exported == traces and made.awaited == {}
    assert [[one.timeline for one in trace.requests] for trace in exported] == [[part] for part in parts]


def test_timelines_that_never_come_are_bounded() -> None:
    made, _ = tracer()
    http = received()
    made.begin(http, "r", "POST")
    for number in range(MOST_AWAITED + 5):
        made.join(f"r-{number}", PARAMS, http)
    assert len(made.awaited) == MOST_AWAITED
