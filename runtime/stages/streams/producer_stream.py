# SPDX-License-Identifier: Apache-2.0
"""The producer's end of one edge of one run: keeps every item until the run ends, and sends each to the worker that
hosts its walk (E4)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pontil.runtime.stages.streams.item_form import DTYPES, grant_name, is_index
from pontil.runtime.stages.streams.stream_memory import StagedItem, StreamMemory
from pontil.runtime.stages.streams.subscription import REPEAT, SentItem, Subscription
from pontil.runtime.wire.messages import (
    Message,
    ProducerDone,
    StreamAck,
    StreamItem,
    StreamMark,
    Subscribe,
    Subscribed,
    Unsubscribe,
)

ENDED = "the stage that reads the edge has ended"
LET_GO = "its items were let go of, as an earlier attempt had ended"
# Most positions that the items of one edge may be ahead of their consumer, where the edge does not say.
WINDOW = 512


@dataclass(frozen=True, slots=True)
class KeptItem:
    walk: str
    shape: tuple[int, ...]
    dtype: str
    data: bytes


@dataclass(frozen=True, slots=True)
class SenderPort:
    """A worker's means to send items: its incarnation, its memory, the descriptor of that memory, and the sending of
    messages to consumers."""

    incarnation: str
    memory: StreamMemory
    descriptor: Callable[[], dict[str, Any]]
    post: Callable[[str, Message], None]


@dataclass(slots=True, eq=False)
class ProducerStream:
    """One edge of one run, opened by StreamPorts for an attempt. This worker makes the items from `first_index` on; the
    consumer may be `window` items behind.

    Blocks are used only for items on their way; items beyond the window of their reader wait in `kept`. With a reason
    for which it is `gone`, nothing is kept any more. `ended_at` is the time when the request ended, `heard` when a
    consumer was last heard of.
    """

    port: SenderPort
    run: str
    edge: str
    secret: str = field(repr=False)
    request_id: str
    attempt: int
    first_index: int = 0
    window: int = WINDOW
    kept: dict[int, KeptItem] = field(default_factory=dict)
    marks: dict[int, str] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    emitted: int = 0
    # The index behind the last item that the present attempt made: it may be behind those that are kept.
    made: int = 0
    last_index: int | None = None
    handed_over_at: int | None = None
    gone: str | None = None
    # The index before which everything was consumed, as last known, and the attempt of the consumer that said so.
    position: int = 0
    reader: int = -1
    ended_at: float | None = None
    heard: float = 0.0

    @property
    def consumed(self) -> int:
        """The index before which everything is consumed. Of a consumer's workers, the one that computes now knows best,
        and one that handed over knew more than the next one has said so far; a later attempt begins again."""
        if self.subscriptions:
            reader = max(subscription.attempt for subscription in self.subscriptions.values())
            known = self.position if reader == self.reader else 0
            self.position = max(known, *(subscription.consumed for subscription in self.subscriptions.values()))
            self.reader = reader
        return self.position

    @property
    def is_full(self) -> bool:
        """Return whether the consumer is so far behind that nothing may be emitted now (E13)."""
        return self.gone is None and self.made - self.consumed >= self.window

    @property
    def ahead(self) -> int:
        """The items that were emitted and not consumed."""
        return max(0, self.emitted - self.consumed)

    @property
    def sends(self) -> bool:
        """Return whether items are on their way, or wait for it."""
        return any(subscription.sent for subscription in self.subscriptions.values())

    def emit(self, index: int, walk: str | None, array: NDArray[Any]) -> None:
        """Keep an item, and send it as soon as its consumer takes it. An item without a walk is for every subscriber.
        An item that an earlier attempt made is the same one, and changes nothing."""
        assert str(array.dtype) in DTYPES and array.nbytes <= self.port.memory.most_item_bytes, "no item of a stream"
        self.emitted, self.made = max(self.emitted, index + 1), max(self.made, index + 1)
        if self.gone is not None or index in self.kept:
            return
        self.kept[index] = KeptItem(walk or "", array.shape, str(array.dtype), np.ascontiguousarray(array).tobytes())
        self.port.memory.kept += array.nbytes
        for subscription in self.subscriptions.values():
            subscription.cursor = min(subscription.cursor, index)

    def mark(self, index: int, walk: str) -> None:
        """Tell all consumers, as their windows reach it, that items from `index` on are for `walk` or a later one."""
        if self.marks.get(index) != walk:
            self.marks[index] = walk
            for subscription in self.subscriptions.values():
                subscription.marked = min(subscription.marked, index)
                self.send_marks(subscription)

    def hand_over(self, index: int) -> None:
        """Tell all consumers that another worker makes the items from `index` on: the prompt is handed over (E14)."""
        self.handed_over_at = index
        for peer in self.subscriptions:
            self.port.post(peer, self.subscribed(peer))

    def begin_at(self, index: int) -> None:
        """Tell all consumers that this worker makes the items from `index` on, if it was to begin later: the prompt is
        computed here after all."""
        if index < self.first_index:
            self.first_index = self.made = index
            for peer in self.subscriptions:
                self.port.post(peer, self.subscribed(peer))

    def finish(self, last_index: int) -> None:
        """Tell all consumers, also later ones, that there are no items from `last_index` on (E12)."""
        self.last_index = last_index
        self.tell(self.done())

    def done(self) -> ProducerDone:
        assert self.last_index is not None
        return ProducerDone(self.port.incarnation, "", self.run, self.edge, self.attempt, self.last_index)

    def tell(self, message: StreamMark | ProducerDone) -> None:
        for peer in self.subscriptions:
            self.send(peer, message)

    def send(self, peer: str, message: StreamMark | ProducerDone) -> None:
        self.port.post(peer, replace(message, receiver=peer))

    def subscribe(self, message: Subscribe, now: float) -> str | None:
        """Begin, renew or replace a subscription; its secret was checked. Return why it is refused, if it is."""
        if self.gone == ENDED and message.attempt > self.reader:
            # The end was lost on its way to the proxy: the next that makes the items is to keep them.
            self.gone = LET_GO
        if self.gone is not None:
            return self.gone
        if not (is_index(message.next_index) and is_index(message.consumed)):
            return "it asks for an index that is none"
        if any(subscription.attempt > message.attempt for subscription in self.subscriptions.values()):
            return "a later attempt reads the edge"
        for one in [
            subscription for subscription in self.subscriptions.values() if subscription.is_replaced_by(message)
        ]:
            self.drop(one.peer)
        known = self.subscriptions.get(message.sender)
        if known is None:
            known = self.subscriptions[message.sender] = Subscription.of(message, now)
        self.heard = known.heard = now
        self.free(known.arrived((), message.next_index, message.consumed))
        self.free(known.damaged(message.damaged))
        self.port.post(message.sender, self.subscribed(message.sender))
        known.marked = known.consumed
        self.send_marks(known)
        if self.last_index is not None:
            self.send(message.sender, self.done())
        return None

    def subscribed(self, peer: str) -> Subscribed:
        own, pool = self.port.incarnation, self.port.descriptor()
        return Subscribed(own, peer, self.run, self.edge, pool, None, self.first_index, self.handed_over_at)

    def acknowledged(self, message: StreamAck, now: float) -> None:
        known = self.subscriptions.get(message.sender)
        if known is not None and known.attempt == message.attempt and is_index(message.next_index):
            self.heard = known.heard = now
            self.free(known.arrived(message.taken, 0, message.next_index))

    def unsubscribed(self, message: Unsubscribe) -> None:
        known = self.subscriptions.get(message.sender)
        if known is not None and known.attempt == message.attempt:
            self.drop(message.sender)
            if message.finished:
                self.discard(ENDED)

    def drop(self, peer: str) -> None:
        """End a subscription. An unknown one is no error."""
        known = self.subscriptions.get(peer)
        if known is not None:
            self.position = self.consumed
            del self.subscriptions[peer]
            self.free(one.staged for one in known.sent.values())

    def free(self, items: Iterable[StagedItem]) -> None:
        for staged in items:
            self.port.memory.unstage(staged)

    def discard(self, reason: str) -> None:
        """Let go of everything: nobody will read it."""
        self.gone = reason
        for peer in list(self.subscriptions):
            self.drop(peer)
        self.port.memory.kept -= sum(len(one.data) for one in self.kept.values())
        self.kept.clear()

    def reach(self, one: Subscription) -> int:
        """The index behind the window of a subscriber. One that takes the items of all walks has a buffer of one
        window, however far another worker of its stage is (E13)."""
        return (self.consumed if one.walks else one.consumed) + self.window

    def send_marks(self, one: Subscription) -> None:
        """Send the marks that the subscriber's window has reached: it has room for no more of them than of items."""
        reach = self.reach(one)
        for index, walk in sorted(self.marks.items()):
            if one.marked <= index <= reach:
                self.send(
                    one.peer, StreamMark(self.port.incarnation, "", self.run, self.edge, self.attempt, index, walk)
                )
                one.marked = index + 1

    def pump(self, now: float) -> None:
        """Send the marks and items for which there is room, each subscriber's in their order."""
        for subscription in self.subscriptions.values():
            if self.marks:
                self.send_marks(subscription)
            limit = min(self.emitted, self.reach(subscription))
            while subscription.cursor < limit and self.send_next(subscription, now):
                subscription.cursor += 1

    def send_next(self, one: Subscription, now: float) -> bool:
        """Send the item at the subscriber's cursor, if it wants it. Return False if there is no room for it."""
        item = self.kept.get(one.cursor)
        if item is None or not one.wants(one.cursor, item.walk):
            return True
        memory = self.port.memory
        if one.sent and one.blocks + memory.blocks_for(len(item.data)) > memory.share:
            return False
        staged = memory.stage(grant_name(self.run, self.edge, one.peer, one.cursor), item.data, self.secret)
        if staged is None:
            return False
        message = StreamItem(
            self.port.incarnation, one.peer, self.run, self.edge, self.attempt, one.cursor, item.walk,
            list(item.shape), item.dtype, staged.epoch, staged.slot, staged.blocks, staged.digests,
        )  # fmt: skip
        one.sent[one.cursor] = SentItem(staged, message, now)
        self.port.post(one.peer, message)
        return True

    def tick(self, now: float, lease: float) -> None:
        """Send again what was not acknowledged, and end the subscriptions that were silent for a lease."""
        for subscription in list(self.subscriptions.values()):
            if now - subscription.heard >= lease:
                self.drop(subscription.peer)
                continue
            for sent in subscription.sent.values():
                if now - sent.sent_at >= REPEAT:
                    sent.sent_at = now
                    self.port.post(subscription.peer, sent.message)
            # One that is silent may not know that it has a subscription.
            if now - max(subscription.heard, subscription.asked) >= lease / 4:
                subscription.asked = now
                self.port.post(subscription.peer, self.subscribed(subscription.peer))
