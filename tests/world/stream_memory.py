# SPDX-License-Identifier: Apache-2.0
"""The memory of a worker's streams, whose pulls take virtual time."""

from typing import Any

from copying import EventConnector

from pontil.runtime.stages.streams.stream_memory import StreamMemory
from pontil.runtime.stages.worker import stream_ports
from pontil.runtime.stages.worker.stream_ports import StreamPorts
from pontil.runtime.worker.links.worker_sockets import WorkerSockets

# An answer has a pull for each item: so much fewer of them are slow than of pulls of KV.
SLOW_ITEMS = 0.1


class StreamConnector(EventConnector):
    """The connector of a worker's streams."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.slow_share *= SLOW_ITEMS


def connect_streams_in_the_world() -> None:
    """Have the items of streams be pulled as the world's KV blocks are."""

    def opened(sockets: WorkerSockets, storage: Any, guard: Any) -> EventConnector:
        return StreamConnector(storage, sockets.poller.wake, sockets.failures, guard)

    untyped: Any = stream_ports
    untyped.open_connector = opened


def connectors_of(ports: StreamPorts) -> list[EventConnector]:
    return [ports.connector] if isinstance(ports.connector, EventConnector) else []


def left_in(ports: StreamPorts) -> dict[str, int]:
    """Return what the streams of a worker hold: nothing, once there are no runs."""
    memory: StreamMemory = ports.memory
    return {
        "outputs": len(ports.sender.streams),
        "inputs": len(ports.receiver.streams),
        "item pulls": len(ports.puller.open),
        "item blocks": memory.capacity - len(memory.free),
        "kept bytes": memory.kept,
    }
