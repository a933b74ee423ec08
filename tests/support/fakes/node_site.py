# SPDX-License-Identifier: Apache-2.0
"""A real worker of a node, workers that make its items, and a proxy, stepped in turns in one thread."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from workers import DEADLINE, ScriptedProxy, Silent

from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.stages.graph.catalog import TINY_SPEECH, GraphModel, edge_name
from pontil.runtime.stages.graph.part import GraphPart, Producer
from pontil.runtime.stages.graph.policies import ChunkPolicy
from pontil.runtime.stages.nodes.node import StageNode
from pontil.runtime.stages.streams.producer_stream import ProducerStream
from pontil.runtime.stages.worker.node_worker import NodeWorker
from pontil.runtime.stages.worker.stream_ports import StreamPorts
from pontil.runtime.wire.messages import Cancel, Inputs, Message, NodeOutput, NodeTask, PassDone, Starved
from pontil.runtime.worker.links.worker_sockets import WorkerSockets
from pontil.runtime.worker.process.loop import WorkerLoop

RUN, SECRET = "r", "ab" * 16


def node_config(folder: Path, name: str, **settings: Any) -> WorkerConfig:
    return WorkerConfig(**{
        "name": name, "role": "node", "device": "cpu", "cores": (0,), "model": "m", "served_model_name": "m",
        "control": f"ipc://{folder}/control", "peer_endpoint": "tcp://127.0.0.1:*", "kv_connector": "tcp",
        "stream_memory": 1 << 20, "graph": "tiny-speech", "node": "speaker", **settings,
    })  # fmt: skip


class NodeProxy(ScriptedProxy):
    """A scripted proxy that also keeps what workers of stages say."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.outputs: dict[tuple[str, int], list[NodeOutput]] = {}
        self.ends: dict[str, PassDone] = {}
        self.starved: list[Starved] = []
        # Outputs in the order of their arrival.
        self.told: list[NodeOutput] = []

    def hear(self, message: Message) -> None:
        if isinstance(message, NodeOutput):
            self.told.append(message)
            self.outputs.setdefault((message.request_id, message.attempt), []).append(message)
        elif isinstance(message, PassDone):
            assert not any(one.final for one in self.outputs.get((message.request_id, message.attempt), ()))
            self.ends[message.request_id] = message
        elif isinstance(message, Starved):
            self.starved.append(message)
        else:
            super().hear(message)


class StreamMaker:
    """The producer's end of one edge, as a worker has it."""

    def __init__(self, folder: Path, name: str, edge: str, window: int) -> None:
        self.name, self.edge, self.now = name, edge, 0.0
        self.sockets = WorkerSockets(node_config(folder, name))
        self.sockets.incarnation = name
        self.peers_in = self.sockets.serve_peers()
        self.ports = StreamPorts(self.sockets, self.peers_in)
        self.part = GraphPart(RUN, "llm", SECRET, (edge,))
        self.window = window
        self.made = 0

    def open(self, run: str = RUN) -> ProducerStream:
        part = GraphPart(run, "llm", SECRET, (self.edge,))
        return self.ports.open_output(f"{run}.llm", 0, part, self.edge, window=self.window)

    @property
    def address(self) -> Producer:
        return self.name, self.peers_in.endpoint

    def turn(self) -> None:
        self.now += 0.002
        for message in self.peers_in.receive_all():
            self.ports.take(message, self.now)
        self.ports.poll(self.now)

    def close(self) -> None:
        self.ports.close_all()
        self.peers_in.close()
        self.sockets.context.destroy(0)
        self.sockets.poller.close()


