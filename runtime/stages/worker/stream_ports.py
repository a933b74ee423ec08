# SPDX-License-Identifier: Apache-2.0
"""A worker's ends of the streams of all its runs: memory, connector, sockets, producers and consumers."""

from pontil.runtime.stages.graph.part import GraphPart
from pontil.runtime.stages.graph.stream_buffer import StreamBuffer
from pontil.runtime.stages.streams.consumer_stream import ConsumerStream, FromProducer, ReceiverPort
from pontil.runtime.stages.streams.item_puller import ItemPuller
from pontil.runtime.stages.streams.producer_stream import WINDOW, ProducerStream, SenderPort
from pontil.runtime.stages.streams.stream_memory import BLOCK_BYTES, StreamMemory
from pontil.runtime.stages.streams.stream_receiver import StarvedInput, StreamReceiver
from pontil.runtime.stages.streams.stream_sender import StreamSender
from pontil.runtime.stages.streams.subscription import REPEAT
from pontil.runtime.wire.links.outbox import PATIENCE, Outbox
from pontil.runtime.wire.links.sockets import PeerServer
from pontil.runtime.wire.messages import (
    Inputs,
    Message,
    ProducerDone,
    Release,
    StreamAck,
    StreamItem,
    StreamMark,
    Subscribe,
    Subscribed,
    Unread,
    Unsubscribe,
)
from pontil.runtime.worker.links.connectors import open_connector
from pontil.runtime.worker.links.peer_connections import PeerConnections
from pontil.runtime.worker.links.worker_sockets import WorkerSockets

# Seconds between two looks at the deadlines.
TICK = 0.05
# Seconds after which a connection that no stream needs is closed.
IDLE_CONNECTION = 30.0


