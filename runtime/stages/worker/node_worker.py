# SPDX-License-Identifier: Apache-2.0
"""A worker process that computes a stage without tokens: a recognizer, a voice, a vocoder."""

import logging
import os
import time

from pontil.runtime.command_pipe import CommandPipe
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.errors import GraphError, PontilError, RequestError
from pontil.runtime.reporting import Reporter
from pontil.runtime.stages.graph.catalog import GraphModel
from pontil.runtime.stages.graph.part import GraphPart, graph_part
from pontil.runtime.stages.graph.stream_buffer import StreamBuffer
from pontil.runtime.stages.nodes.node import NodeInput, StageNode
from pontil.runtime.stages.worker.open_task import OpenTask, skip
from pontil.runtime.stages.worker.stream_ports import StreamPorts
from pontil.runtime.wire.links.sockets import PeerServer
from pontil.runtime.wire.messages import SCHEMA, Cancel, Hello, Message, NodeOutput, NodeTask, Starved
from pontil.runtime.worker.links.proxy_link import BEAT
from pontil.runtime.worker.process.plain_worker import PlainWorker
from pontil.runtime.worker.process.request_table import Failure

logger = logging.getLogger("pontil.worker")

# Tasks that the proxy may leave with one worker at once. One that waits for items costs little.
SEATS = 64
# Bytes of a task's longest input, in the place of tokens.
MOST_INPUT = 1 << 20
# Outputs of a task beyond any: each has some sound.
MOST_OUTPUTS = 1 << 20
LATE = Failure("no worker had computed the stage before its deadline", 503, late=True)
# The only role that such a worker can have.
ROLE = "node"


