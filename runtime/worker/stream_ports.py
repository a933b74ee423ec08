# SPDX-License-Identifier: Apache-2.0
"""A worker's ends of the streams of all its runs: memory, connector, sockets, producers and consumers."""

from dataclasses import dataclass

from pontil.runtime.config import WorkerConfig
from pontil.runtime.graph.part import GraphPart
from pontil.runtime.graph.stream_buffer import StreamBuffer
from pontil.runtime.streams.consumer_stream import ConsumerStream
from pontil.runtime.streams.producer_stream import ProducerStream
from pontil.runtime.threads import ThreadFailures
from pontil.runtime.wire.context import Context
from pontil.runtime.wire.keys import Keys
from pontil.runtime.wire.messages import Inputs, Message
from pontil.runtime.wire.sockets import PeerServer, Poller


@dataclass(frozen=True, slots=True)
class StarvedInput:
    """An input that waits for items of a producer that is lost; the worker sends it to the proxy as Starved."""

    request_id: str
    attempt: int
    edge: str
    next_index: int
    lost: str


class StreamPorts:
    """All of a worker's streams. Nothing here blocks; the poller is woken when a pull has ended. The calls in order:

    1. In each turn, `take` for every message from the proxy and from `peers_in` (it returns whether the message was
       about streams), then `poll`, then `tick`, each with the turn's `now`; then drain `starved` and `failed`.
    2. When a request of a part begins: `open_output` for each of `part.outputs`, `open_input` for each of
       `part.inputs`.
    3. In a pass: schedule it only while no output `is_full`; then `output.emit(index, walk, array)` for each item, and
       `output.mark(index, walk)` for each marker. After a pass that took a chunk: `buffer.record(chunk)`, and
       `input.consumed()`.
    4. When the partition ends (E12): `output.finish(last_index)`.
    5. When the request ends in any way: `close(request_id, attempt)`. Its inputs end; the items of its outputs are
       kept until `release(run)`, which the proxy's Release calls. When the proxy is another one: `release_all`.
    """

    def __init__(
        self, config: WorkerConfig, incarnation: str, context: Context, poller: Poller, peers_in: PeerServer,
        keys: Keys | None = None, failures: ThreadFailures | None = None,
    ) -> None:  # fmt: skip
        self.starved: list[StarvedInput] = []
        # Requests whose input contradicts itself: (request, attempt, reason).
        self.failed: list[tuple[str, int, str]] = []
        raise NotImplementedError

    def take(self, message: Message, now: float) -> bool:
        """Handle a message from a consumer's worker, or Inputs or Release from the proxy. Return whether it was for
        this."""
        raise NotImplementedError

    def poll(self, now: float) -> None:
        """Handle messages of producers' workers and pulls that ended, and send what is due."""
        raise NotImplementedError

    def tick(self, now: float) -> None:
        """Check all deadlines."""
        raise NotImplementedError

    def open_output(
        self, request_id: str, attempt: int, part: GraphPart, edge: str, first_index: int = 0, window: int = 512
    ) -> ProducerStream:
        """Open the producer's end of an edge. This worker makes the items from `first_index` on (more than 0 where a
        prefill worker made those before it). An earlier attempt's stream on this worker goes on as this one's: items
        that it has are not stored twice."""
        raise NotImplementedError

    def open_input(
        self, request_id: str, attempt: int, part: GraphPart, edge: str, buffer: StreamBuffer, now: float
    ) -> ConsumerStream:
        """Open the consumer's end of an edge: items from `buffer.keep_from` on are put into the buffer, as read-only
        numpy arrays."""
        raise NotImplementedError

    def inputs(self, message: Inputs, now: float) -> None:
        """Take the items of an edge from other producers from now on."""
        raise NotImplementedError

    def close(self, request_id: str, attempt: int, now: float) -> None:
        """End a request's inputs; its outputs' items are kept. Unknown requests are no error."""
        raise NotImplementedError

    def release(self, run: str) -> None:
        """Let go of every item that is kept for a run."""
        raise NotImplementedError

    def release_all(self) -> None:
        raise NotImplementedError

    def seats_for(self, item_bytes: int, positions: int) -> int:
        """Return how many runs can keep all their items here, if each makes at most `positions` items of this size."""
        raise NotImplementedError

    @property
    def idle(self) -> bool:
        """Whether no input is open, no item is kept and nothing waits to be sent."""
        raise NotImplementedError

    def counters(self) -> dict[str, int]:
        """Return figures for the heartbeat: stream_items, stream_bytes, stream_free_blocks."""
        raise NotImplementedError

    def close_all(self) -> None:
        """Stop copying and close the sockets."""
        raise NotImplementedError
