# SPDX-License-Identifier: Apache-2.0
"""The consumer's end of one edge of one request: subscribes to its producers, pulls the items that they announce, and
puts them into the stream's buffer."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from pontil.runtime.config.worker_config import DEADLINES, Deadlines
from pontil.runtime.errors import TransferError
from pontil.runtime.stages.graph.part import Producer
from pontil.runtime.stages.graph.stream_buffer import StreamBuffer, StreamFault
from pontil.runtime.stages.streams.item_form import is_index, objection
from pontil.runtime.stages.streams.item_puller import ItemPuller
from pontil.runtime.stages.streams.producer_link import REPORT_EVERY, ProducerLink
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

FromProducer = Subscribed | StreamItem | StreamMark | ProducerDone


@dataclass(frozen=True, slots=True)
class ReceiverPort:
    """A worker's means to receive items. `connect` opens a socket to a producer's endpoint, and returns why it cannot,
    if it cannot; `now` is the time of the worker's turn."""

    incarnation: str
    puller: ItemPuller
    post: Callable[[str, Message], None]
    connect: Callable[[str, str, float], str | None]
    deadlines: Deadlines = DEADLINES


@dataclass(slots=True, eq=False)
class ConsumerStream:
    """One edge of one attempt, opened by StreamPorts. `walks` are those that this worker computes, empty for all.

    All items before `base` are here, or are not needed; of those from `base` on, `here` are. Those in `waiting` were
    announced and wait for room, those in `pulling` are pulled. With `awaits_handoff` another worker computes the walks
    before these ones: items do not count as missing before the buffer's position is known. `fault` is why the stream
    cannot go on; `is_failed` once the worker knows.
    """

    port: ReceiverPort
    request_id: str
    attempt: int
    run: str
    edge: str
    secret: str = field(repr=False)
    walks: tuple[str, ...]
    buffer: StreamBuffer
    awaits_handoff: bool = False
    base: int = 0
    last_index: int | None = None
    now: float = 0.0
    fault: str | None = None
    is_failed: bool = False
    here: set[int] = field(default_factory=set)
    waiting: dict[int, StreamItem] = field(default_factory=dict)
    pulling: dict[int, StreamItem] = field(default_factory=dict)
    links: dict[str, ProducerLink] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.base = self.buffer.keep_from

    @property
    def consumed(self) -> int:
        """The index before which all items were consumed; later chunks may still show some of them as context."""
        return self.buffer.next_index

    def set_producers(self, producers: Iterable[Producer], now: float) -> None:
        """Take items from these workers from now on. One that was lost is tried again."""
        self.now, named = now, dict(producers)
        for peer, link in list(self.links.items()):
            if peer not in named or link.lost is not None or link.endpoint != named[peer]:
                self.leave(peer)
        for peer, endpoint in named.items():
            if peer not in self.links:
                link = self.links[peer] = ProducerLink(peer, endpoint, now)
                reason = self.port.connect(peer, endpoint, now)
                if reason is not None:
                    self.lose(peer, reason)

    def leave(self, peer: str, finished: bool = False) -> None:
        """Take nothing more from a producer, and tell it."""
        link = self.links.pop(peer)
        self.forget_items(peer)
        if link.lost is None:
            self.port.post(peer, self.unsubscribe(peer, finished))

    def unsubscribe(self, peer: str, finished: bool) -> Unsubscribe:
        return Unsubscribe(self.port.incarnation, peer, self.run, self.edge, self.attempt, finished)

    def forget_items(self, peer: str) -> None:
        """Forget what a producer announced and has not arrived."""
        self.port.puller.cancel(self, self.now, peer)
        for announced in (self.waiting, self.pulling):
            for index in [index for index, item in announced.items() if item.sender == peer]:
                del announced[index]

    def lose(self, peer: str, reason: str) -> None:
        """Give a producer up: it is gone, refuses or contradicts itself."""
        link = self.links.get(peer)
        if link is not None and link.lost is None:
            link.lost = reason
            self.forget_items(peer)

    def close(self, finished: bool, now: float) -> None:
        """End the stream. With `finished` the stage has ended, and no later attempt will ask for items."""
        self.now = now
        for peer in list(self.links):
            self.leave(peer, finished)

    def take(self, message: FromProducer, now: float) -> None:
        """Handle a message of a producer."""
        self.now = now
        link = self.links.get(message.sender)
        if link is None or link.lost is not None or self.fault is not None:
            return
        try:
            self.handle(message, link)
        except StreamFault as error:
            self.fault = str(error)

    def handle(self, message: FromProducer, link: ProducerLink) -> None:
        if isinstance(message, Subscribed):
            self.answered(message, link)
        elif isinstance(message, StreamItem):
            self.announced(message, link)
        elif isinstance(message, StreamMark):
            if not is_index(message.index):
                self.lose(link.peer, "it sent a change of walk at an index that is none")
            else:
                self.buffer.mark(message.index, message.walk)
        elif not is_index(message.last_index):
            self.lose(link.peer, "it ended the stream at an index that is none")
        else:
            self.buffer.end(message.last_index)
            self.last_index = message.last_index

    def answered(self, message: Subscribed, link: ProducerLink) -> None:
        """Handle the answer to Subscribe."""
        link.answered(self.now)
        if message.reason is not None or message.pool is None:
            self.lose(link.peer, message.reason or "it refused the subscription")
            return
        try:
            self.port.puller.connector.attach(link.peer, message.pool)
        except TransferError as error:
            self.lose(link.peer, str(error))
        else:
            link.is_attached = True
            if link.first_index is None and link.told:
                # It knew nothing of the run when it was told.
                self.acknowledge(link.peer, link)
            link.first_index, link.handed_over_at = message.first_index, message.handed_over_at

    def announced(self, item: StreamItem, link: ProducerLink) -> None:
        """Take an item that can be pulled, unless it is here, on its way, or cannot be."""
        reason = objection(item, self.port.puller.memory)
        if reason is not None:
            self.lose(link.peer, f"it announced an item that cannot be: {reason}")
        elif item.index < self.base or item.index in self.here:
            link.to_ack.add(item.index)
        elif item.index not in self.pulling and len(self.waiting) + len(self.here) <= 2 * self.buffer.capacity:
            # The later message about an item is the one that counts, as long as it is not pulled.
            self.waiting[item.index] = item

    def pull(self, now: float) -> None:
        """Begin to pull what is waiting, as far as there is room. The answer to Subscribe says where items are."""
        self.now = now
        memory = self.port.puller.memory
        held = sum(len(item.block_ids) for item in self.pulling.values())
        for index, item in list(self.waiting.items()):
            if not self.links[item.sender].is_attached:
                continue
            held += len(item.block_ids)
            if (self.pulling and held > memory.share) or not self.port.puller.start(item, self, now):
                return
            del self.waiting[index]
            self.pulling[index] = item

    def pulled(self, item: StreamItem, array: NDArray[Any]) -> None:
        """Take an item that has arrived as it was sent."""
        del self.pulling[item.index]
        self.links[item.sender].good(item.index)
        self.here.add(item.index)
        try:
            self.buffer.put(item.index, item.walk or None, array)
        except StreamFault as error:
            self.fault = str(error)
        self.advance()

    def spoiled(self, item: StreamItem, reason: str) -> None:
        """Ask again for an item that did not arrive as it was sent."""
        del self.pulling[item.index]
        if self.links[item.sender].spoiled(item.index, item.epoch, self.now):
            self.lose(item.sender, f"its items cannot be pulled: {reason}")

    def advance(self) -> None:
        """Move `base` over what is here, and over what the buffer does not need any more."""
        self.awaits_handoff &= self.consumed == 0
        if self.base < self.buffer.keep_from:
            self.base = self.buffer.keep_from
            self.here = {index for index in self.here if index >= self.base}
        while self.base in self.here:
            self.here.remove(self.base)
            self.base += 1

    def flush(self, now: float) -> None:
        """Send acknowledgements, and the position of the buffer if it has moved."""
        self.now = now
        self.advance()
        for peer, link in self.links.items():
            if link.lost is None and (link.to_ack or link.told not in (None, self.consumed)):
                self.acknowledge(peer, link)

    def acknowledge(self, peer: str, link: ProducerLink) -> None:
        taken = sorted(link.to_ack)
        ack = StreamAck(self.port.incarnation, peer, self.run, self.edge, self.attempt, taken, self.consumed)
        self.port.post(peer, ack)
        link.to_ack, link.told = set(), self.consumed

    def tick(self, now: float) -> None:
        """Subscribe, renew subscriptions, and give up producers that do not answer."""
        self.now = now
        for peer, link in self.links.items():
            if link.lost is not None:
                continue
            patience = self.port.deadlines.kv_handshake_timeout
            if link.is_silent(now, patience):
                self.lose(peer, f"it did not answer within {patience:g} s")
            elif now >= link.ask_at:
                self.subscribe(peer, link)

    def subscribe(self, peer: str, link: ProducerLink) -> None:
        link.asked(self.now)
        damaged = [[index, epoch] for index, epoch in link.damaged.items()]
        message = Subscribe(
            self.port.incarnation, peer, self.run, self.edge, self.secret, self.request_id, self.attempt, self.base,
            list(self.walks), damaged, self.consumed,
        )  # fmt: skip
        link.told = self.consumed
        self.port.post(peer, message)

    def starved_of(self) -> list[ProducerLink]:
        """Return the lost producers that are to be reported: the item `base` is missing, and no other producer
        makes it. They are reported again as long as nothing is done about it."""
        due = self.now - REPORT_EVERY
        lost = [link for link in self.links.values() if link.lost is not None and link.reported_at <= due]
        if not lost or self.awaits_handoff or (self.last_index is not None and self.base >= self.last_index):
            return []
        if any(link.makes(self.base) for link in self.links.values()):
            return []
        for link in lost:
            link.reported_at = self.now
        return lost
