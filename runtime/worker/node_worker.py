# SPDX-License-Identifier: Apache-2.0
"""A worker process that computes a stage without tokens: a recognizer, a voice, a vocoder."""

import logging
import os
import time
from dataclasses import dataclass, field

from pontil.runtime.command_pipe import CommandPipe
from pontil.runtime.config import WorkerConfig
from pontil.runtime.errors import PontilError, RequestError
from pontil.runtime.graph.catalog import GraphModel
from pontil.runtime.graph.part import GraphPart, graph_part
from pontil.runtime.graph.stream_buffer import StreamBuffer
from pontil.runtime.nodes.node import Node, NodeInput, NodeResult, NodeRun
from pontil.runtime.reporting import Reporter
from pontil.runtime.wire.messages import SCHEMA, Cancel, Hello, Message, NodeOutput, NodeTask, PassDone, Starved
from pontil.runtime.wire.sockets import PeerServer
from pontil.runtime.worker.plain_worker import PlainWorker
from pontil.runtime.worker.request_table import Failure
from pontil.runtime.worker.stream_ports import StreamPorts

logger = logging.getLogger("pontil.worker")

# Tasks that the proxy may leave with one worker at once. One that waits for items costs little.
SEATS = 64
LATE = Failure("no worker had computed the stage before its deadline", 503, late=True)
# The only role that such a worker can have.
ROLE = "node"


@dataclass(slots=True, eq=False)
class OpenTask:
    """One task. `run` is made when its first chunk is computed. `outputs` counts those made, `consumed` the tokens that
    went into them."""

    message: NodeTask
    arrived: float
    part: GraphPart | None
    buffers: dict[str, StreamBuffer] = field(default_factory=dict)
    run: NodeRun | None = None
    outputs: int = 0
    consumed: int = 0

    @property
    def key(self) -> tuple[str, int]:
        return self.message.request_id, self.message.attempt

    @property
    def edge(self) -> str | None:
        """The only input that is a stream; None for a task that has all its data."""
        return next(iter(self.buffers), None)

    def is_late(self, now: float) -> bool:
        deadline = self.message.deadline
        return deadline is not None and self.outputs == 0 and now >= self.arrived + deadline


