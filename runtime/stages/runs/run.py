# SPDX-License-Identifier: Apache-2.0
"""One client request through the stages of a model: the requests of its stages, and the edges that join them."""

import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pontil.runtime.accounting.counts import DECODE, PREFILL, Usage
from pontil.runtime.foundation.staged_model import group_of
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.stages.graph.catalog import GraphModel, GraphNode
from pontil.runtime.stages.graph.part import GraphPart, Producer
from pontil.runtime.stages.runs.stage_progress import StageProgress
from pontil.runtime.stages.runs.stage_task import StageTask, inputs_of, outputs_of, streams
from pontil.runtime.stages.runs.stream import AudioMailbox

SECRET_BYTES = 32
# Audio is at most so long for each token, or byte of a text, that it can be made of, and so long beside: what a worker
# sends beyond is no answer. A slow reader makes the proxy hold that much.
SECONDS_PER_TOKEN = 1.0
SECONDS_BESIDE = 60.0
BYTES_PER_SAMPLE = 2


def later_stages(graph: GraphModel) -> tuple[GraphNode, ...]:
    """Return the stages that a run needs after its first, each after those that feed it."""
    connections = streams(graph)
    order, last = list[str](), {graph.first}
    for _ in graph.nodes:
        last = {one.target for one in connections if one.source in last}
        order = [name for name in order if name not in last] + sorted(last)
    return tuple(graph.node(name) for name in order)


def producer_of(edge: str) -> str:
    """Return the stage that a stream comes from."""
    return edge.split("/")[0]


def walks_of(task: StageTask, phase: str) -> tuple[str, ...]:
    """Return the walks that a worker computes in this phase, empty for all."""
    first = task.node.prefill_walks
    if phase == PREFILL:
        return first
    rest = [walk.name for walk in task.graph.graph.partition(task.node.name).walks if walk.name not in first]
    return tuple(rest) if phase == DECODE else ()


class Run:
    """The requests of a run by stage: the client's own is `first`, the `later` ones are opened when it is dispatched.
    `replays` has the last request of each stage that computes it again, `replayed` how many there were. `served` are
    the workers of all attempts: items are kept there until the run is `over`. `refusals` counts how often a consumer
    was refused, by stream and producer. `workers` are those that are registered. `progress` is each stage's, as its
    reports tell."""

    def __init__(
        self, graph: GraphModel, first: Request, task: StageTask, later: Iterable[GraphNode],
        options: Mapping[str, Any], workers: Mapping[str, object],
    ) -> None:  # fmt: skip
        self.graph, self.first, self.later, self.options, self.workers = graph, first, tuple(later), options, workers
        self.id, self.secret = first.id, secrets.token_hex(SECRET_BYTES)
        self.requests = {task.node.name: first}
        self.replays: dict[str, Request] = {}
        self.replayed: dict[str, int] = {}
        self.refusals: dict[tuple[str, str], int] = {}
        self.served: set[str] = set()
        self.progress = {name: StageProgress() for name in graph.node_names}
        self.over = False
        tokens = (
            len(task.data or b"")
            + first.params.max_tokens
            + sum(node.max_tokens for node in self.later if node.generates)
        )
        seconds = SECONDS_BESIDE + SECONDS_PER_TOKEN * tokens
        self.audio = AudioMailbox(int(seconds * graph.sample_rate) * BYTES_PER_SAMPLE)

    @property
    def everything(self) -> Iterator[Request]:
        """Every request that was opened, replays included."""
        yield from self.requests.values()
        yield from self.replays.values()

    @property
    def open(self) -> list[Request]:
        return [request for request in self.everything if request.mailbox.end is None]

    @property
    def unfinished(self) -> int:
        """The number of stages that have not ended, those included that were not opened yet."""
        return 1 + len(self.later) - sum(request.mailbox.end is not None for request in self.requests.values())

    @property
    def is_complete(self) -> bool:
        """True once every stage has ended."""
        opened = len(self.requests) == 1 + len(self.later)
        return opened and all(request.complete for request in self.requests.values())

    def latest(self, stage: str) -> Request:
        """Return the request whose current attempt makes, or made, all items of a stage."""
        return self.replays.get(stage) or self.requests[stage]

    @property
    def waits_since(self) -> float:
        """The time of the last progress of any stage. A stage may wait for another, whose items it needs, or that has
        no room for more of its own: what is bounded is how long none of them advances."""
        return max(request.waits_since for request in self.everything)

    @property
    def groups(self) -> list[str | None]:
        """The keys of the workers of the later stages."""
        return [group_of(self.graph, node.name) for node in self.later]

    @property
    def usage(self) -> Usage:
        return sum((request.billed for request in self.requests.values()), Usage(0, 0, 0))

    def part(self, task: StageTask, worker: str, phase: str) -> GraphPart:
        """Return the part of a worker that is about to do a `phase` of a stage."""
        self.served.add(worker)
        name = task.node.name
        has_consumers = bool(self.later) and name != self.graph.recognizer
        return GraphPart(
            self.id, name, self.secret, outputs_of(self.graph, name) if has_consumers else (),
            {edge: self.producers(edge) for edge in inputs_of(self.graph, name)} if task.data is None else {},
            walks_of(task, phase), task.positions, task.answer or (), self.options,
        )  # fmt: skip

    def producers(self, edge: str) -> tuple[Producer, ...]:
        """Return the workers that make, or keep, the items of a stream. One that is gone has no endpoint: a consumer
        that needs its items says so at once. One that was replaced is not named then."""
        stage = producer_of(edge)
        latest, found = self.latest(stage), dict[str, str]()
        for request in (self.requests[stage], latest):
            for worker in () if request.route is None else request.route.workers:
                name = worker.incarnation
                if name in request.phases and (name in self.workers or request is latest):
                    found[name] = worker.peer_endpoint if name in self.workers else ""
        return tuple(found.items())

    def consumers(self, stage: str) -> Iterator[tuple[str, Request]]:
        """Yield each edge out of a stage with a request, at work now, that takes its items."""
        for edge in outputs_of(self.graph, stage):
            for request in self.open:
                if (
                    request.stage is not None
                    and request.phases
                    and edge in inputs_of(self.graph, request.stage.node.name)
                ):
                    yield edge, request
