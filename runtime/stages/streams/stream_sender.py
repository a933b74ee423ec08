# SPDX-License-Identifier: Apache-2.0
"""The producer's ends of all edges of a worker, by run and edge; and subscriptions that come before their run."""

import hmac
from collections import OrderedDict
from dataclasses import dataclass, field

from pontil.runtime.config.worker_config import DEADLINES, Deadlines
from pontil.runtime.stages.streams.producer_stream import ENDED, LET_GO, WINDOW, ProducerStream, SenderPort
from pontil.runtime.wire.codec import encode
from pontil.runtime.wire.messages import StreamAck, Subscribe, Subscribed, Unsubscribe

# Subscriptions that may wait for their runs, and ended runs that are remembered.
MOST_EARLY = 4096
# Bytes of a Subscribe that waits.
LONGEST_EARLY = 4096
REMEMBERED = 1024
RELEASED = "the run has ended"
EdgeKey = tuple[str, str]


@dataclass(slots=True)
class EarlySubscribe:
    """A Subscribe whose run has not come to this worker by now."""

    message: Subscribe
    deadline: float


@dataclass(slots=True, eq=False)
class StreamSender:
    """Owner of all producer streams. An item is kept until its run is released, or nobody has asked for the items of an
    ended request for `kv_transfer_timeout`: whoever still needs one then has it computed again."""

    port: SenderPort
    deadlines: Deadlines = DEADLINES
    streams: dict[EdgeKey, ProducerStream] = field(default_factory=dict)
    early: dict[tuple[str, str, str], EarlySubscribe] = field(default_factory=dict)
    released: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def open(
        self,
        request_id: str,
        attempt: int,
        run: str,
        edge: str,
        secret: str,
        first_index: int = 0,
        window: int = WINDOW,
    ) -> ProducerStream:
        """Open an edge for an attempt. The stream of an earlier attempt goes on as this one's, with its items."""
        stream = self.streams.get((run, edge))
        if stream is None or stream.gone not in (None, ENDED):
            stream = ProducerStream(self.port, run, edge, secret, request_id, attempt, first_index, window)
            self.streams[run, edge] = stream
        stream.attempt, stream.request_id, stream.ended_at, stream.made = attempt, request_id, None, 0
        stream.first_index, stream.handed_over_at = min(first_index, stream.first_index), None
        self.released.pop(run, None)
        return stream

    def admit_early(self, now: float) -> None:
        """Subscribe those that came before their runs, and refuse those whose runs do not come."""
        for key, one in list(self.early.items()):
            if key[:2] in self.streams or one.deadline <= now:
                del self.early[key]
                if key[:2] in self.streams:
                    self.subscribe(one.message, now)
                else:
                    self.refuse(one.message, "the run has not come to this worker")

    def take(self, message: Subscribe | StreamAck | Unsubscribe, now: float) -> None:
        """Handle a message of a consumer."""
        if isinstance(message, Subscribe):
            self.subscribe(message, now)
            return
        stream = self.streams.get((message.run, message.edge))
        if isinstance(message, Unsubscribe):
            self.early.pop((message.run, message.edge, message.sender), None)
            if stream is not None:
                stream.unsubscribed(message)
        elif stream is not None:
            stream.acknowledged(message, now)

    def subscribe(self, message: Subscribe, now: float) -> None:
        stream = self.streams.get((message.run, message.edge))
        if stream is None:
            self.wait_for_run(message, now)
            return
        if not hmac.compare_digest(stream.secret.encode(), message.secret.encode()):
            self.refuse(message, "its secret is not that of the run")
            return
        reason = stream.subscribe(message, now)
        if reason is not None:
            self.refuse(message, reason)

    def wait_for_run(self, message: Subscribe, now: float) -> None:
        key = (message.run, message.edge, message.sender)
        if message.run in self.released:
            self.refuse(message, RELEASED)
        elif len(encode(message)) > LONGEST_EARLY:
            self.refuse(message, "it is longer than a subscription can be")
        elif key not in self.early and len(self.early) >= MOST_EARLY:
            self.refuse(message, "too many subscriptions wait for their runs")
        else:
            waits = self.early.get(key)
            deadline = now + self.deadlines.first_byte_timeout if waits is None else waits.deadline
            self.early[key] = EarlySubscribe(message, deadline)
            pool = self.port.descriptor()
            self.port.post(message.sender, Subscribed(self.port.incarnation, message.sender, *key[:2], pool))

    def refuse(self, message: Subscribe, reason: str) -> None:
        refusal = Subscribed(self.port.incarnation, message.sender, message.run, message.edge, reason=reason)
        self.port.post(message.sender, refusal)

    def end(self, request_id: str, attempt: int, now: float) -> None:
        """Record that a request has ended. Its items are kept. Of one that was cancelled the consumers hear that this
        worker makes no more: they would wait for them here, while nobody else has what they miss."""
        for stream in self.streams.values():
            if (stream.request_id, stream.attempt) == (request_id, attempt):
                stream.ended_at = now
                if stream.last_index is None and stream.handed_over_at is None:
                    stream.hand_over(stream.emitted)

    def release(self, run: str) -> None:
        """Let go of every item of a run. Unknown runs are no error."""
        for key in [key for key in self.streams if key[0] == run]:
            self.streams.pop(key).discard(RELEASED)
        for early in [key for key in self.early if key[0] == run]:
            del self.early[early]
        self.released[run] = None
        if len(self.released) > REMEMBERED:
            self.released.popitem(last=False)

    def unread(self, run: str, edge: str) -> None:
        """Let go of the items of an edge whose reader has ended, and of those that come: whoever would have said so
        itself may be gone. Unknown edges are no error."""
        stream = self.streams.get((run, edge))
        if stream is not None:
            stream.discard(LET_GO)

    def lose(self, peer: str) -> None:
        """End all subscriptions of a worker that accepts no messages."""
        for stream in self.streams.values():
            stream.drop(peer)

    def pump(self, now: float) -> None:
        """Send what there is room for. Streams take turns in being the first."""
        self.admit_early(now)
        for stream in self.streams.values():
            stream.pump(now)
        if len(self.streams) > 1:
            first = next(iter(self.streams))
            self.streams[first] = self.streams.pop(first)

    def tick(self, now: float) -> None:
        for stream in list(self.streams.values()):
            stream.tick(now, self.deadlines.kv_lease)
            if stream.gone is None and stream.ended_at is not None:
                waited = now - max(stream.heard, stream.ended_at)
                if waited >= self.deadlines.kv_transfer_timeout:
                    stream.discard(f"its items were not asked for within {self.deadlines.kv_transfer_timeout:g} s")
