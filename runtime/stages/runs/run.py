# SPDX-License-Identifier: Apache-2.0
"""One client request through the stages of a model: the work of each stage, and the run that joins their requests."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pontil.runtime.accounting.counts import DECODE, PREFILL, Usage
from pontil.runtime.foundation.staged_model import group_of
from pontil.runtime.proxy.requests.answer import MAX_TOKEN_ID, BrokenAnswer
from pontil.runtime.proxy.requests.generation import Generation, PromptWork, submits
from pontil.runtime.proxy.requests.request import Request, Work, WorkPart
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.stages.graph.catalog import GraphModel, GraphNode, edge_name
from pontil.runtime.stages.graph.medium import contents_of, options_of, stated_media
from pontil.runtime.stages.graph.part import GraphPart, Producer
from pontil.runtime.stages.runs.audio_mailbox import AudioMailbox
from pontil.runtime.stages.runs.stage_progress import StageProgress
from pontil.runtime.wire.messages import NodeOutput, NodeTask, Submit, Tokens

SECRET_BYTES = 32
# Audio is at most so long for each token, or byte of a text, that it can be made of, and so long beside: what a worker
# sends beyond is no answer. A slow reader makes the proxy hold that much.
SECONDS_PER_TOKEN = 1.0
SECONDS_BESIDE = 60.0
BYTES_PER_SAMPLE = 2
AUDIO, TEXT = "audio", "text"
# Most bytes of text that a node may answer with.
MOST_TEXT = 1 << 20
# The most codes of a frame, of which the first is the sampled id.
MOST_CODES = 64
# A node makes no tokens, so its parameters say nothing.
NO_TOKENS = SamplingParams(max_tokens=0, seed=0)


def inputs_of(graph: GraphModel, node: str) -> tuple[str, ...]:
    """Return the names of the streams into a stage."""
    return tuple(edge_name(stream) for stream in graph.graph.incoming(node))


def outputs_of(graph: GraphModel, node: str) -> tuple[str, ...]:
    """Return the names of the streams out of a stage."""
    return tuple(edge_name(stream) for stream in graph.graph.outgoing(node))


def later_stages(graph: GraphModel) -> tuple[GraphNode, ...]:
    """Return the stages that a run needs after its first, each after those that feed it."""
    connections = graph.graph.connections
    order, last = list[str](), {graph.first}
    for _ in graph.nodes:
        last = {connection.target for connection in connections if connection.source in last}
        order = [name for name in order if name not in last] + sorted(last)
    return tuple(graph.node(name) for name in order)


def producer_of(edge: str) -> str:
    """Return the stage that a stream comes from."""
    return edge.split("/")[0]


def consumer_of(edge: str) -> str:
    """Return the stage that a stream leads to."""
    return edge.split("/")[1]


class Run:
    """The requests of a run by stage: the client's own is `first`, the `later` ones are opened when it is dispatched.
    `replays` has the last request of each stage that computes it again, `replayed` how many there were. `served` has
    the workers of all attempts, in this order: items are kept there until the run is `over`. `refusals` counts how
    often a consumer was refused, by stream and producer. `workers` are those that are registered. `progress` is each
    stage's, as its reports tell."""

    def __init__(self, first: Request, work: "StageRun", workers: Mapping[str, object]) -> None:
        self.graph, self.first, self.later, self.options = work.graph, first, work.later, work.options
        self.given = work.given
        # The stages that take part: an edge to any other is as if it were not there.
        self.stages = {work.node.name, *(node.name for node in work.later)}
        self.workers, self.secret = workers, secrets.token_hex(SECRET_BYTES)
        # Another proxy may have begun it, whose run workers may still know.
        begun = first.attempts.number + 1
        self.id = f"{first.id}.{begun}" if begun else first.id
        self.requests = {work.node.name: first}
        self.replays: dict[str, Request] = {}
        self.replayed: dict[str, int] = {}
        self.refusals: dict[tuple[str, str], int] = {}
        self.served: dict[str, None] = {}
        self.progress = {name: StageProgress() for name in self.graph.node_names}
        self.over = False
        tokens = (
            len(work.data or b"")
            + first.params.max_tokens
            + sum(node.max_tokens for node in self.later if node.generates)
        )
        seconds = SECONDS_BESIDE + SECONDS_PER_TOKEN * tokens
        self.audio = AudioMailbox(int(seconds * self.graph.sample_rate) * BYTES_PER_SAMPLE)

    @property
    def everything(self) -> Iterator[Request]:
        """Every request that was opened, replays included."""
        yield from self.requests.values()
        yield from self.replays.values()

    @property
    def open(self) -> list[Request]:
        return [request for request in self.everything if request.mailbox.end is None]

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
        return max(request.times.waits_since for request in self.everything)

    @property
    def groups(self) -> list[str | None]:
        """The keys of the workers of the later stages."""
        return [group_of(self.graph, node.name) for node in self.later]

    @property
    def usage(self) -> Usage:
        return sum((request.billed for request in self.requests.values()), Usage(0, 0, 0))

    def part(self, work: "StageRun", worker: str, phase: str) -> GraphPart:
        """Return the part of a worker that is about to do a `phase` of a stage."""
        self.served[worker] = None
        name = work.node.name
        outputs = [edge for edge in self.outputs(name) if self.is_read(edge)]
        return GraphPart(
            self.id,
            name,
            self.secret,
            tuple(outputs),
            {edge: self.producers(edge) for edge in self.inputs(name)} if work.data is None else {},
            walks_of(work, phase),
            work.positions,
            work.answer or (),
            self.options,
        )

    def inputs(self, stage: str) -> list[str]:
        """Return the streams of this run into a stage."""
        return [edge for edge in inputs_of(self.graph, stage) if producer_of(edge) in self.stages]

    def outputs(self, stage: str) -> list[str]:
        """Return the streams of this run out of a stage."""
        return [edge for edge in outputs_of(self.graph, stage) if consumer_of(edge) in self.stages]

    def is_read(self, edge: str) -> bool:
        """Return whether the stage that takes a stream's items may need any. Nobody would make room for more of them
        once it has ended: a speech may be over before the text is."""
        stage = consumer_of(edge)
        return stage not in self.requests or self.latest(stage).mailbox.end is None

    def producers(self, edge: str) -> tuple[Producer, ...]:
        """Return the workers that make, or keep, the items of a stream. One that is gone has no endpoint: a consumer
        that needs its items says so at once. One that was replaced is not named then. Nobody makes items of a stage
        whose request is still to be opened: its consumers hear of it then."""
        stage = producer_of(edge)
        if stage not in self.requests:
            return ()
        latest, found = self.latest(stage), dict[str, str]()
        for request in (self.requests[stage], latest):
            for worker in () if request.attempts.route is None else request.attempts.route.workers:
                name = worker.incarnation
                if name in request.attempts.phases and (name in self.workers or request is latest):
                    found[name] = worker.peer_endpoint if name in self.workers else ""
        return tuple(found.items())

    def consumers(self, stage: str) -> Iterator[tuple[str, Request]]:
        """Yield each edge out of a stage with a request, at work now, that takes its items."""
        for edge in self.outputs(stage):
            for request in self.open:
                if request.work.stage == consumer_of(edge) and request.attempts.phases:
                    yield edge, request


