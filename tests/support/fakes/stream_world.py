# SPDX-License-Identifier: Apache-2.0
"""Workers with ends of streams in one thread, a clock of their own, and a network that loses, repeats and reorders.

The memory is real; pulls copy from it at once when the test lets them end, and can be spoiled.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pontil.runtime.errors import TransferError
from pontil.runtime.stages.graph.connection import Connection
from pontil.runtime.stages.graph.part import GraphPart
from pontil.runtime.stages.graph.policies import ChunkPolicy, Fixed
from pontil.runtime.stages.graph.stream_buffer import StreamBuffer
from pontil.runtime.stages.streams.consumer_stream import ConsumerStream, ReceiverPort
from pontil.runtime.stages.streams.item_puller import ItemPuller
from pontil.runtime.stages.streams.producer_stream import ProducerStream, SenderPort
from pontil.runtime.stages.streams.stream_memory import StreamMemory
from pontil.runtime.stages.streams.stream_receiver import StreamReceiver
from pontil.runtime.stages.streams.stream_sender import StreamSender
from pontil.runtime.transfer.connector import Pull, PullResult, can_be_read
from pontil.runtime.wire.codec import decode, encode
from pontil.runtime.wire.messages import Message, StreamAck, Subscribe, Unsubscribe

BLOCK = 64
EDGE = "talker/code2wav/codes"
RUN, SECRET = "r", "ab"
Array = NDArray[Any]


def item(index: int, rows: int = 1) -> Array:
    """Return the item of an index, the same from every producer."""
    return np.full((rows, 16), index, dtype=np.int32)


@dataclass
class WorldConnector:
    """A connector whose pulls end when `finish` is called. `spoil` changes what arrives."""

    world: "StreamWorld"
    memory: StreamMemory
    attached: set[str] = field(default_factory=set)
    open: list[Pull] = field(default_factory=list)
    ended: list[Pull] = field(default_factory=list)
    spoil: Callable[[PullResult], PullResult] = lambda result: result
    received: int = 0

    def attach(self, peer: str, descriptor: dict[str, Any]) -> None:
        if descriptor.get("name") != peer:
            raise TransferError("the peer's memory cannot be opened")
        self.attached.add(peer)

    def pull(self, pull: Pull) -> None:
        assert pull.peer in self.attached
        pull.reader = self
        self.open.append(pull)

    def finish(self) -> None:
        for pull in list(self.open):
            self.end(pull, self.spoil(self.copy(pull)))

    def end(self, pull: Pull, result: PullResult) -> None:
        pull.result = result
        self.open.remove(pull)
        self.ended.append(pull)

    def copy(self, pull: Pull) -> PullResult:
        worker = self.world.workers.get(pull.peer)
        if worker is None or not can_be_read(pull.pairs, pull.slot, worker.memory.capacity + 1):
            return PullResult("the peer is gone")
        source, target = worker.memory.storage, self.memory.storage
        for theirs, ours in pull.pairs:
            target.bytes[ours] = source.bytes[theirs]
        digests = target.digests([ours for _, ours in pull.pairs])
        return PullResult(None, int(source.epochs[pull.slot]), 0, 0.0, digests)

    def poll(self) -> list[Pull]:
        ended, self.ended = self.ended, []
        return ended

    def cancel(self, pull: Pull) -> None:
        self.end(pull, PullResult("cancelled"))


class WorldWorker:
    """One worker's ends."""

    def __init__(self, world: "StreamWorld", name: str, total: int) -> None:
        self.world, self.name = world, name
        self.memory = StreamMemory(total, BLOCK)
        self.connector = WorldConnector(world, self.memory)
        self.puller = ItemPuller(self.connector, self.memory)  # type: ignore[arg-type]
        self.sender = StreamSender(SenderPort(name, self.memory, lambda: {"name": name}, self.post))
        self.receiver = StreamReceiver(ReceiverPort(name, self.puller, self.post, lambda *told: None))

    def post(self, peer: str, message: Message) -> None:
        assert getattr(message, "receiver", None) == peer and message.sender == self.name
        self.world.network.append(message)

    def take(self, message: Message) -> None:
        if isinstance(message, Subscribe | StreamAck | Unsubscribe):
            self.sender.take(message, self.world.now)
        else:
            self.receiver.take(message, self.world.now)  # type: ignore[arg-type]

    def turn(self) -> None:
        self.sender.tick(self.world.now)
        self.receiver.tick(self.world.now)
        self.receiver.poll(self.world.now)
        self.sender.pump(self.world.now)

    def output(self, attempt: int = 1, first_index: int = 0, window: int = 8) -> ProducerStream:
        return self.sender.open("r.talker", attempt, RUN, EDGE, SECRET, first_index, window)

    def input(self, buffer: StreamBuffer, *producers: str, attempt: int = 1, **more: Any) -> ConsumerStream:
        walks = tuple(more.pop("walks", ()))
        named = tuple((name, f"ipc:///{name}") for name in producers)
        part = GraphPart(RUN, "code2wav", more.pop("secret", SECRET), inputs={EDGE: named}, walks=walks)
        return self.receiver.open("r.code2wav", attempt, part, EDGE, buffer, self.world.now, **more)

    @property
    def is_clean(self) -> bool:
        """Return whether all blocks, slots and bytes are free."""
        memory = self.memory
        return len(set(memory.free)) == memory.capacity and memory.kept == 0 and len(set(memory.slots)) == 4094


