# SPDX-License-Identifier: Apache-2.0
"""Tasks that begin after the chunks whose outputs are delivered."""

import numpy as np
import pytest

from pontil.runtime.stages.graph.connection import Connection
from pontil.runtime.stages.graph.graph import Graph
from pontil.runtime.stages.graph.partition import Authority, GraphPartition
from pontil.runtime.stages.graph.policies import Fixed
from pontil.runtime.stages.graph.stream_buffer import StreamBuffer
from pontil.runtime.stages.graph.walk import Node, Parallel, Sequential, Walk, WalkPart
from pontil.runtime.stages.nodes.node import NOTHING, NodeInput, Pieces, WalkValues
from pontil.runtime.stages.streams.pass_writer import PassWriter
from pontil.runtime.stages.worker.open_task import OpenTask
from pontil.runtime.wire.messages import NodeTask

EDGE = "llm/n/text"
WALKS = tuple(Walk(name, Node("n")) for name in "abc")
CIRCLE = GraphPartition("n", ("n",), WALKS, initial="a", transitions={"a": "b", "b": "c", "c": "b"})
DRIVEN = GraphPartition("n", ("n",), WALKS[:1], Authority.PRODUCER_TRIGGERED)
# Items, and as many of them in a chunk.
COUNT, EACH = 11, 2


class WalkTeller:
    """A NodeRun that makes one output of each chunk: its walk and its items."""

    def feed(self, given: NodeInput) -> Pieces:
        yield given.walk.encode() + b"".join(item.tobytes() for item in given.of("text")[0])
        return NOTHING


def run_all(partition: GraphPartition, outputs: int) -> tuple[OpenTask, list[bytes | None]]:
    """Run a task that begins after so many outputs; return it with those that it made."""
    connection = Connection("llm", "n", "text", Fixed(EACH))
    buffer = StreamBuffer(connection, partition.last_walk)
    task = OpenTask("w", NodeTask("p", "w", "r", 0, "n"), 0.0, WalkTeller(), partition, {EDGE: buffer})
    if outputs:
        task.skip(outputs)
    made = list[bytes | None]()
    for index in range(task.buffers[EDGE].next_index, COUNT):
        buffer.put(index, partition.last_walk, np.array([index], np.uint8))
    buffer.end(COUNT)
    while task.look(0.0):
        piece, over = task.compute(0.0)
        made += [] if over else [piece]
        if over and task.put_down():
            return task, made
    raise AssertionError("the task does not end")


@pytest.mark.parametrize("partition", [CIRCLE, DRIVEN], ids=["state machine", "driven"])
@pytest.mark.parametrize("outputs", range(1, COUNT // EACH + 1))
def test_a_task_that_begins_later_goes_on_in_the_same_walks(partition: GraphPartition, outputs: int) -> None:  # E1
    whole, all_of_it = run_all(partition, 0)
    later, rest = run_all(partition, outputs)
    assert rest == all_of_it[outputs:]
    assert later.report(True) == whole.report(True)


class Counter:
    """A NodeRun that makes three items of what its task was given."""

    def __init__(self) -> None:
        self.left = 3

    def feed(self, given: NodeInput) -> Pieces:
        yield None
        self.left -= 1
        return WalkValues({"rows": np.full(2, self.left, np.uint8)}, goes_on=self.left > 0)


@pytest.mark.parametrize("body", [Node("n"), Sequential((Node("n"),)), Parallel((Node("n"),))], ids=str)
def test_a_task_without_streams_has_passes_as_long_as_it_asks_for_them(body: WalkPart) -> None:
    part = GraphPartition("n", ("n",), (Walk("a", body),), initial="a")
    taker = GraphPartition("t", ("t",), (Walk("b", Node("t")),), initial="b")
    writer = PassWriter(Graph("g", (part, taker), (Connection("n", "t", "rows", Fixed(1)),)), "n", {})
    task = OpenTask("w", NodeTask("p", "w", "r", 0, "n"), 0.0, Counter(), part, writer=writer)
    assert task.is_source
    for last in (False, False, True):
        assert task.look(0.0) and task.compute(0.0) == (None, False) and task.compute(0.0) == (None, True)
        assert task.put_down() == last
    report = task.report(True)
    assert (report.passes, report.produced, report.token_counts) == (3, {"n/t/rows": 3}, {"n/t/rows": 6})
    assert task.is_report_due(True, 0.0), "the proxy sees the stage advance"


def test_passes_are_reported_a_few_times_a_second_and_the_last_one_always() -> None:  # E5
    task, _ = run_all(CIRCLE, 0)
    assert [tenth for tenth in range(10) if task.is_report_due(False, tenth / 10)] == [3, 6, 9]
    assert task.is_report_due(True, 0.9)


def test_only_a_task_whose_chunks_follow_from_their_number_can_begin_later() -> None:
    driven = GraphPartition("n", ("n",), WALKS, Authority.PRODUCER_TRIGGERED, terminal="c")
    assert [one.has_known_walks for one in (CIRCLE, DRIVEN, driven)] == [True, True, False]