class NodeSite:
    """One worker of a node whose only stream comes from `maker`."""

    def __init__(
        self,
        folder: Path,
        made: StageNode,
        model: GraphModel = TINY_SPEECH,
        kernels: str | None = None,
        **settings: Any,
    ) -> None:
        self.folder, self.model = folder, model
        name = str(settings.get("node", "speaker"))
        self.connection = next((one for one in model.graph.connections if one.target == name), None)
        self.edge = "" if self.connection is None else edge_name(self.connection)
        self.proxy = NodeProxy(folder)
        self.makers: list[StreamMaker] = []
        config = node_config(folder, f"{name}:0", graph=model.name, **settings)
        self.worker = NodeWorker(WorkerSockets(config), model, made, kernels)
        self.loop = WorkerLoop(self.worker, Silent())
        self.loop.tick(0.0)
        self.until(lambda: self.worker.link.proxy is not None)
        self.proxy.underway.count(self.worker.link.sockets)

    def maker(self, name: str = "llm:0") -> StreamMaker:
        assert self.connection is not None
        self.makers.append(StreamMaker(self.folder, name, self.edge, self.connection.capacity))
        return self.makers[-1]

    def turn(self) -> None:
        self.worker.sockets.poller.wake()
        self.loop.turn()
        for maker in self.makers:
            maker.turn()
        self.proxy.hear_all()

    def until(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            self.turn()

    def settle(self, turns: int = 200) -> None:
        for _ in range(turns):
            self.turn()

    def task(self, name: str, attempt: int = 0, **fields: Any) -> NodeTask:
        return NodeTask(
            "proxy",
            self.worker.sockets.incarnation,
            name,
            attempt,
            **{"node": self.worker.sockets.config.node, **fields},
        )

    def ask(self, name: str, attempt: int = 0, **fields: Any) -> None:
        """Send a task."""
        assert self.proxy.server.send(self.task(name, attempt, **fields))

    def ask_at_once(self, *tasks: NodeTask) -> None:
        """Give the worker tasks in one turn."""
        for task in tasks:
            self.loop.hear(task, self.loop.now)

    def join(self, *makers: StreamMaker | Producer, run: str = RUN, attempt: int = 0, **fields: Any) -> str:
        """Send a task that reads a stream; return its name."""
        named = tuple(one.address if isinstance(one, StreamMaker) else one for one in makers)
        part = GraphPart(run, str(self.worker.sockets.config.node), SECRET, inputs={self.edge: named})
        self.ask(f"{run}.speaker", attempt, graph=part.to_wire(), **fields)
        return f"{run}.speaker"

    def rejoin(self, name: str, maker: StreamMaker, attempt: int = 0) -> None:
        """Tell the worker that another one makes the items now."""
        producers = [list(maker.address)]
        assert self.proxy.server.send(
            Inputs("proxy", self.worker.sockets.incarnation, name, attempt, self.edge, producers)
        )  # fmt: skip

    def cancel(self, name: str, attempt: int = 0) -> None:
        assert self.proxy.server.send(Cancel("proxy", self.worker.sockets.incarnation, name, attempt))

    def outputs(self, name: str, attempt: int = 0) -> list[NodeOutput]:
        return self.proxy.outputs.get((name, attempt), [])

    def finish(self, name: str, attempt: int = 0) -> list[NodeOutput]:
        """Return a task's outputs: numbered without a gap, the last one final and no other."""
        self.until(lambda: any(one.final for one in self.outputs(name, attempt)) or name in self.proxy.answers)
        assert name not in self.proxy.answers, self.proxy.answers[name].failures
        self.until(lambda: (name, attempt) not in self.worker.tasks)
        found = self.outputs(name, attempt)
        assert [one.index for one in found] == list(range(found[0].index, found[0].index + len(found)))
        assert [one.final for one in found] == [False] * (len(found) - 1) + [True]
        assert {(one.kind, one.sample_rate) for one in found} == {(self.worker.node.kind, self.worker.node.sample_rate)}
        assert all(one.data for one in found[:-1])
        return found

    def failure(self, name: str) -> Any:
        self.until(lambda: name in self.proxy.answers)
        return self.proxy.answers[name].failures[0]

    @property
    def is_clean(self) -> bool:
        worker = self.worker
        return worker.outlook().is_idle and not worker.ready and not worker.ports.puller.open

    def close(self) -> None:
        self.loop.close()
        for maker in self.makers:
            maker.close()
        self.proxy.close()


@contextmanager
def opened(site: NodeSite) -> Iterator[NodeSite]:
    """Close a site in any case; if all went well nothing is left of any task."""
    try:
        yield site
        site.until(lambda: site.is_clean)
    finally:
        site.close()


def with_policy(policy: ChunkPolicy, capacity: int) -> GraphModel:
    """Return a model whose speaker takes chunks of a policy."""
    graph = TINY_SPEECH.graph
    (connection,) = graph.connections
    return replace(
        TINY_SPEECH, graph=replace(graph, connections=(replace(connection, policy=policy, capacity=capacity),))
    )


def letters(text: bytes) -> NDArray[Any]:
    """Return an item of text."""
    return np.frombuffer(text, np.uint8)
