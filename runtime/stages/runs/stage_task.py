# SPDX-License-Identifier: Apache-2.0
"""The part of a request that makes it one of a stage of a model of several stages."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pontil.runtime.foundation.staged_model import group_of
from pontil.runtime.proxy.requests.choice_text import MAX_TOKEN_ID, BrokenAnswer
from pontil.runtime.proxy.requests.stream import Finished
from pontil.runtime.stages.graph.catalog import GraphModel, GraphNode, edge_name
from pontil.runtime.stages.graph.connection import Connection
from pontil.runtime.wire.messages import NodeOutput, NodeTask, Submit, Tokens

if TYPE_CHECKING:
    from pontil.runtime.proxy.requests.request import Request
    from pontil.runtime.stages.runs.run import Run

AUDIO, TEXT = "audio", "text"
# Most bytes of text that a node may answer with.
MOST_TEXT = 1 << 20


def is_joined(request: "Request") -> bool:
    """Return whether a run opened it beside the client's own request. It waits in no queue."""
    return request.stage is not None and request.stage.is_joined


def makes_tokens(request: "Request") -> bool:
    return request.embedding is None and (request.stage is None or request.stage.node.generates)


def streams(graph: GraphModel) -> list[Connection]:
    """Return the connections over which items go from worker to worker."""
    return [one for one in graph.graph.connections if one.policy is not None]


def inputs_of(graph: GraphModel, node: str) -> tuple[str, ...]:
    """Return the names of the streams into a stage."""
    return tuple(edge_name(one) for one in streams(graph) if one.target == node)


def outputs_of(graph: GraphModel, node: str) -> tuple[str, ...]:
    """Return the names of the streams out of a stage."""
    return tuple(edge_name(one) for one in streams(graph) if one.source == node)


# The most codes of a frame, of which the first is the sampled id.
MOST_CODES = 64


@dataclass(slots=True, eq=False)
class StageTask:
    """A stage's work: for a `run`, or (None) a question to a node by itself, of the bytes in `data`. A question that is
    `beside` is a part of another request, which counts against the limits of its key for both.

    `frames` has all codes of each accepted id's frame, for an engine stage whose steps make several. `outputs`
    counts those accepted of a node, `text` is what they say. A stage that is computed again for its items alone has
    the whole `answer` that it makes the items of, and a prompt that goes on with it after `positions` ids.
    """

    graph: GraphModel
    node: GraphNode
    run: "Run | None" = None
    data: bytes | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    frames: list[list[int]] = field(default_factory=list)
    outputs: int = 0
    text: bytearray = field(default_factory=bytearray)
    answer: tuple[int, ...] | None = None
    positions: int | None = None
    beside: bool = False

    @property
    def group(self) -> str | None:
        return group_of(self.graph, self.node.name)

    @property
    def is_joined(self) -> bool:
        return self.run is not None and self is not self.run.first.stage

    @property
    def is_clients(self) -> bool:
        return self.run is not None and self is self.run.first.stage

    @property
    def is_replay(self) -> bool:
        return self.answer is not None

    @property
    def takes_items(self) -> bool:
        """True if its rows are made of another stage's items, not of a prompt of its own."""
        return bool(inputs_of(self.graph, self.node.name))

    def fits(self, frame: Tokens) -> bool:
        """Return whether the frames of a message can be those of its ids."""
        if self.is_replay and frame.ids:
            return False
        if self.node.codes == 1:
            return frame.frames is None
        frames = frame.frames or []
        return len(frames) == len(frame.ids) and all(
            1 < len(codes) <= MOST_CODES and codes[0] == token and min(codes) >= 0 and max(codes) < MAX_TOKEN_ID
            for token, codes in zip(frame.ids, frames, strict=True)
        )

    def take_frames(self, frame: Tokens, new: int, delivered: int) -> None:
        """Keep the codes of the delivered ids, of the `new` ones that are a message's last."""
        codes = frame.frames or []
        self.frames += codes[len(codes) - new :][:delivered]


def stage_messages(
    request: "Request", task: StageTask, sender: str, secret: str | None, deadline: float | None
) -> list[Submit | NodeTask]:
    """Return the messages that start the attempt, one for each worker."""
    run = task.run
    if not task.node.generates:
        (worker,) = request.phases
        part = None if run is None else run.part(task, worker, request.phases[worker]).to_wire()
        return [
            NodeTask(
                sender, worker, request.id, request.attempt, task.node.name, task.data, dict(task.options), part,
                task.outputs, request.ticket.priority, deadline,
            )
        ]  # fmt: skip
    assert run is not None, "an engine stage serves a run"
    frames = task.frames if request.attempt or task.is_replay else []
    return [
        replace(submit, graph=run.part(task, submit.receiver, submit.phase).to_wire(), frames=frames)
        for submit in request.submits(sender, secret, deadline)
    ]


def wrong_output(frame: NodeOutput, task: StageTask) -> str | None:
    """Return why an output cannot be one of this stage, or None."""
    run, size = task.run, len(frame.data)
    if frame.index < 0:
        return "a worker sent an output before the first"
    if not size:
        return None
    if run is not None and task.node.name == task.graph.audio:
        if frame.kind != AUDIO or size % 2 or frame.sample_rate != task.graph.sample_rate:
            return f"a worker of {task.node.name} sent something other than audio of {task.graph.sample_rate} Hz"
        return None if run.audio.has_room(size) else f"a worker of {task.node.name} sent more audio than can be"
    if run is not None or frame.kind != TEXT:
        return f"a worker of {task.node.name} sent an output that nothing takes"
    return None if len(task.text) + size <= MOST_TEXT else f"a worker of {task.node.name} sent too long a text"


def accept_output(request: "Request", task: StageTask, frame: NodeOutput, now: float) -> bool:
    """Take an output of a node; return whether it was new. The final one ends the request. Raises BrokenAnswer for a
    gap, and for an output that cannot be one of this stage."""
    if wrong := wrong_output(frame, task):
        raise BrokenAnswer(wrong)
    if frame.index > task.outputs:
        raise BrokenAnswer(f"output {task.outputs} of {task.node.name} was lost")
    request.last_frame = request.waits_since = now
    if frame.index < task.outputs:
        return False
    if request.queued is None and frame.queue_seconds is not None:
        request.queued = request.credible(frame.queue_seconds, now)
    task.outputs += 1
    request.begun = True
    if task.run is None:
        task.text += frame.data
    elif task.node.name == task.graph.audio:
        task.run.audio.put(frame.data, task.graph.sample_rate, frame.final)
    if frame.final:
        request.account.accept(request.attempt, request.phases[frame.sender], 0, generated=0, cached=0)
        request.reasons[0] = "stop"
        request.mailbox.close(Finished("stop", request.account.usage, request.route_name))
    return True
