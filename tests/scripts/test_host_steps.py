# SPDX-License-Identifier: Apache-2.0
"""The bench of the host's part of a step runs the real engine: every row gets a token in every step."""

import host_steps
import pytest


@pytest.mark.parametrize("kind", ["device", "cpu"])
def test_each_step_of_the_bench_makes_a_token_for_each_row(kind: str) -> None:
    engine = host_steps.open_engine(kind, 3, 60)
    host_steps.begin(engine, kind, 3, context=20, answer=30)
    assert [[one.count for one in engine.step()] for _ in range(4)] == [[1, 1, 1]] * 4
    assert (engine.in_flight is not None) == (kind == "device"), "only a device computes ahead of the host"


def test_calls_are_counted_by_row() -> None:
    engine = host_steps.open_engine("cpu", 2, 60)
    host_steps.begin(engine, "cpu", 2, context=20, answer=30)
    calls = host_steps.counted_calls(engine, 4)
    assert calls == host_steps.counted_calls(engine, 4) and calls > 2


@pytest.mark.parametrize("kind", ["device", "cpu"])
def test_the_bench_tells_times_and_calls(kind: str) -> None:
    found = host_steps.measure_host(kind, 2, context=20, rounds=3)
    assert (found["runner"], found["rows"]) == (kind, 2)
    assert 0 < found["cpu_ms"][0] <= found["cpu_ms"][1] and 0 < found["ms"][0] <= found["ms"][1]
    assert found["calls_a_row"] > 1
