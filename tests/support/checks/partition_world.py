# SPDX-License-Identifier: Apache-2.0
"""The state of partition_model.py as an immutable value, and the real objects that are made from it for one step."""

from typing import NamedTuple

from partition_state import PARTITION_ENDS, PartitionRun, PartitionState, PartitionTable
from speech_graph import stream

from pontil.runtime.stages.graph.policies import Fixed
from pontil.runtime.stages.graph.stream_buffer import Chunk, StreamBuffer, StreamPosition, TaggedItem

LAST = "decode"
SPLIT = (frozenset({"prefill", "last"}), frozenset({"decode"}))
TOGETHER = (frozenset({"prefill", "last", "decode"}),)
CONNECTION = stream(Fixed(1), capacity=8)
# The input that the pass of "last" gives to the first pass of "decode".
FRAME = "frame"


class GraphMessage(NamedTuple):
    """A message to a consumer's worker. `life`: the consumer was replayed so often when it was sent."""

    to: int
    kind: str
    life: int
    at: int = 0
    walk: str = ""
    position: StreamPosition = StreamPosition()
    kv: tuple[int, ...] = ()
    parked: tuple[tuple[str, tuple[object, ...]], ...] = ()


class RunState(NamedTuple):
    """A PartitionRun. `told` and `freed` count these actions."""

    state: PartitionState = PartitionState.IDLE
    walk: str | None = None
    ingested: int = 0
    inputs: tuple[object, ...] = ()
    parked: tuple[tuple[str, tuple[object, ...]], ...] = ()
    told: int = 0
    freed: int = 0

    @property
    def is_over(self) -> bool:
        return self.state in PARTITION_ENDS


class BufferState(NamedTuple):
    """A StreamBuffer."""

    items: frozenset[tuple[int, str | None]] = frozenset()
    markers: frozenset[tuple[int, str | None]] = frozenset()
    ends_at: int | None = None
    taken: StreamPosition = StreamPosition()
    ran: StreamPosition = StreamPosition()


class ProducerState(NamedTuple):
    run: RunState = RunState()
    emitted: int = 0


class ConsumerState(NamedTuple):
    """The consumer on one worker. `held` are chunks of passes that run, `kv` the items that have run."""

    run: RunState = RunState()
    buffer: BufferState = BufferState()
    held: tuple[Chunk, ...] = ()
    kv: tuple[int, ...] = ()
    dead: bool = False


class GraphWorld(NamedTuple):
    """The whole state. `delivered` items have reached the client, and `finals` final outputs. `lost`: something has to
    be replayed. `left`: the client has left, so that everything ends."""

    producer: ProducerState
    consumers: tuple[ConsumerState, ...]
    wire: frozenset[GraphMessage] = frozenset()
    life: int = 0
    delivered: int = 0
    finals: int = 0
    lost: bool = False
    left: bool = False
    crashes: int = 1
    losses: int = 1
    repeats: int = 1
    leaves: int = 1

    def put(self, number: int, consumer: ConsumerState) -> "GraphWorld":
        return self._replace(consumers=(*self.consumers[:number], consumer, *self.consumers[number + 1 :]))

    def send(self, *messages: GraphMessage) -> "GraphWorld":
        return self._replace(wire=self.wire | set(messages))

    @property
    def is_complete(self) -> bool:
        return self.finals > 0


class RecordingRun:
    """A PartitionRun that was made from a RunState, and notes of what its callbacks were asked for."""

    def __init__(self, state: RunState, table: PartitionTable) -> None:
        self.run = PartitionRun(self, table)
        self.run.state, self.run.walk, self.run.ingested = state.state, state.walk, state.ingested
        self.run.inputs = list(state.inputs)
        self.run.parked = {walk: list(found) for walk, found in state.parked}
        self.told, self.freed = state.told, state.freed
        self.ingested = list[object]()
        self.handed_over = False

    def frozen(self) -> RunState:
        run = self.run
        parked = tuple(sorted((walk, tuple(found)) for walk, found in run.parked.items()))
        return RunState(run.state, run.walk, run.ingested, tuple(run.inputs), parked, self.told, self.freed)

    def ingest(self, taken: object) -> None:
        self.ingested.append(taken)

    def cancel_passes(self) -> None:
        pass

    def send_handoff(self, parked: dict[str, list[object]]) -> None:
        self.handed_over = True

    def tell_consumers(self) -> None:
        self.told += 1

    def free(self) -> None:
        self.freed += 1


def thawed(state: BufferState, hosted: frozenset[str], kind: type[StreamBuffer]) -> StreamBuffer:
    buffer = kind(CONNECTION, LAST, hosted)
    buffer.items = {index: TaggedItem(walk, index) for index, walk in state.items}
    buffer.markers = dict(state.markers)
    buffer.ends_at, buffer.taken, buffer.ran = state.ends_at, state.taken, state.ran
    return buffer


def frozen(buffer: StreamBuffer) -> BufferState:
    return BufferState(
        frozenset((index, item.walk) for index, item in buffer.items.items()),
        frozenset(buffer.markers.items()),
        buffer.ends_at,
        buffer.taken,
        buffer.ran,
    )