class RunKeeper(Protocol):
    """The conductor of runs, as their requests know it: it begins a run, and hears of its requests."""

    def begin(self, first: Request, work: "StageRun") -> Run:
        """Take charge of a new run whose first request is this one."""

    def launched(self, request: Request, run: Run) -> None: ...

    def ended(self, request: Request, run: Run) -> None: ...


@dataclass(slots=True, eq=False)
class StageRun(PromptWork):
    """A stage's work: for a `run`, which its `keeper` begins with the first stage's request and the stages whose
    requests come `later`, to some of which bytes are `given`; or (without) a question to a node by itself, of the bytes
    in `data`. No tokens count for a question, as nothing of it is billed.

    `frames` has all codes of each accepted id's frame, for an engine stage whose steps make several. `outputs`
    counts those accepted of a node, `text` is what they say. A stage that is computed again for its items alone has
    the whole `answer` that it makes the items of, and a prompt that goes on with it after `positions` ids.
    """

    graph: GraphModel
    node: GraphNode
    keeper: RunKeeper | None = None
    later: tuple[GraphNode, ...] = ()
    run: Run | None = None
    data: bytes | None = None
    given: Mapping[str, bytes] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    frames: list[list[int]] = field(default_factory=list)
    outputs: int = 0
    text: bytearray = field(default_factory=bytearray)
    answer: tuple[int, ...] | None = None
    positions: int | None = None

    @property
    def group(self) -> str | None:
        return group_of(self.graph, self.node.name)

    @property
    def stage(self) -> str:
        return self.node.name

    @property
    def joint(self) -> Sequence[str | None] | None:
        """The groups of the later stages. Otherwise a stage could wait in its worker for a seat that another run holds,
        which itself waits for the items of a stage that waits for the first run."""
        return None if self.run is None else self.run.groups

    @property
    def part(self) -> WorkPart:
        if self.run is None:
            return WorkPart.QUESTION
        return WorkPart.CLIENTS if self is self.run.first.work else WorkPart.JOINED

    @property
    def is_for_items(self) -> bool:
        """True if it is computed for its items alone."""
        return self.answer is not None

    @property
    def alone(self) -> Sequence[str] | None:
        """Any worker where there is nothing to hand over."""
        return () if self.is_for_items else super(StageRun, self).alone

    @property
    def makes_tokens(self) -> bool:
        return self.node.generates

    @property
    def makes_outputs(self) -> bool:
        return not self.node.generates

    @property
    def has_bare_tokens(self) -> bool:
        return self.node.codes == 1

    @property
    def is_spoken(self) -> bool:
        """True if its rows are made of another stage's items, not of a prompt of its own."""
        return self.node.name != self.graph.first and bool(inputs_of(self.graph, self.node.name))

    def cost(self, expected: float) -> float:
        """Return its cost in a fair share: of what a node is to compute, in bytes. No queue has work of both kinds."""
        return Work.cost(self, expected) if self.data is None else max(1.0, float(len(self.data)))

    def load(self, request: Request) -> int:
        """Return the prompt tokens that keep a worker busy: none where the stage before sets the pace."""
        return 0 if self.part is WorkPart.JOINED else len(self.prompt)

    @property
    def contents(self) -> list[int] | None:
        """Those of the first stage's prompt. Where another stage reads its states, all of it is computed."""
        is_read = self.run is not None and any(edge.endswith("/states") for edge in self.run.outputs(self.node.name))
        return None if self.node.name != self.graph.first or is_read else contents_of(self.prompt, self.options)

    @property
    def stated(self) -> Mapping[str, Any]:
        return stated_media(self.options)

    def as_begun(self, begun: Generation, stated: Mapping[str, Any]) -> "StageRun":
        """Return the run of the prompt that was begun, encoded as it was then."""
        options = {**self.options, **(options_of(stated) if stated else {})}
        return replace(self, prompt=begun.prompt, params=begun.params, options=options, prefix=None, wish=None)

    def awaited(self, begun: bool) -> str:
        piece = "token" if self.makes_tokens else "output"
        return f"{'next' if begun else 'first'} {piece} of {self.node.name}"

    def waits_since(self, request: Request) -> float:
        """Return the time of the last progress of any stage of its run."""
        return request.times.waits_since if self.run is None else self.run.waits_since

    def opened(self, request: Request) -> None:
        super(StageRun, self).opened(request)
        if self.run is None and self.keeper is not None:
            self.run = self.keeper.begin(request, self)

    def launched(self, request: Request) -> None:
        if self.run is not None and self.keeper is not None:
            self.keeper.launched(request, self.run)

    def ended(self, request: Request) -> None:
        super(StageRun, self).ended(request)
        if self.run is not None and self.keeper is not None:
            self.keeper.ended(request, self.run)

    def fits(self, frame: Tokens) -> bool:
        """Return whether the frames of a message can be those of its ids."""
        if self.is_for_items and frame.ids:
            return False
        if self.node.codes == 1:
            return frame.frames is None
        frames = frame.frames or []
        return len(frames) == len(frame.ids) and all(
            1 < len(codes) <= MOST_CODES and codes[0] == token and min(codes) >= 0 and max(codes) < MAX_TOKEN_ID
            for token, codes in zip(frame.ids, frames, strict=True)
        )

    def take_codes(self, frame: Tokens, new: int, delivered: int) -> None:
        """Keep the codes of the delivered ids, of the `new` ones that are a message's last."""
        codes = frame.frames or []
        self.frames += codes[len(codes) - new :][:delivered]

    def messages(
        self, request: Request, sender: str, secret: str | None, deadline: float | None
    ) -> Sequence[Submit | NodeTask]:
        run, attempt, phases = self.run, request.attempts.number, request.attempts.phases
        if not self.node.generates:
            (worker,) = phases
            part = None if run is None else run.part(self, worker, phases[worker]).to_wire()
            return [
                NodeTask(
                    sender, worker, request.id, attempt, self.node.name, self.data, dict(self.options), part,
                    self.outputs, request.share.place(request.ticket.place), deadline, request.ticket.cache_salt,
                )
            ]  # fmt: skip
        assert run is not None, "an engine stage serves a run"
        frames = self.frames if attempt or self.is_for_items else []
        return [
            replace(submit, graph=run.part(self, submit.receiver, submit.phase).to_wire(), frames=frames)
            for submit in self.wished(request, submits(request, sender, secret, deadline))
        ]

    def wrong_output(self, frame: NodeOutput) -> str | None:
        """Return why an output cannot be one of this stage, or None."""
        run, size, name = self.run, len(frame.data), self.node.name
        if frame.index < 0:
            return "a worker sent an output before the first"
        if not size:
            return None
        if run is not None and name == self.graph.audio:
            if frame.kind != AUDIO or size % 2 or frame.sample_rate != self.graph.sample_rate:
                return f"a worker of {name} sent something other than audio of {self.graph.sample_rate} Hz"
            return None if run.audio.has_room(size) else f"a worker of {name} sent more audio than can be"
        if run is not None or frame.kind != TEXT:
            return f"a worker of {name} sent an output that nothing takes"
        return None if len(self.text) + size <= MOST_TEXT else f"a worker of {name} sent too long a text"

    def accept_output(self, request: Request, frame: NodeOutput, now: float) -> None:
        """Take an output of a node, unless it is known. The final one ends the request. Raises BrokenAnswer for a gap,
        and for an output that cannot be one of this stage."""
        if wrong := self.wrong_output(frame):
            raise BrokenAnswer(wrong)
        if frame.index > self.outputs:
            raise BrokenAnswer(f"output {self.outputs} of {self.node.name} was lost")
        request.times.heard(now)
        if frame.index < self.outputs:
            return
        request.times.note_queue(frame.queue_seconds, now)
        self.outputs += 1
        request.times.begun = True
        if self.run is None:
            self.text += frame.data
        elif self.node.name == self.graph.audio:
            self.run.audio.put(frame.data, self.graph.sample_rate, frame.final)
        if frame.final:
            request.end_at_once(frame.sender, "stop")


def walks_of(work: StageRun, phase: str) -> tuple[str, ...]:
    """Return the walks that a worker computes in this phase, empty for all."""
    first = work.node.prefill_walks
    if phase == PREFILL:
        return first
    rest = [walk.name for walk in work.graph.graph.partition(work.node.name).walks if walk.name not in first]
    return tuple(rest) if phase == DECODE else ()
