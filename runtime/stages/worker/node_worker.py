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
from pontil.runtime.stages.nodes.node import StageNode, TaskInput
from pontil.runtime.stages.streams.pass_writer import PassWriter
from pontil.runtime.stages.worker.open_task import OpenTask
from pontil.runtime.stages.worker.stream_ports import StreamPorts
from pontil.runtime.wire.messages import SCHEMA, Cancel, Hello, Message, NodeOutput, NodeTask, Starved
from pontil.runtime.worker.links.proxy_link import BEAT, Failure, HeartbeatLoad, ProxyLink
from pontil.runtime.worker.links.worker_sockets import WorkerSockets
from pontil.runtime.worker.process.idle_work import IdleWork
from pontil.runtime.worker.process.loop import WorkerLoop
from pontil.runtime.worker.process.workload import Outlook, Workload
from pontil.runtime.worker.start.packed_guard import PackedGuard

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


class NodeWorker(Workload):
    """The tasks of one process that computes a node. A step is one piece of work of one task. `ready` are the tasks
    that have one, in turn."""

    def __init__(self, sockets: WorkerSockets, model: GraphModel, node: StageNode, kernels: str | None = None) -> None:
        self.model, self.node = model, node
        self.tasks: dict[tuple[str, int], OpenTask] = {}
        self.ready: dict[tuple[str, int], OpenTask] = {}
        self.peers_in = sockets.serve_peers()
        hello = introduction(sockets, node, kernels, self.peers_in.endpoint)
        super().__init__(sockets, sockets.connect_proxies(hello), IdleWork(), {})
        self.ports = StreamPorts(sockets, self.peers_in)
        sockets.closing.callback(self.ports.close_all)

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
            if message.node != self.sockets.config.node:
                raise GraphError(f"this worker computes {self.sockets.config.node}, not {message.node}")
            if not 0 <= message.delivered <= MOST_OUTPUTS:
                raise GraphError(f"a client cannot have {message.delivered} outputs of {message.node}")
            part = None if message.graph is None else graph_part(message.graph)
            if part is not None:
                self.check(part)
            run = self.node.begin(TaskInput(message.data, message.options, message.delivered, message.cache_salt))
            partition = self.model.graph.partition(message.node)
            task = OpenTask(self.sockets.incarnation, message, now, run, partition)
            if part is not None:
                self.open_streams(task, part, now)
        except PontilError as error:
            self.link.refuse(message, failure_of(error))
        else:
            self.tasks[key] = task
            self.look(task, now)

    def check(self, part: GraphPart) -> None:
        """Raise GraphError for a part of a run that is not one of this stage."""
        sources = {self.model.connection(edge).source for edge in part.outputs}
        targets = {self.model.connection(edge).target for edge in part.inputs}
        if not sources | targets <= {self.sockets.config.node}:
            raise GraphError(f"the part of the run is not one of the stage {self.sockets.config.node}")

    def open_streams(self, task: OpenTask, part: GraphPart, now: float) -> None:
        """Open the streams that a task reads and those that it writes."""
        connections = {edge: self.model.connection(edge) for edge in (*part.inputs, *part.outputs)}
        last = task.partition.last_walk
        task.buffers = {edge: StreamBuffer(connections[edge], last) for edge in part.inputs}
        outgoing = self.model.graph.outgoing(task.message.node)
        can_skip = self.node.one_per_chunk and task.partition.has_known_walks
        if can_skip and len(part.inputs) == 1 and not outgoing:
            # The last one may have been that of a chunk that was not full: it is made once more.
            task.skip(max(0, task.message.delivered - 1))
        for edge, buffer in task.buffers.items():
            self.ports.open_input(*task.key, part, edge, buffer, now)
        if outgoing:
            streams = {
                edge: self.ports.open_output(*task.key, part, edge, window=connections[edge].capacity)
                for edge in part.outputs
            }
            task.writer = PassWriter(self.model.graph, task.message.node, streams)

    def poll(self, now: float) -> None:
        """Move the streams, and end the tasks that are late or whose streams contradict themselves."""
        for message in self.peers_in.receive_all():
            if self.sockets.is_mine(message):
                self.ports.take(message, now)
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
        """Give a task its turn if it has anything to compute. One that makes items of data alone begins when those that
        are kept have left room: they are of runs that go on without it."""
        waits = task.is_source and task.begun_at is None and not self.ports.has_room
        if task.key not in self.ready and not waits and task.look(now):
            self.ready[task.key] = task

    def step(self, now: float) -> None:
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
                self.send(task, piece, final=False)
            return True
        over = task.put_down()
        if task.is_report_due(over, now):
            self.link.send(task.report(over))
        if over:
            self.finish(task)
        return False

    def finish(self, task: OpenTask) -> None:
        """End a task of which everything is computed. Its items are kept for another attempt until the run ends, since
        the last output may be lost with this worker."""
        if task.writer is not None:
            task.writer.finish()
        self.send(task, b"", final=True)
        self.end(task.key, time.monotonic(), finished=False)

    def send(self, task: OpenTask, data: bytes, *, final: bool) -> None:
        """Send an output under its number, unless it is delivered."""
        number = task.outputs
        task.outputs += 1
        if number < task.message.delivered and not final:
            return
        queued = None if task.said else task.queue_seconds
        task.said = True
        node = self.node
        self.link.send(
            NodeOutput(
                *task.address,
                max(number, task.message.delivered),
                node.kind,
                data,
                final,
                node.sample_rate,
                sum(task.consumed.values()),
                queued,
            )
        )

    def end(self, key: tuple[str, int], now: float, *, finished: bool) -> None:
        """Remove a task in any state; an unknown one is no error."""
        self.ready.pop(key, None)
        task = self.tasks.pop(key, None)
        if task is not None:
            self.ports.close(*key, finished, now)
            task.times.scheduled = task.begun_at
            self.link.times.ended(task.message.sender, *key, task.arrived, task.times)

    def fail(self, task: OpenTask, failure: Failure, now: float) -> None:
        self.end(task.key, now, finished=False)
        self.link.refuse(task.message, failure)

    def drop(self, failure: Failure | None, proxy: str | None, now: float) -> int:
        """End all tasks: a model of several stages has one proxy."""
        dropped = list(self.tasks.values())
        for task in dropped:
            if failure is None:
                self.end(task.key, now, finished=True)
            else:
                self.fail(task, failure, now)
        if failure is None:
            self.ports.release_all()
        return len(dropped)

    def outlook(self) -> Outlook:
        has_work, patience = bool(self.ready), self.ports.patience
        longest = 0.0 if has_work else min(BEAT, BEAT if patience is None else patience)
        return Outlook(has_work, not self.tasks and self.ports.is_idle, longest)

    def load(self, link: ProxyLink) -> HeartbeatLoad:
        waiting = len(self.tasks)
        counters = {**link.told.counters(), **self.ports.counters()}
        return HeartbeatLoad(0, waiting, max(0, SEATS - waiting), 0, counters, self.ports.gauges())


def introduction(sockets: WorkerSockets, node: StageNode, kernels: str | None, endpoint: str) -> Hello:
    """Return what the worker registers with. It has no KV cache: a block stands for one task, block 0 for none."""
    config = sockets.config
    return Hello(
        sockets.incarnation, SCHEMA, config.name, ROLE, os.getpid(), config.device, config.served_model_name,
        node.identity, "", endpoint, 1, SEATS + 1, SEATS, MOST_INPUT, config.step_size.tokens, kernels=kernels,
        node=config.node,
    )  # fmt: skip


def make_node_worker(
    config: WorkerConfig,
    model: GraphModel,
    node: StageNode,
    report: Reporter,
    pipe: CommandPipe | None = None,
    guard: PackedGuard | None = None,
    kernels: str | None = None,
) -> WorkerLoop:
    sockets = WorkerSockets(config)
    with sockets.opening():
        if guard is not None:
            guard.begin(sockets.closing, sockets.failures)
        return WorkerLoop(NodeWorker(sockets, model, node, kernels), report, pipe)


def failure_of(error: PontilError) -> Failure:
    """Return what the proxy is told: a client's mistake with its status, anything else as a worker's fault."""
    return Failure(str(error), error.status if isinstance(error, RequestError) else 503)
