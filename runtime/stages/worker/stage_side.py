# SPDX-License-Identifier: Apache-2.0
"""The stage of a worker that generates: it connects the engine's sequences with the streams of their runs."""

import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from pontil.runtime.engine.engine import Output
from pontil.runtime.engine.sequences.sequence import FinishReason, Sequence
from pontil.runtime.engine.sequences.streamed import PositionAngles
from pontil.runtime.errors import GraphError, MalformedFrame, RequestError
from pontil.runtime.stages.graph.catalog import GraphModel, GraphNode
from pontil.runtime.stages.graph.medium import media_of
from pontil.runtime.stages.graph.part import GraphPart, graph_part
from pontil.runtime.stages.graph.stream_buffer import StreamBuffer
from pontil.runtime.stages.streams.code_stream import CodeStream
from pontil.runtime.stages.streams.edge_writer import EdgeWriter
from pontil.runtime.stages.streams.frame_stream import FrameStream
from pontil.runtime.stages.streams.state_stream import StateStream, units_of
from pontil.runtime.stages.streams.text_stream import TextStream
from pontil.runtime.stages.worker.stage_parts import MediaBuilder, RowBuilder, StageParts, TalkerStage
from pontil.runtime.stages.worker.stream_ports import StreamPorts
from pontil.runtime.stages.worker.stream_rows import StreamRows
from pontil.runtime.stages.worker.streamed_media import StreamedMedia, TurnedRows, name_media
from pontil.runtime.wire.messages import Inputs, Message, PassDone, Starved, Submit, Tokens
from pontil.runtime.worker.links.proxy_links import ProxyLinks
from pontil.runtime.worker.process.worker_request import WorkerRequest, make_request
from pontil.runtime.worker.start.assembly import WorkerResources

ENDED = frozenset({FinishReason.STOP, FinishReason.LENGTH})