@dataclass
class StreamWorld:
    """The clock, the workers by name, and the messages that were sent and not delivered."""

    now: float = 0.0
    workers: dict[str, WorldWorker] = field(default_factory=dict)
    network: list[Message] = field(default_factory=list)
    # A change of each message on its way: to nothing, itself or others.
    change: Callable[[Message], Sequence[Message]] = lambda message: (message,)
    delivered: list[Message] = field(default_factory=list)

    def worker(self, name: str, total: int = 1 << 16) -> WorldWorker:
        self.workers[name] = WorldWorker(self, name, total)
        return self.workers[name]

    def deliver(self, place: int = 0) -> None:
        """Deliver one message, by way of its bytes. Messages to a worker that is gone are lost."""
        message = self.network.pop(place)
        worker = self.workers.get(getattr(message, "receiver", ""))
        self.delivered.append(message)
        if worker is not None:
            for one in self.change(message):
                worker.take(decode(encode(one)))

    def turn(self, seconds: float = 0.0) -> None:
        """Let time pass, and let everything happen that follows without more of it."""
        self.now += seconds
        for _ in range(5):
            for worker in self.workers.values():
                worker.turn()
            while self.network:
                self.deliver()
            for worker in self.workers.values():
                worker.connector.finish()

    def settle(self, condition: Callable[[], bool], turns: int = 400) -> None:
        """Let time pass until a condition holds."""
        for _ in range(turns):
            if condition():
                return
            self.turn(0.25)
        raise AssertionError("it did not come true")


def a_buffer(policy: ChunkPolicy | None = None, capacity: int = 8, **more: Any) -> StreamBuffer:
    connection = Connection("talker", "code2wav", "codes", policy=policy or Fixed(1), capacity=capacity)
    return StreamBuffer(connection, **more)


def read(buffer: StreamBuffer) -> list[int]:
    """Consume all chunks that are ready; return the numbers in their items."""
    numbers = list[int]()
    while (chunk := buffer.pop()) is not None:
        for one in chunk.items:
            assert isinstance(one, np.ndarray) and one.dtype == np.int32 and not one.flags.writeable
            assert (one == one[0, 0]).all()
            numbers.append(int(one[0, 0]))
        buffer.record(chunk)
    return numbers


def spoiled(result: PullResult) -> PullResult:
    """Return a result whose bytes are not what was sent."""
    return replace(result, digests=[one ^ 1 for one in result.digests])


def pair(total: int = 1 << 16) -> tuple[StreamWorld, WorldWorker, WorldWorker]:
    """Return a world with a worker for the producer and one for the consumer."""
    world = StreamWorld()
    return world, world.worker("p", total), world.worker("c", total)
