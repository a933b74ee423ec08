# SPDX-License-Identifier: Apache-2.0
"""The consumer's ends of all edges of a worker, by run and edge."""

from collections import OrderedDict
from dataclasses import dataclass, field

from pontil.runtime.stages.graph.part import GraphPart
from pontil.runtime.stages.graph.stream_buffer import StreamBuffer
from pontil.runtime.stages.streams.consumer_stream import ConsumerStream, FromProducer, ReceiverPort
from pontil.runtime.stages.streams.stream_sender import REMEMBERED, EdgeKey
from pontil.runtime.wire.messages import Inputs, Unsubscribe


@dataclass(frozen=True, slots=True)
class StarvedInput:
    """An input that waits for items of a producer that is lost; the worker tells the proxy (Starved)."""

    request_id: str
    attempt: int
    edge: str
    next_index: int
    lost: str


@dataclass(slots=True, eq=False)
class StreamReceiver:
    """Owner of all consumer streams. `starved` and `failed` (request, attempt, reason) are for the worker to drain.
    Ended streams are remembered with their attempt and whether the stage had finished: producers that did not hear of
    it are told again."""

    port: ReceiverPort
    streams: dict[EdgeKey, ConsumerStream] = field(default_factory=dict)
    ended: OrderedDict[EdgeKey, tuple[int, bool]] = field(default_factory=OrderedDict)
    starved: list[StarvedInput] = field(default_factory=list)
    failed: list[tuple[str, int, str]] = field(default_factory=list)

    def open(
        self,
        request_id: str,
        attempt: int,
        part: GraphPart,
        edge: str,
        buffer: StreamBuffer,
        now: float,
        awaits_handoff: bool = False,
    ) -> ConsumerStream:
        """Open an edge for an attempt, instead of an earlier one."""
        key = (part.run, edge)
        if key in self.streams:
            self.end(key, False, now)
        stream = ConsumerStream(
            self.port, request_id, attempt, part.run, edge, part.secret, part.walks, buffer, awaits_handoff
        )
        self.streams[key] = stream
        self.ended.pop(key, None)
        stream.set_producers(part.inputs[edge], now)
        return stream

    def take(self, message: FromProducer, now: float) -> None:
        key = (message.run, message.edge)
        stream = self.streams.get(key)
        if stream is not None:
            stream.take(message, now)
        elif key in self.ended:
            attempt, finished = self.ended[key]
            told = Unsubscribe(self.port.incarnation, message.sender, *key, attempt, finished)
            self.port.post(message.sender, told)

    def inputs(self, message: Inputs, now: float) -> None:
        """Handle the change of an edge's producers. Malformed ones are left out."""
        for stream in self.streams.values():
            named = (stream.request_id, stream.attempt, stream.edge)
            if named == (message.request_id, message.attempt, message.edge):
                stream.set_producers(
                    [(producer[0], producer[1]) for producer in message.producers if len(producer) == 2], now
                )

    def close(self, request_id: str, attempt: int, finished: bool, now: float) -> None:
        """End the streams of a request. Unknown ones are no error."""
        for key, stream in list(self.streams.items()):
            if (stream.request_id, stream.attempt) == (request_id, attempt):
                self.end(key, finished, now)

    def end(self, key: EdgeKey, finished: bool, now: float) -> None:
        stream = self.streams.pop(key)
        stream.close(finished, now)
        self.ended[key] = (stream.attempt, finished)
        if len(self.ended) > REMEMBERED:
            self.ended.popitem(last=False)

    def lose(self, peer: str, reason: str) -> None:
        """Give up a producer for all streams."""
        for stream in self.streams.values():
            stream.lose(peer, reason)

    def needs(self, peer: str) -> bool:
        """Return whether a stream still expects something from a producer."""
        return any(peer in stream.links and stream.links[peer].lost is None for stream in self.streams.values())

    def poll(self, now: float) -> None:
        """Take what has arrived, pull what can be, and acknowledge."""
        self.port.puller.poll(now)
        for stream in self.streams.values():
            stream.pull(now)
            stream.flush(now)

    def tick(self, now: float) -> None:
        for stream in self.streams.values():
            stream.tick(now)
            if stream.fault is not None and not stream.is_failed:
                stream.is_failed = True
                self.failed.append((stream.request_id, stream.attempt, stream.fault))
            for link in stream.starved_of():
                self.starved.append(
                    StarvedInput(stream.request_id, stream.attempt, stream.edge, stream.base, link.peer)
                )