class NodeWorker(PlainWorker):
    """One process that computes a node. A step is one piece of work of one task. `ready` are the tasks that have one,
    in turn."""

    def __init__(
        self,
        config: WorkerConfig,
        model: GraphModel,
        node: StageNode,
        report: Reporter,
        pipe: CommandPipe | None = None,
    ) -> None:
        self.model, self.node = model, node
        self.tasks: dict[tuple[str, int], OpenTask] = {}
        self.ready: dict[tuple[str, int], OpenTask] = {}
        super().__init__(config, report, pipe)
        self.ports = StreamPorts(
            config, self.incarnation, self.context, self.poller, self.peers_in, self.keys, self.failures
        )

    def open_sockets(self) -> None:
        self.peers_in = PeerServer(self.context, self.config.peer_endpoint)
        self.poller.register(self.peers_in)

    @property
    def has_work(self) -> bool:
        return bool(self.ready)

    @property
    def is_idle(self) -> bool:
        return not self.tasks and self.ports.is_idle

    @property
    def counts(self) -> tuple[int, int]:
        return len(self.tasks), max(0, SEATS - len(self.tasks))

    @property
    def max_model_len(self) -> None:
        return None

    @property
    def patience(self) -> float:
        return min(super().patience, BEAT if self.ports.patience is None else self.ports.patience)

    def measured(self) -> tuple[dict[str, int], dict[str, int]]:
        return self.ports.counters(), self.ports.gauges()

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
                raise GraphError(f"this worker computes {self.config.node}, not {message.node}")
            if not 0 <= message.delivered <= MOST_OUTPUTS:
                raise GraphError(f"a client cannot have {message.delivered} outputs of {message.node}")
            part = None if message.graph is None else graph_part(message.graph)
            run = self.node.begin(NodeInput(message.data, message.options, message.delivered))
            task = OpenTask(self.incarnation, message, now, run)
            if part is not None and part.inputs:
                self.open_input(task, part, now)
        except PontilError as error:
            self.refuse(message, failure_of(error))
        else:
            self.tasks[key] = task
            self.look(task, now)

    def open_input(self, task: OpenTask, part: GraphPart, now: float) -> None:
        """Open the stream that a task reads."""
        if len(part.inputs) > 1:
            raise GraphError(f"{self.config.node} reads one stream, and was given {', '.join(part.inputs)}")
        (edge,) = part.inputs
        connection = self.model.connection(edge)
        walk = self.model.graph.partition(connection.target).last_walk
        buffer = StreamBuffer(connection, walk)
        if self.node.one_per_chunk:
            task.consumed, task.outputs = skip(buffer, walk, task.message.delivered), task.message.delivered
        self.ports.open_input(*task.key, part, edge, buffer, now)
        task.edge, task.buffer = edge, buffer

    def poll(self, now: float) -> None:
        """Move the streams, and end the tasks that are late or whose streams contradict themselves."""
        for message in self.peers_in.receive_all():
            if getattr(message, "receiver", None) == self.incarnation:
                self.ports.take(message, now)
            else:
                self.stale += 1
        self.ports.poll(now)
        self.tell_of_streams(now)
        for task in [task for task in self.tasks.values() if task.is_late(now)]:
            self.fail(task, LATE, now)
        for task in self.tasks.values():
            self.look(task, now)

    def tell_of_streams(self, now: float) -> None:
        """Tell the proxy of items that are missing, and of streams that cannot go on."""
        for lost in self.ports.starved:
            task = self.tasks.get((lost.request_id, lost.attempt))
            if task is not None:
                self.link.send(Starved(*task.address, lost.edge, lost.next_index, lost.lost))
        self.ports.starved.clear()
        for request_id, attempt, reason in self.ports.failed:
            task = self.tasks.get((request_id, attempt))
            if task is not None:
                self.fail(task, Failure(reason, 503), now)
        self.ports.failed.clear()

    def look(self, task: OpenTask, now: float) -> None:
        """Give a task its turn if it has anything to compute."""
        if task.key not in self.ready and task.look(now):
            self.ready[task.key] = task

    def compute(self, now: float) -> None:
        """Do one piece of work, of the most urgent task that waits longest. A chunk that needs none costs no step."""
        for _ in range(len(self.ready)):
            task = min(self.ready.values(), key=lambda one: one.message.priority)
            del self.ready[task.key]
            try:
                worked = self.advance(task, now)
            except PontilError as error:
                self.fail(task, failure_of(error), now)
                break
            if task.key in self.tasks:
                self.look(task, now)
            if worked:
                break
        self.ports.send(time.monotonic())

    def advance(self, task: OpenTask, now: float) -> bool:
        """Go on with a task; return whether there was a piece of work to do."""
        began = time.monotonic()
        piece, over = task.compute(now)
        if not over:
            task.times.chunks.add(began, time.monotonic(), 0)
            if piece is not None:
                self.send(task, piece, final=self.node.one_per_chunk and task.is_at_end)
            return True
        if task.put_down():
            self.finish(task)
        return False

    def finish(self, task: OpenTask) -> None:
        """End a task of which everything is computed. Its items are kept for another attempt until the run ends, since
        the last output may be lost with this worker."""
        if not task.said_final:
            self.send(task, b"", final=True)
        self.end(task.key, time.monotonic(), finished=False)

    def send(self, task: OpenTask, data: bytes, *, final: bool) -> None:
        """Send an output under its number, unless it is delivered. The final one is preceded by the report that the
        partition has ended (E5)."""
        number = task.outputs
        task.outputs += 1
        if number < task.message.delivered and not final:
            return
        if final:
            task.said_final = True
            report = task.last_report(self.model.graph.partition(task.message.node).walks[-1].name)
            if report is not None:
                self.link.send(report)
        queued = None if task.said else task.queue_seconds
        task.said = True
        node = self.node
        self.link.send(
            NodeOutput(
                *task.address, max(number, task.message.delivered), node.kind, data, final, node.sample_rate,
                task.consumed, queued,
            )
        )  # fmt: skip

    def end(self, key: tuple[str, int], now: float, *, finished: bool) -> None:
        """Remove a task in any state; an unknown one is no error."""
        self.ready.pop(key, None)
        task = self.tasks.pop(key, None)
        if task is not None:
            self.ports.close(*key, finished, now)
            task.times.scheduled = task.begun_at
            self.times.ended(task.message.sender, *key, task.arrived, task.times)

    def fail(self, task: OpenTask, failure: Failure, now: float) -> None:
        self.end(task.key, now, finished=False)
        self.refuse(task.message, failure)

    def give_back(self, failure: Failure) -> None:
        for task in list(self.tasks.values()):
            self.fail(task, failure, self.now)

    def orphan(self, proxy: str) -> None:
        logger.warning("the proxy is gone: %d tasks are dropped; waiting for the next", len(self.tasks))
        for key in list(self.tasks):
            self.end(key, self.now, finished=True)
        self.ports.release_all()

    def hello(self) -> Hello:
        """Return what the worker registers with. It has no KV cache: a block stands for one task, block 0 for none."""
        config = self.config
        return Hello(
            self.incarnation, SCHEMA, config.name, ROLE, os.getpid(), config.device, config.served_model_name,
            self.node.identity, "", self.peers_in.endpoint, 1, SEATS + 1, SEATS, MOST_INPUT,
            config.max_num_batched_tokens, node=config.node,
        )  # fmt: skip

    def close(self) -> None:
        self.ports.close_all()
        self.peers_in.close()
        super().close()


def failure_of(error: PontilError) -> Failure:
    """Return what the proxy is told: a client's mistake with its status, anything else as a worker's fault."""
    return Failure(str(error), error.status if isinstance(error, RequestError) else 503)
