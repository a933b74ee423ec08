# SPDX-License-Identifier: Apache-2.0
"""The series by which other routers choose a server, under the names that vLLM has for them: llm-d's endpoint picker
and others scrape these."""

from collections.abc import Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

from pontil.runtime.proxy.fleet.registered_worker import RegisteredWorker
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.requests.request import Request


def picker_metrics(requests: Mapping[str, Request], registry: Registry, model: str) -> Iterator[Metric]:
    """Yield the series. A request waits until a worker has scheduled it, as in vLLM."""
    workers = list(registry.generating.workers)
    asked = [request for request in list(requests.values()) if request.is_clients]
    queued = sum(not request.attempts.phases for request in asked)
    waiting = min(len(asked), queued + sum(map(own_waiting, workers)))
    blocks, free = sum(one.capacity for one in workers), sum(one.free_blocks for one in workers)
    used = 1.0 - min(free, blocks) / blocks if blocks else 0.0
    gauges = (
        ("num_requests_running", "Requests that a worker has scheduled", len(asked) - waiting),
        ("num_requests_waiting", "Requests that no worker has scheduled yet", waiting),
        ("kv_cache_usage_perc", "Part of the KV blocks that is in use; 1 is all of them", used),
        ("gpu_cache_usage_perc", "The older name of vllm:kv_cache_usage_perc", used),
    )
    for name, says, value in gauges:
        family = GaugeMetricFamily(f"vllm:{name}", says, labels=["model_name"])
        family.add_metric([model], value)
        yield family
    if workers:
        about = {"block_size": str(workers[0].hello.block_size), "num_gpu_blocks": str(blocks)}
        yield InfoMetricFamily("vllm:cache_config", "Size of the KV cache, in blocks", value=about)


def own_waiting(worker: RegisteredWorker) -> int:
    """Return how many of the sequences that wait in a worker are this proxy's, if other proxies use it too: as many as
    it has of the worker's requests."""
    whole = worker.in_flight + worker.others.in_flight
    return -(-worker.waiting * worker.in_flight // whole) if worker.others.in_flight else worker.waiting