class StreamPorts:
    """All of a worker's streams. Nothing here blocks; the poller is woken when a pull has ended. The calls in order:

    1. In each turn, `take` for every message from the proxy and from `peers_in` that was meant for this incarnation (it
       returns whether the message was about streams), then `poll` with the turn's time. Then drain `starved`, of which
       the proxy is told, and `failed`: requests that cannot go on. After a step, `send` lets its items go at once.
    2. When a request of a part begins: `open_output` for each of `part.outputs`, `open_input` for each of
       `part.inputs`. A prefill worker and a decode worker of one stage both open both. `window` is the connection's
       capacity, the item to begin with is the buffer's.
    3. Schedule a pass only while no output `is_full`; then `output.emit(index, walk, array)` for each item, and
       `output.mark(index, walk)` for each marker. After a pass that took a chunk, `buffer.record(chunk)`: the producers
       hear of it with the next `send` or `poll`.
    4. When the partition ends (E12): `output.finish(last_index)`. When its prompt is handed over to a decode worker,
       which makes the items from an index on: `output.hand_over(index)`.
    5. When the request ends in any way: `close(request_id, attempt, finished)`, `finished` if the stage is done and no
       other worker goes on with it. Its inputs end; the items of its outputs are kept until `release(run)`, which the
       proxy's Release calls. When the proxy is another one, `release_all`.
    """

    def __init__(self, sockets: WorkerSockets, peers_in: PeerServer, block_bytes: int = BLOCK_BYTES) -> None:
        config, incarnation, guard = sockets.config, sockets.incarnation, sockets.guard()
        self.memory = StreamMemory(config.stream_memory, block_bytes, None if guard is None else guard.grants)
        self.connector = open_connector(sockets, self.memory.storage, guard)
        self.descriptor = self.connector.register()
        self.outbox = Outbox(lambda peer, message: peers_in.send(message))
        self.peers = PeerConnections(sockets, self.connector)
        self.puller = ItemPuller(self.connector, self.memory, config.deadlines)
        self.sender = StreamSender(
            SenderPort(incarnation, self.memory, lambda: self.descriptor, self.outbox.post), config.deadlines
        )
        self.receiver = StreamReceiver(
            ReceiverPort(incarnation, self.puller, self.peers.tell, self.peers.open, config.deadlines)
        )
        self.incarnation, self.ticked = incarnation, float("-inf")
        # The time when a stream last needed a connection, by its peer.
        self.needed_at: dict[str, float] = {}

    @property
    def starved(self) -> list[StarvedInput]:
        """Inputs that lack items of a lost producer, to be drained."""
        return self.receiver.starved

    @property
    def failed(self) -> list[tuple[str, int, str]]:
        """Requests with an input that contradicts itself, each (request, attempt, reason), to be drained."""
        return self.receiver.failed

    def open_output(
        self, request_id: str, attempt: int, part: GraphPart, edge: str, first_index: int = 0, window: int = WINDOW
    ) -> ProducerStream:
        """Open the producer's end of an edge. This worker makes the items from `first_index` on: more than 0 where a
        prefill worker made those before it. The stream of an earlier attempt on this worker goes on as this one's:
        items that it has are not stored twice."""
        return self.sender.open(request_id, attempt, part.run, edge, part.secret, first_index, window)

    def open_input(
        self,
        request_id: str,
        attempt: int,
        part: GraphPart,
        edge: str,
        buffer: StreamBuffer,
        now: float,
        awaits_handoff: bool = False,
    ) -> ConsumerStream:
        """Open the consumer's end of an edge. Items from `buffer.keep_from` on are put into the buffer, as read-only
        numpy arrays. With `awaits_handoff` (a decode worker) no item counts as missing before the buffer has a
        position."""
        return self.receiver.open(request_id, attempt, part, edge, buffer, now, awaits_handoff)

    def take(self, message: Message, now: float) -> bool:
        """Handle a message from a consumer's worker, or Inputs, Unread or Release from the proxy. Return whether it was
        about streams."""
        if isinstance(message, Subscribe | StreamAck | Unsubscribe):
            self.sender.take(message, now)
        elif isinstance(message, Inputs):
            self.receiver.inputs(message, now)
        elif isinstance(message, Release):
            self.release(message.run)
        elif isinstance(message, Unread):
            self.sender.unread(message.run, message.edge)
        else:
            return False
        return True

    def poll(self, now: float) -> None:
        """Handle messages of producers' workers, pulls that ended, and deadlines; then send."""
        for message in self.peers.receive_all():
            if isinstance(message, Subscribed | StreamItem | StreamMark | ProducerDone):
                self.taken_in(message, now)
        if now - self.ticked >= TICK:
            self.tick(now)
        self.send(now)

    def taken_in(self, message: FromProducer, now: float) -> None:
        """Handle a producer's message, unless it was meant for a predecessor at this address."""
        if message.receiver == self.incarnation:
            self.receiver.take(message, now)

    def send(self, now: float) -> None:
        """Take the items that have arrived, and send the items and acknowledgements that are due."""
        self.receiver.poll(now)
        self.sender.pump(now)

    def tick(self, now: float) -> None:
        """Check all deadlines, and what has become of the peers."""
        self.ticked = now
        for peer in self.outbox.flush(now):
            self.sender.lose(peer)
        for peer in self.peers.flush(now):
            self.lose_producer(peer, f"it took no message for {PATIENCE:.0f} s")
        self.peers.tick(now)
        for peer in self.connector.lost():
            self.lose_producer(peer, "its process has ended")
        self.sender.tick(now)
        self.receiver.tick(now)
        for peer, connection in list(self.peers.items()):
            if self.receiver.needs(peer):
                self.needed_at[peer] = now
            if connection.reason:
                self.lose_producer(peer, connection.reason)
            elif now - self.needed_at.setdefault(peer, now) >= IDLE_CONNECTION:
                self.hang_up(peer)

    def lose_producer(self, peer: str, reason: str) -> None:
        self.receiver.lose(peer, reason)
        self.hang_up(peer)

    def hang_up(self, peer: str) -> None:
        self.peers.hang_up(peer)
        self.needed_at.pop(peer, None)

    def close(self, request_id: str, attempt: int, finished: bool, now: float) -> None:
        """End a request's inputs; its outputs' items are kept. Unknown requests are no error."""
        self.receiver.close(request_id, attempt, finished, now)
        self.sender.end(request_id, attempt, now)

    def release(self, run: str) -> None:
        """Let go of every item that is kept for a run."""
        self.sender.release(run)

    def release_all(self) -> None:
        for run in {run for run, _ in self.sender.streams}:
            self.release(run)

    def seats_for(self, item_bytes: int, positions: int) -> int:
        """Return how many runs can keep all their items here, if each makes at most `positions` items of this size."""
        return self.memory.seats_for(item_bytes, positions)

    @property
    def has_room(self) -> bool:
        """Return whether the items that are kept leave room for more runs."""
        return self.memory.kept <= self.memory.keepable

    @property
    def is_idle(self) -> bool:
        """Return whether no input is open, no item is kept or pulled, and nothing waits to be sent."""
        owed = self.outbox.backlogs or self.peers.outbox.backlogs
        return not (self.sender.streams or self.receiver.streams or self.puller.open or owed)

    @property
    def patience(self) -> float | None:
        """The longest time in seconds until the next `poll`, if nothing arrives; None: without limit."""
        if self.outbox.backlogs or self.peers.outbox.backlogs:
            return TICK
        return REPEAT if self.sender.streams or self.receiver.streams or self.puller.open else None

    def counters(self) -> dict[str, int]:
        """Return what only grows, for the heartbeat: items and bytes that arrived."""
        return {"stream_items": self.puller.items, "stream_bytes": self.puller.bytes}

    def gauges(self) -> dict[str, int]:
        """Return how the streams are now, for the heartbeat."""
        open_outputs = [stream for stream in self.sender.streams.values() if stream.gone is None]
        return {
            "stream_free_blocks": len(self.memory.free),
            "stream_kept_bytes": self.memory.kept,
            "stream_items_ahead": max((open_output.ahead for open_output in open_outputs), default=0),
            "streams_full": sum(open_output.is_full for open_output in open_outputs),
        }

    def close_all(self) -> None:
        """Stop copying and close the sockets."""
        self.connector.close()
        self.peers.close()
