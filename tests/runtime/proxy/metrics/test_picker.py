# SPDX-License-Identifier: Apache-2.0
"""A proxy's series on its own requests, where other proxies use the same worker."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.metrics.scrape_collector import picker_metrics
from pontil.runtime.proxy.requests.attempts import Attempts
from pontil.runtime.proxy.requests.generation import Generation
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.wire.messages import SCHEMA, Heartbeat, Hello

HELLO = Hello("w", SCHEMA, "decode:0", "decode", 1, "cpu", "m", "f", "k", "ipc:///p", 16, 9, 4, 512, 256)


@dataclass
class Dispatched:
    is_clients: bool = True
    work: Any = field(default_factory=lambda: Generation([], SamplingParams(max_tokens=1, seed=0)))
    attempts: Attempts = field(default_factory=lambda: Attempts(0.0, phases={"w": "whole"}))


@pytest.mark.parametrize(
    ("own", "others", "waiting"), [(2, 0, 2), (8, 0, 4), (2, 6, 1), (6, 2, 3), (1, 6, 1), (0, 3, 0)]
)
def test_each_proxy_counts_its_part_of_what_waits_in_a_worker(own: int, others: int, waiting: int) -> None:
    registry = Registry(5.0)
    assert registry.hello(HELLO, 0.0) is None
    stated = {"proxies": 1, "in_flight": others} if others else None
    registry.heartbeat(Heartbeat("w", "p", 4, 4, 5, 1, {}, None, stated))
    registry.workers["w"].in_flight = own
    requests: Any = {str(number): Dispatched() for number in range(own)}
    shown = {one.name: one.samples[0].value for one in picker_metrics(requests, registry, "m") if one.samples}
    assert (shown["vllm:num_requests_waiting"], shown["vllm:num_requests_running"]) == (waiting, own - waiting)
    assert registry.topology()[0]["load"] == {
        "in_flight": own + others, "running": 4, "waiting": 4, "free_blocks": 5,
        "total_blocks": 8, "seats": 4,
    }  # fmt: skip