class NodeWorker(PlainWorker):
    """One process that computes a node. A step computes one chunk of one task, of the one that waited longest."""

    def __init__(
        self, config: WorkerConfig, model: GraphModel, node: Node, report: Reporter, pipe: CommandPipe | None = None
    ) -> None:
        self.model, self.node = model, node
        self.tasks: dict[tuple[str, int], OpenTask] = {}
        super().__init__(config, report, pipe)
        self.peers_in = PeerServer(self.context, config.peer_endpoint)
        self.poller.register(self.peers_in)
        self.ports = StreamPorts(
            config, self.incarnation, self.context, self.poller, self.peers_in, self.keys, self.failures
        )

    @property
    def has_work(self) -> bool:
        return self.next_task() is not None

    @property
    def is_idle(self) -> bool:
        return not self.tasks and self.ports.is_idle

    @property
    def counts(self) -> tuple[int, int]:
        return len(self.tasks), max(0, SEATS - len(self.tasks))

    @property
    def max_model_len(self) -> None:
        return None

    def next_task(self) -> OpenTask | None:
        """Return the first task with a chunk that is ready."""
        return next((task for task in self.tasks.values() if is_ready(task)), None)

    def take(self, message: Message, now: float) -> bool:
        if isinstance(message, NodeTask):
            self.submit(message, now)
        elif isinstance(message, Cancel):
            self.end((message.request_id, message.attempt), now, finished=False)
        else:
            return self.ports.take(message, now)
        return True

    def submit(self, message: NodeTask, now: float) -> None:
        key = message.request_id, message.attempt
        if key in self.tasks:
            return
        try:
            if message.node != self.config.node:
                raise RequestError(f"this worker computes {self.config.node}, not {message.node}")
            part = None if message.graph is None else graph_part(message.graph)
            task = self.tasks[key] = OpenTask(message, now, part)
            for edge in () if part is None else part.inputs:
                self.open_input(task, part, edge, now)
        except PontilError as error:
            self.end(key, now, finished=False)
            self.refuse(message, Failure(str(error), getattr(error, "status", 400)))

    def open_input(self, task: OpenTask, part: GraphPart | None, edge: str, now: float) -> None:
        assert part is not None
        connection = self.model.connection(edge)
        buffer = StreamBuffer(connection, self.model.graph.partition(connection.target).last_walk)
        task.buffers[edge] = buffer
        self.ports.open_input(task.message.request_id, task.message.attempt, part, edge, buffer, now)

    def compute(self, now: float) -> None:
        """Compute one chunk. The task goes behind the others."""
        task = self.next_task()
        if task is None:
            return
        del self.tasks[task.key]
        self.tasks[task.key] = task
        try:
            done = self.advance(task)
        except RequestError as error:
            self.end(task.key, now, finished=False)
            self.refuse(task.message, Failure(str(error), error.status))
            return
        if done:
            self.report_end(task)
            self.end(task.key, time.monotonic(), finished=True)
        self.ports.send(time.monotonic())

    def advance(self, task: OpenTask) -> bool:
        """Compute the task's next chunk and send its outputs; return whether that was the last."""
        message = task.message
        if task.run is None:
            task.run = self.node.begin(NodeInput(message.data, message.options, message.delivered))
        if task.edge is None:
            self.send(task, task.run.feed((), (), True), final=True)
            return True
        buffer = task.buffers[task.edge]
        chunk = buffer.pop()
        assert chunk is not None, "only a task that is ready is computed"
        task.consumed += sum(item.shape[0] if item.ndim else 1 for item in chunk.items)  # type: ignore[attr-defined]
        results = task.run.feed(chunk.items, chunk.context, chunk.final)  # type: ignore[arg-type]
        # Recorded after the node ran: another attempt begins with what was not (E9).
        buffer.record(chunk)
        self.send(task, results, final=chunk.final)
        return chunk.final

    def send(self, task: OpenTask, results: list[NodeResult | None], *, final: bool) -> None:
        """Send outputs under their numbers, the last one as final: an empty one if there is none."""
        if final and (not results or results[-1] is None):
            results = [*results, NodeResult("audio", b"")]
        for place, result in enumerate(results):
            number = task.outputs
            task.outputs += 1
            is_last = final and place == len(results) - 1
            if result is None or (number < task.message.delivered and not is_last):
                continue
            address = self.incarnation, task.message.sender, *task.key
            self.link.send(
                NodeOutput(
                    *address, number, result.kind, result.data, is_last, result.sample_rate, task.consumed,
                    self.now - task.arrived if number == 0 else None,
                )
            )  # fmt: skip

    def report_end(self, task: OpenTask) -> None:
        """Tell the proxy that the partition has ended (E5)."""
        node = task.message.node
        address = self.incarnation, task.message.sender, *task.key
        walk = self.model.graph.partition(node).walks[-1].name
        positions = {edge: buffer.next_index for edge, buffer in task.buffers.items()}
        counts = dict.fromkeys(task.buffers, task.consumed)
        self.link.send(PassDone(*address, node, walk, {}, counts, positions, {}, done=True))

    def end(self, key: tuple[str, int], now: float, *, finished: bool) -> None:
        """Remove a task in any state; an unknown one is no error."""
        if self.tasks.pop(key, None) is not None:
            self.ports.close(*key, finished, now)

    def give_back(self, failure: Failure) -> None:
        for task in list(self.tasks.values()):
            self.end(task.key, self.now, finished=False)
            self.refuse(task.message, failure)

    def orphan(self) -> None:
        logger.warning("the proxy is gone: %d tasks are dropped; waiting for the next", len(self.tasks))
        for key in list(self.tasks):
            self.end(key, self.now, finished=True)
        self.ports.release_all()

    def check_deadlines(self, now: float) -> None:
        """Move the streams, and end the tasks that are late or whose streams contradict themselves."""
        for message in self.peers_in.receive_all():
            if getattr(message, "receiver", None) == self.incarnation:
                self.ports.take(message, now)
        self.ports.poll(now)
        for lost in self.ports.starved:
            task = self.tasks.get((lost.request_id, lost.attempt))
            if task is not None:
                address = self.incarnation, task.message.sender, *task.key
                self.link.send(Starved(*address, lost.edge, lost.next_index, lost.lost))
        self.ports.starved.clear()
        for request_id, attempt, reason in self.ports.failed:
            self.fail((request_id, attempt), Failure(reason, 503), now)
        self.ports.failed.clear()
        for task in [task for task in self.tasks.values() if task.is_late(now)]:
            self.fail(task.key, LATE, now)

    def fail(self, key: tuple[str, int], failure: Failure, now: float) -> None:
        task = self.tasks.get(key)
        if task is not None:
            self.end(key, now, finished=False)
            self.refuse(task.message, failure)

    def hello(self) -> Hello:
        """Return what the worker registers with. It has no KV cache: a block stands for one task, block 0 for none."""
        config = self.config
        return Hello(
            self.incarnation, SCHEMA, config.name, ROLE, os.getpid(), config.device, config.served_model_name,
            self.node.identity, "", config.peer_endpoint, 1, SEATS + 1, SEATS, 1 << 20, config.max_num_batched_tokens,
            node=config.node,
        )  # fmt: skip

    def close(self) -> None:
        self.ports.close_all()
        self.peers_in.close()
        super().close()


def is_ready(task: OpenTask) -> bool:
    """Return whether a task can be computed now: it has all its data, or a chunk of its items."""
    edge = task.edge
    if edge is None:
        return True
    chunk = task.buffers[edge].pop()
    if chunk is not None:
        task.buffers[edge].put_back(chunk)
    return chunk is not None
