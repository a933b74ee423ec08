# SPDX-License-Identifier: Apache-2.0
"""The ways into this room for a worker: its stage, or the whole worker of one without tokens."""

from pontil.runtime.command_pipe import CommandPipe
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.reporting import Reporter
from pontil.runtime.stages.graph.catalog import GRAPHS
from pontil.runtime.stages.worker.node_assembly import assemble_node
from pontil.runtime.stages.worker.node_worker import make_node_worker
from pontil.runtime.stages.worker.stage_parts import StageParts
from pontil.runtime.stages.worker.stage_side import StageSide
from pontil.runtime.stages.worker.stream_ports import StreamPorts
from pontil.runtime.wire.links.sockets import PeerServer
from pontil.runtime.worker.generate.stage import WorkerStage
from pontil.runtime.worker.links.proxy_links import ProxyLinks
from pontil.runtime.worker.links.worker_sockets import WorkerSockets
from pontil.runtime.worker.process.loop import WorkerLoop
from pontil.runtime.worker.start.assembly import WorkerResources


def open_stage(machine: WorkerResources, link: ProxyLinks, sockets: WorkerSockets, peers_in: PeerServer) -> WorkerStage:
    """Open the streams of a generating worker's stage."""
    graph, node, parts = sockets.config.graph, sockets.config.node, machine.stage
    assert graph is not None and node is not None and isinstance(parts, StageParts)
    model = GRAPHS[graph]
    ports = StreamPorts(sockets, peers_in)
    return StageSide(sockets.incarnation, model, model.node(node), machine, parts, ports, link)


def open_node(config: WorkerConfig, report: Reporter, pipe: CommandPipe | None) -> WorkerLoop:
    """Make a worker without tokens."""
    model, made = assemble_node(config, report)
    return make_node_worker(config, model, made.node, report, pipe, made.guard, made.kernels)