class IdStream(Protocol):
    """A stream that is made of a sequence's ids."""

    writer: EdgeWriter

    @property
    def is_full(self) -> bool: ...

    def take(self, index: int, ids: list[int], frames: list[list[int]] = ...) -> None: ...

    def finish(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PreparedPart:
    """The part of a request that was made and not begun, and what makes its rows, where these are no ids alone."""

    part: GraphPart
    make_rows: Callable[[], RowBuilder] | None = None
    angles: PositionAngles | None = None
    media: MediaBuilder | None = None


@dataclass(slots=True)
class StageRequest:
    """A request of a run: what flows into its sequences and out of them, and the `ends` of those that ended here."""

    request: WorkerRequest
    part: GraphPart
    states: StateStream | None = None
    ids: IdStream | None = None
    rows: StreamRows | None = None
    media: StreamedMedia | None = None
    ends: set[FinishReason] = field(default_factory=set)
    is_done: bool = False

    @property
    def buffer(self) -> StreamBuffer | None:
        """The items of its input, if it has one and asked for it."""
        source = self.rows or self.media
        return None if source is None else source.buffer

    @property
    def fault(self) -> str | None:
        source = self.rows or self.media
        return None if source is None else source.fault

    @property
    def writers(self) -> list[EdgeWriter]:
        return [one.writer for one in (self.states, self.ids) if one is not None]


class StageSide:
    """The requests of runs on this worker, by their keys."""

    def __init__(
        self,
        incarnation: str,
        model: GraphModel,
        node: GraphNode,
        machine: WorkerResources,
        parts: StageParts,
        ports: StreamPorts,
        link: ProxyLinks,
    ) -> None:
        self.incarnation, self.model, self.node = incarnation, model, node
        self.machine, self.parts, self.ports, self.link = machine, parts, ports, link
        self.open: dict[str, StageRequest] = {}
        self.prepared: dict[str, PreparedPart] = {}

    @property
    def is_idle(self) -> bool:
        """True if no run needs this worker: no request is open, and no item is kept."""
        return not self.open and self.ports.is_idle

    def make_request(self, submit: Submit) -> WorkerRequest:
        """Build a request. The prompt of a stage that another drives is as long as the rows that it will get. Raises
        RequestError."""
        if submit.graph is None:
            return make_request(submit, self.machine)
        part = self.checked_part(submit.graph)
        self.check_answer(submit, part)
        submit = replace(submit, sampling={**submit.sampling, **self.parts.sampling})
        prepared = PreparedPart(part)
        if self.parts.talker is not None:
            make_rows = partial(self.parts.talker.rows, submit.prompt, part.options)
            angles = self.parts.talker.angles(submit.prompt[: part.positions], part.options)
            prepared = PreparedPart(part, make_rows, angles)
            submit = self.spoken(submit, self.parts.talker, make_rows().prompt_rows)
        elif part.inputs and self.parts.media is not None:
            # An answer that is computed again is no part of the prompt.
            media = self.parts.media.begin(submit.prompt[: part.positions], media_of(part.options))
            prepared = PreparedPart(part, media=media)
        request = make_request(submit, self.machine)
        if prepared.media is not None:
            name_media(request.sequence.prefix, request.sequence.prompt, part.options, request.key)
        self.prepared[request.key] = prepared
        return request

    def checked_part(self, values: Mapping[str, Any]) -> GraphPart:
        """Return the part of a run, whose edges lead into and out of this worker's stage. Raises RequestError."""
        try:
            part = graph_part(values)
            sources = {self.model.connection(edge).source for edge in part.outputs}
            targets = {self.model.connection(edge).target for edge in part.inputs}
        except (MalformedFrame, GraphError) as error:
            raise RequestError(str(error)) from None
        most, fewest = self.parts.takes_items, self.parts.talker is not None
        if not (sources | targets) <= {self.node.name} or not fewest <= len(part.inputs) <= most:
            raise RequestError(f"the part of the run is not one of the stage {self.node.name}")
        if self.parts.state_layers is None and any(is_of_states(edge) for edge in part.outputs):
            raise RequestError("this model has no states that another stage could read")
        return part

    def check_answer(self, submit: Submit, part: GraphPart) -> None:
        """Raise RequestError where the ids to be streamed once more cannot be an answer of this stage."""
        ids = part.answer or tuple(submit.delivered[0] if submit.delivered else ())
        known = all(token < self.machine.config.vocab_size for token in ids)
        if submit.sampling.get("n", 1) != 1 and (part.outputs or self.parts.talker is not None):
            raise RequestError("the items between two stages are those of one choice: ask for n 1")
        framed = self.parts.talker is None or tuple([frame[0] for frame in submit.frames if frame]) == ids
        if not known or not framed or (part.positions or 0) > len(submit.prompt):
            raise RequestError("the answer to go on from is not one of this stage")
        if part.answer and not part.outputs:
            raise RequestError("an answer is streamed again, and nobody takes its items")

    def spoken(self, submit: Submit, talker: TalkerStage, rows: int) -> Submit:
        """Return the Submit of a stage that speaks, with a prompt of placeholders. Speech takes as many steps as the
        context has room for. Raises RequestError."""
        room = self.machine.config.max_model_len - rows
        if room < 1 or not all(map(talker.is_frame, submit.frames)):
            raise RequestError("the prompt is too long to be answered in speech, or the frames are not of this model")
        budget = {"max_tokens": min(submit.sampling.get("max_tokens", 0), room)}
        return replace(submit, prompt=[0] * rows, sampling={**submit.sampling, **budget})

    def begin(self, request: WorkerRequest, now: float) -> bool:
        """Open the streams of a request that has just been made from its Submit. Return whether it is to be computed:
        one whose answer is only to be streamed again is not."""
        if request.submit.graph is None:
            return True
        prepared = self.prepared.pop(request.key)
        part, make_rows = prepared.part, prepared.make_rows
        stage = self.open[request.key] = StageRequest(request, part)
        if make_rows is not None or any(is_of_states(edge) for edge in part.outputs):
            # A prefix that another request left has no states, and rows of embeddings have no ids to be found by.
            request.sequence.prefix.salt = request.key
        for edge in part.outputs:
            self.open_output(stage, edge)
        for edge in part.inputs:
            self.open_rows(stage, edge, prepared)
        if stage.ids is not None and request.submit.delivered and not request.hands_over:
            stage.ids.take(0, request.submit.delivered[0], request.submit.frames)
        if not part.answer or stage.states is not None:
            return True
        self.repeat(stage)
        return False

    def open_output(self, stage: StageRequest, edge: str) -> None:
        request, sequence, part = stage.request, stage.request.sequence, stage.part
        connection = self.model.connection(edge)
        of_states = is_of_states(edge)
        prompt = len(sequence.prompt) if part.positions is None else part.positions
        first = units_of(prompt) if of_states and is_receiver(request) else 0
        stream = self.ports.open_output(
            request.request_id, request.attempt, part, edge, first, window=connection.capacity
        )
        writer = EdgeWriter(self.model, edge, stream)
        if of_states:
            layers = self.parts.state_layers
            assert layers is not None, "a model without states feeds no stage"
            stage.states = StateStream(writer, prompt, layers)
            sequence.streams = replace(sequence.streams, states=stage.states)
            return
        if connection.edge == "codes":
            walk = self.model.graph.partition(self.node.name).walks[-1].name
            if self.node.codes > 1:
                stage.ids = FrameStream(writer, walk, sequence.stop_token_ids)
            else:
                stage.ids = CodeStream(writer, walk, self.parts.codes)
        else:
            stage.ids = TextStream(writer, self.machine.tokenizer, sequence.params, sequence.stop_token_ids)
        if not request.hands_over:
            sequence.streams = replace(sequence.streams, outflow=stage.ids)

    def open_rows(self, stage: StageRequest, edge: str, prepared: PreparedPart) -> None:
        """Open the edge that gives rows of a sequence, all of them or those of media in its prompt."""
        sequence, receives = stage.request.sequence, is_receiver(stage.request)
        open_input = partial(self.open_input, stage, edge)
        if prepared.media is not None:
            stage.media = StreamedMedia(prepared.media, open_input, receives)
            sequence.streams = replace(sequence.streams, media=stage.media)
        elif prepared.make_rows is not None:
            frames, walks = stage.request.submit.frames, stage.part.walks or None
            stage.rows = StreamRows(prepared.make_rows, open_input, frames, walks, receives)
            turned = None if prepared.angles is None else TurnedRows(stage.rows, prepared.angles)
            sequence.streams = replace(sequence.streams, inputs=stage.rows, media=turned)

    def open_input(self, stage: StageRequest, edge: str, hosted: Collection[str] | None = None) -> StreamBuffer:
        """Subscribe to an edge. A worker of a split stage takes only the items of its own walks, as long as it does
        only its part (E4)."""
        connection, last = self.model.connection(edge), self.model.graph.partition(self.node.name).last_walk
        request, buffer = stage.request, StreamBuffer(connection, last, hosted)
        part, awaits = replace(stage.part, walks=tuple(hosted or ())), is_receiver(request) and hosted is not None
        self.ports.open_input(
            request.request_id, request.attempt, part, edge, buffer, time.monotonic(), awaits_handoff=awaits
        )
        return buffer

    def repeat(self, stage: StageRequest) -> None:
        """Stream an answer that is known once more, for a consumer that lost its producer."""
        assert stage.ids is not None
        request = stage.request
        stage.ids.take(0, list(stage.part.answer), request.submit.frames)
        stage.ids.finish()
        self.tell(stage, request.sequence, done=True)
        self.link.send(
            Tokens(
                self.incarnation, request.proxy, request.request_id, request.attempt, 0, [], finish_reason="length",
                generated_tokens=0, prompt_tokens=len(request.sequence.prompt), cached_tokens=0, computed_tokens=0,
            )
        )  # fmt: skip

    def take(self, message: Message, now: float) -> bool:
        """Handle a message about streams; return whether it was one. An input may be opened later."""
        if isinstance(message, Inputs):
            for stage in self.open.values():
                if is_of(stage.request, message.request_id, message.attempt):
                    stage.part = with_producers(stage.part, message)
        return self.ports.take(message, now)

    @property
    def seats(self) -> int | None:
        """The number of runs whose items can all be kept here; None: without limit."""
        longest, layers = self.machine.config.max_model_len, self.parts.state_layers
        if layers is None or not self.model.graph.outgoing(self.node.name):
            return None
        return max(1, self.ports.seats_for(2 * 4 * self.machine.config.hidden_size, longest))

    def after(self, outputs: Iterable[Output], now: float) -> None:
        """Stream what a step has accepted, and end the streams of sequences that have ended."""
        for running in self.open.values():
            if running.rows is not None:
                running.rows.record(running.request.sequence.computed)
        last_outputs = dict[str, Output]()
        for output in outputs:
            if (stage := self.open.get(output.sequence.id)) is None:
                continue
            if stage.ids is not None and not stage.request.hands_over:
                stage.ids.take(output.index, output.ids, output.frames)
            if output.finish is not None:
                stage.ends.add(output.finish)
                last_outputs[output.sequence.id] = output
        for key, output in last_outputs.items():
            if key not in self.machine.engine.sequences:
                self.conclude(self.open[key], output)
        self.ports.send(now)

    def conclude(self, stage: StageRequest, output: Output) -> None:
        """End the streams of a request whose last choice here has ended: another worker may go on with some."""
        if FinishReason.HANDED_OVER in stage.ends:
            # That worker makes the states after the prompt, and all items of ids.
            for writer in stage.writers:
                writer.stream.hand_over(writer.index)
            self.tell(stage, output.sequence, done=False)
        elif stage.ends <= ENDED:
            if stage.ids is not None:
                stage.ids.take(output.index, output.ids, output.frames)
                stage.ids.finish()
            if stage.states is not None:
                stage.states.finish()
            stage.is_done = True
            self.tell(stage, output.sequence, done=True)

    def tell(self, stage: StageRequest, sequence: Sequence, *, done: bool) -> None:
        """Report to the proxy how far the stage is, of whose choices this one came furthest (E5)."""
        request, buffer = stage.request, stage.buffer
        self.link.send(
            PassDone(
                self.incarnation,
                request.proxy,
                request.request_id,
                request.attempt,
                self.node.name,
                self.walk_of(stage, sequence),
                produced={writer.edge: writer.index for writer in stage.writers},
                token_counts={writer.edge: writer.totals().token_counts[writer.edge] for writer in stage.writers},
                next_index={} if buffer is None else dict.fromkeys(stage.part.inputs, buffer.next_index),
                walks={name: walk for writer in stage.writers for name, walk in writer.producer.tracked.items()},
                done=done,
            )
        )

    def walk_of(self, stage: StageRequest, sequence: Sequence) -> str:
        """Return the walk that ran last: that of the items of the last rows; of a stage that moves by itself, that of
        its prompt until a token behind it was computed."""
        partition = self.model.graph.partition(self.node.name)
        if partition.is_driven:
            ran = None if stage.rows is None else stage.rows.buffer.ran.walk
            return ran or str(partition.last_walk)
        first = partition.following(None)
        return first if sequence.computed <= len(sequence.prompt) else partition.following(first)

    def keep_only(self, keys: Container[str], now: float) -> None:
        """End the streams into requests that have ended in any way. Their items are kept until the run's Release."""
        self.prepared.clear()
        for key in [key for key in self.open if key not in keys]:
            stage = self.open.pop(key)
            self.ports.close(stage.request.request_id, stage.request.attempt, stage.is_done, now)

    def counters(self) -> dict[str, int]:
        return self.ports.counters()

    def gauges(self) -> dict[str, int]:
        return self.ports.gauges()

    def end(self) -> None:
        """Close all sockets: the worker stops."""
        self.ports.close_all()

    def orphan(self, now: float) -> None:
        """Let go of everything, inputs too: the proxy is gone."""
        self.keep_only((), now)
        self.ports.release_all()

    def tick(self, now: float) -> list[tuple[str, str]]:
        """Move the streams. Return the keys of requests whose streams contradict themselves, with the reasons."""
        self.ports.poll(now)
        for media in [stage.media for stage in self.open.values() if stage.media is not None]:
            media.take()
        for lost in self.ports.starved:
            stage = next((one for one in self.open.values() if is_of(one.request, lost.request_id, lost.attempt)), None)
            if stage is not None:
                address = self.incarnation, stage.request.proxy, lost.request_id, lost.attempt
                self.link.send(Starved(*address, lost.edge, lost.next_index, lost.lost))
        self.ports.starved.clear()
        broken = [
            (key, reason)
            for request_id, attempt, reason in self.ports.failed
            for key, stage in self.open.items()
            if is_of(stage.request, request_id, attempt)
        ]
        self.ports.failed.clear()
        faults = [(key, stage.fault) for key, stage in self.open.items()]
        return broken + [(key, fault) for key, fault in faults if fault is not None]


def is_of(request: WorkerRequest, request_id: str, attempt: int) -> bool:
    return (request.request_id, request.attempt) == (request_id, attempt)


def with_producers(part: GraphPart, message: Inputs) -> GraphPart:
    """Return a part with the producers that a message names for one of its edges."""
    if message.edge not in part.inputs:
        return part
    named = tuple((producer[0], producer[1]) for producer in message.producers if len(producer) == 2)
    return replace(part, inputs={**part.inputs, message.edge: named})


def is_of_states(edge: str) -> bool:
    return edge.endswith("/states")


def is_receiver(request: WorkerRequest) -> bool:
    """Return whether the prompt's KV comes from another worker."""
    return request.submit.phase == "decode" and request.submit.transfer_id is not None
