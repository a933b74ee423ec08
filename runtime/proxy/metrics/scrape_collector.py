# SPDX-License-Identifier: Apache-2.0
"""Series that are computed from the proxy's state at each scrape, and not counted as they happen."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from pontil.runtime.proxy.fleet.registered_worker import RegisteredWorker
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.metrics.class_metrics import class_gauges
from pontil.runtime.proxy.metrics.heartbeats import heartbeat_gauges
from pontil.runtime.proxy.requests.prompt_reuse import PLACES, PromptReuse
from pontil.runtime.proxy.requests.request import Request


def picker_metrics(requests: Mapping[str, Request], registry: Registry, model: str) -> Iterator[Metric]:
    """Yield the series by which other routers choose a server, under the names that vLLM has for them: llm-d's endpoint
    picker and others scrape these. `model` is the name of the first model; requests that are no further one's are
    counted with it."""
    owned: dict[str | None, list[Request]] = {group.key: [] for group in registry.answering}
    for request in list(requests.values()):
        if request.is_clients:
            owned.get(request.work.group, owned[None]).append(request)
    figures = {key or model: picker_figures(own, list(registry.of(key).workers)) for key, own in owned.items()}
    for number, (name, says) in enumerate(PICKED):
        family = GaugeMetricFamily(f"vllm:{name}", says, labels=["model_name"])
        for served, values in figures.items():
            family.add_metric([served], values[number])
        yield family
    workers = list(registry.generating.workers)
    if workers:
        blocks = sum(worker.capacity for worker in workers)
        about = {"block_size": str(workers[0].hello.block_size), "num_gpu_blocks": str(blocks)}
        yield InfoMetricFamily("vllm:cache_config", "Size of the KV cache, in blocks", value=about)


PICKED = (
    ("num_requests_running", "Requests that a worker has scheduled"),
    ("num_requests_waiting", "Requests that no worker has scheduled yet"),
    ("kv_cache_usage_perc", "Part of the KV blocks that is in use; 1 is all of them"),
    ("gpu_cache_usage_perc", "The older name of vllm:kv_cache_usage_perc"),
)


def picker_figures(requests: Sequence[Request], workers: Sequence[RegisteredWorker]) -> tuple[float, ...]:
    """Return the values of these series for the requests and workers of a model. A request waits until a worker has
    scheduled it, as in vLLM."""
    queued_requests = sum(not request.attempts.phases for request in requests)
    waiting = min(len(requests), queued_requests + sum(map(own_waiting, workers)))
    kv_usage = used(sum(worker.capacity for worker in workers), sum(worker.free_blocks for worker in workers))
    return len(requests) - waiting, waiting, kv_usage, kv_usage


def own_waiting(worker: RegisteredWorker) -> int:
    """Return how many of the sequences that wait in a worker are this proxy's, if other proxies use it too: as many as
    it has of the worker's requests."""
    whole = worker.in_flight + worker.others.in_flight
    return -(-worker.waiting * worker.in_flight // whole) if worker.others.in_flight else worker.waiting


class ScrapeCollector(Collector):
    """The collector of series on requests in flight, the workers and the supervisor's table. `delivered` returns the
    number of delivered tokens; `about` describes this server. Every collection is copied before it is read, since it
    may change meanwhile."""

    def __init__(
        self,
        requests: Mapping[str, Request],
        registry: Registry,
        delivered: Callable[[], int],
        about: Mapping[str, str],
    ) -> None:
        self.requests, self.registry, self.delivered, self.about = requests, registry, delivered, dict(about)

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("pontil", "What this server is", value=self.about)
        yield CounterMetricFamily("pontil_generation_tokens", "Tokens generated and delivered", value=self.delivered())
        yield from self.of_requests()
        yield from self.of_workers()
        yield from picker_metrics(self.requests, self.registry, self.about.get("model_name", ""))
        restarts = CounterMetricFamily(
            "pontil_process_restarts", "How often the supervisor started a process again", labels=["process"]
        )
        for row in self.registry.processes.rows:
            restarts.add_metric([row.name], row.about.get("restarts", 0))
        yield restarts
        yield self.of_memory()

    def of_memory(self) -> Metric:
        """Return the memory of the supervisor's processes, for a worker of several ranks that of each."""
        memory = GaugeMetricFamily(
            "pontil_process_resident_memory_bytes",
            "Resident memory of a process, or of one rank of a worker",
            labels=["process", "rank"],
        )
        for row in self.registry.processes.rows:
            for rank in row.about.get("ranks", [row.about]):
                if "rss_bytes" in rank:
                    memory.add_metric([row.name, str(rank.get("rank", 0))], rank["rss_bytes"])
        return memory

    def of_requests(self) -> Iterator[Metric]:
        """Yield the series on requests in flight, without self-tests and further stages of a run."""
        begun_flags = [request.times.begun for request in list(self.requests.values()) if request.is_clients]
        running, waiting = sum(begun_flags), len(begun_flags) - sum(begun_flags)
        yield GaugeMetricFamily(
            "pontil_num_requests_running", "Requests in flight that have their first token", value=running
        )
        yield GaugeMetricFamily(
            "pontil_num_requests_waiting", "Requests in flight that wait for their first token", value=waiting
        )
        yield from class_gauges(list(self.requests.values()))

    def of_workers(self) -> Iterator[Metric]:
        """Yield the series on workers, from their last heartbeats. A worker that is gone has no series."""
        workers = list(self.registry.workers.values())
        caches = [worker for worker in workers if worker.has_cache]
        blocks, free = sum(cache.capacity for cache in caches), sum(cache.free_blocks for cache in caches)
        yield GaugeMetricFamily(
            "pontil_kv_cache_usage_perc",
            "Part of all workers' KV blocks that is in use; 1 is all of them",
            value=used(blocks, free),
        )
        gauges: dict[str, tuple[str, Callable[[Any], float]]] = {
            "worker_kv_cache_usage_perc": (
                "Part of a worker's KV blocks that is in use; 1 is all of them",
                lambda worker: used(worker.capacity, worker.free_blocks),
            ),
            "worker_sequences_running": ("Sequences that a worker computes, or pulls", lambda worker: worker.running),
            "worker_sequences_waiting": ("Sequences that wait in a worker", lambda worker: worker.waiting),
            "worker_prefix_entries": (
                "Blocks that a worker has told to be in its prefix cache",
                lambda worker: len(worker.prefixes),
            ),
        }
        for name, (says, value) in gauges.items():
            family = GaugeMetricFamily(f"pontil_{name}", says, labels=["worker"])
            for worker in workers:
                family.add_metric([worker.hello.name], value(worker))
            yield family
        yield from heartbeat_gauges((worker.hello.name, worker.gauges) for worker in workers)


class ReuseCollector(Collector):
    """The collector of the series on how prompts differ from those before them."""

    def __init__(self, reuse: PromptReuse) -> None:
        self.reuse = reuse

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "pontil_prompt_differences",
            "Prompts, by the part in which they first differ from the earlier one that is most like them",
            labels=["part"],
        )
        for part in PLACES:
            family.add_metric([part], self.reuse.places[part])
        yield family


def used(blocks: int, free: int) -> float:
    return 1.0 - min(free, blocks) / blocks if blocks else 0.0
