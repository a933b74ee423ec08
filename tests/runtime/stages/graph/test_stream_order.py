# SPDX-License-Identifier: Apache-2.0
"""Properties of a stream under any order of arrival, with repetitions, take-overs and a split consumer.

The chunks must be those of a plain cut of the whole stream, whatever happened: so each item is consumed once and in
order, no chunk has two walks, no change of walk is lost, and there is one final chunk.
"""

from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st
from random_models import plain_cut
from speech_graph import stream

from pontil.runtime.stages.graph.policies import ChunkPolicy, Fixed, LeftContext, SlidingWindow
from pontil.runtime.stages.graph.stream_buffer import Chunk, StreamBuffer

LAST = "C"
HOSTS = ({"A"}, {"B", "C"})

policies = st.one_of(
    st.builds(Fixed, st.integers(1, 4)),
    st.integers(1, 4).flatmap(lambda window: st.builds(SlidingWindow, st.just(window), st.integers(1, window))),
    st.builds(LeftContext, st.integers(1, 3), st.integers(0, 4), st.lists(st.integers(1, 3), max_size=2).map(tuple)),
)
streams = st.lists(st.tuples(st.sampled_from("ABC"), st.integers(1, 6)), max_size=4).map(
    lambda runs: "".join(walk * count for walk, count in runs)
)


def check(chunks: list[Chunk], walks: str, policy: ChunkPolicy) -> None:
    ran = [(chunk.walk, chunk.items, chunk.context) for chunk in chunks]
    assert ran == [(walk, tuple(new), tuple(context)) for walk, new, context in plain_cut(walks, policy, LAST)]
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    indices = [index for chunk in chunks for index in (chunk.before.index, chunk.after.index)]
    assert indices == sorted(indices)


@dataclass
class StreamWorker:
    """A worker with one buffer. `held` are chunks that it popped and has not run."""

    walks: str
    policy: ChunkPolicy
    hosted: set[str] | None = None
    held: list[Chunk] = field(default_factory=list)
    buffer: StreamBuffer = field(init=False)

    def __post_init__(self) -> None:
        self.buffer = StreamBuffer(stream(self.policy, capacity=64), LAST, self.hosted)

    def deliver(self, kind: str, index: int) -> None:
        if kind == "end":
            self.buffer.end(index)
        elif kind == "marker":
            self.buffer.mark(index, self.walks[index])
        else:
            self.buffer.put(index, self.walks[index], index)

    def pop(self) -> None:
        chunk = self.buffer.pop()
        if chunk is not None:
            self.held.append(chunk)

    def run(self) -> list[Chunk]:
        """Run the oldest chunk that was popped."""
        if not self.held:
            return []
        chunk = self.held.pop(0)
        self.buffer.record(chunk)
        return [chunk]

    def successor(self) -> "StreamWorker":
        """Return a worker that knows the position only. Chunks that have not run are lost with the first."""
        found = StreamWorker(self.walks, self.policy, self.hosted)
        found.buffer.hear(self.buffer.ran)
        return found


def messages(walks: str) -> list[tuple[str, int]]:
    changes = [index for index in range(1, len(walks)) if walks[index] != walks[index - 1]]
    return [("item", index) for index in range(len(walks))] + [("marker", i) for i in changes] + [("end", len(walks))]


@given(streams, policies, st.data())
@example("", Fixed(3), None)
def test_any_order_gives_the_plain_cut(walks: str, policy: ChunkPolicy, data: st.DataObject | None) -> None:  # E10, E11
    worker, ran = StreamWorker(walks, policy), list[Chunk]()
    sent = messages(walks)
    # One worker for all walks needs no markers: the items themselves tell.
    if data is None or data.draw(st.booleans()):
        sent = [message for message in sent if message[0] != "marker"]
    arrivals = sent if data is None else data.draw(st.permutations(sent + data.draw(st.lists(st.sampled_from(sent)))))
    moves = iter([] if data is None else data.draw(st.lists(st.sampled_from("pppprrrtt"), max_size=60)))
    arrived = list[tuple[str, int]]()
    for message in arrivals:
        worker.deliver(*message)
        arrived.append(message)
        for move in moves:
            if move == "p":
                worker.pop()
            elif move == "r":
                ran += worker.run()
            else:
                worker = worker.successor()
                for kind, index in data.draw(st.permutations(arrived)) if data else ():
                    worker.deliver(kind, index)
                    worker.pop()
            if data is not None and data.draw(st.booleans()):
                break
    for _ in range(len(walks) + 2):
        worker.pop()
        ran += worker.run()
    check(ran, walks, policy)
    assert worker.buffer.finished and worker.buffer.pop() is None and not worker.held
    assert worker.buffer.next_index == len(walks)
    for message in sent:
        worker.deliver(*message)
    assert worker.buffer.pop() is None
    assert all(index >= worker.buffer.keep_from for index in worker.buffer.items)
    assert all(index >= len(walks) for index in worker.buffer.markers)


@given(streams, policies, st.data())
def test_a_split_consumer_runs_the_plain_cut_once(walks: str, policy: ChunkPolicy, data: st.DataObject) -> None:
    """Items go to the worker that hosts their walk, markers to that of the walk before; each worker hears how far the
    other is, at any moment. The walk may go back and forth between them."""
    workers = [StreamWorker(walks, policy, hosted) for hosted in HOSTS]
    ran = list[Chunk]()
    routed = [(0, ("end", len(walks))), (1, ("end", len(walks)))]
    for kind, index in messages(walks)[:-1]:
        routed.append((int(walks[index - (kind == "marker")] not in HOSTS[0]), (kind, index)))
    for number, message in data.draw(st.permutations(routed)):
        workers[number].deliver(*message)
        for worker in data.draw(st.permutations(workers)):
            worker.pop()
            ran += worker.run()
        if data.draw(st.booleans()):
            workers[0].buffer.hear(workers[1].buffer.ran)
        if data.draw(st.booleans()):
            workers[1].buffer.hear(workers[0].buffer.ran)
    for _ in range(2 * len(walks) + 2):
        for here, there in ((0, 1), (1, 0)):
            workers[here].buffer.hear(workers[there].buffer.ran)
            workers[here].pop()
            ran += workers[here].run()
    check(ran, walks, policy)
    assert all(worker.buffer.finished for worker in workers)


@given(st.integers(1, 4), st.lists(st.booleans(), max_size=60))
def test_a_producer_that_heeds_its_limit_never_overfills_a_buffer(needed: int, moves: list[bool]) -> None:  # E13
    """And it is never stopped for good: a chunk that waits always fits."""
    buffer, produced = StreamBuffer(stream(Fixed(needed), capacity=needed), "A"), 0
    for emits in moves:
        if emits and produced < buffer.next_index + buffer.capacity:
            buffer.put(produced, "A", produced)
            produced += 1
        chunk = None if emits else buffer.pop()
        if chunk is not None:
            buffer.record(chunk)
        assert produced < buffer.next_index + buffer.capacity or buffer.pop() is not None
        buffer.taken = buffer.ran
