# SPDX-License-Identifier: Apache-2.0
"""A model of three stages, and one for media, without tensors: each stage makes numbers of the items that it takes, so
that one that is lost, or taken twice, changes all that follows."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pontil.runtime.stages.graph.catalog import (
    PREFILL,
    TALKER_DECODE,
    TALKER_LAST_PREFILL,
    TALKER_PREFILL,
    GraphModel,
    GraphNode,
    code2wav_walk,
    partition,
    talker_walk,
    text_partition,
)
from pontil.runtime.stages.graph.connection import Connection
from pontil.runtime.stages.graph.graph import Graph
from pontil.runtime.stages.graph.part import GraphPart
from pontil.runtime.stages.graph.policies import Fixed
from pontil.runtime.stages.graph.walk import Loop, Node
from pontil.runtime.wire.messages import NodeTask, Submit

RATE = 8000
# Frames of the Talker after the Thinker's last item.
TAIL = 2
THINKER_END, TALKER_END = 2, 1
GRAPH = GraphModel(
    name="stages",
    nodes=(
        GraphNode("thinker", "engine", prefill_walks=(PREFILL,)),
        GraphNode(
            "talker", "engine", prefill_walks=(TALKER_PREFILL, TALKER_LAST_PREFILL), codes=3, max_tokens=99
        ),
        GraphNode("wav", "node"),
        GraphNode("hears", "node"),
        GraphNode("eyes", "node", optional=True),
    ),
    first="thinker",
    graph=Graph(
        "stages",
        (
            partition("hears", ("hear", Node("hears")), driven=False),
            text_partition("thinker"),
            partition(
                "talker", (TALKER_PREFILL, Node("talker")), (TALKER_LAST_PREFILL, Node("talker")),
                (TALKER_DECODE, Loop(Node("talker"))), terminal=TALKER_DECODE,
            ),
            partition("wav", ("code2wav_chunk", Node("wav"))),
            partition("eyes", ("see", Node("eyes")), driven=False),
        ),
        (
            Connection("thinker", "talker", "states", Fixed(1), talker_walk, 64),
            Connection("talker", "wav", "codes", Fixed(1), code2wav_walk, 64),
            Connection("eyes", "thinker", "media", Fixed(1)),
        ),
    ),
    audio="wav",
    sample_rate=RATE,
    recognizer="hears",
    audio_needs_states=True,
)  # fmt: skip


def answer_of(prompt: list[int], count: int) -> list[int]:
    """Return the Thinker's answer: `count` ids and its end."""
    return [*(40 + (sum(prompt) + 7 * number) % 50 for number in range(count)), THINKER_END]


def frame_of(number: int, items: list[int], rows: int) -> list[int]:
    """Return the Talker's frame: of every item of the prompt, and of those of the answer up to its own."""
    total = sum((place + 1) * item for place, item in enumerate(items[: rows + number + 1]))
    return [100 + (total + number) % 97, number, total % 1000]


def frames_of(items: list[int], rows: int) -> list[list[int]]:
    """Return all frames for a Thinker's items, of which the first `rows` are the prompt's."""
    count = len(items) - rows + TAIL
    return [*(frame_of(number, items, rows) for number in range(count)), [TALKER_END, 0, 0]]


def sound_of(frames: list[list[int]]) -> bytes:
    return b"".join(struct.pack("<3h", *frame) for frame in frames)


@dataclass
class Kept:
    """The items of one stream that a worker keeps: `last` is their number once the stream has ended. Those from `stop`
    on are another worker's."""

    items: dict[int, Any] = field(default_factory=dict)
    last: int | None = None
    stop: int | None = None

    def covers(self, index: int) -> bool:
        """Return whether an item is here, or will be."""
        return min(self.items, default=index) <= index and (self.stop is None or index < self.stop)


@dataclass(eq=False)
class StageJob:
    """An attempt at a worker, which says one `choice` after the other. `taken` has the items that it took; it `waits`
    until then before it complains again."""

    task: Submit | NodeTask
    part: GraphPart
    producers: list[str] = field(default_factory=list)
    taken: dict[int, Any] = field(default_factory=dict)
    last: int | None = None
    waits: int = 0
    choice: int = 0
    steps: Iterator[bool] = iter(())

    @property
    def is_replay(self) -> bool:
        return self.part.positions is not None

    @property
    def rows(self) -> int:
        """The length of the run's prompt."""
        assert isinstance(self.task, Submit)
        return self.part.positions or len(self.task.prompt)

    @property
    def choices(self) -> list[int]:
        """The choices that go on here, the first of which says what all have in common."""
        assert isinstance(self.task, Submit)
        return self.task.choices or list(range(self.task.sampling["n"]))

    @property
    def given(self) -> list[int]:
        """The ids of the choice that are known."""
        assert isinstance(self.task, Submit)
        return list(self.part.answer) or (self.task.delivered[self.choice] if self.task.delivered else [])

    @property
    def first(self) -> int:
        """The number of the first id that this worker makes."""
        assert isinstance(self.task, Submit)
        return max(len(self.given), 1) if self.task.phase == "decode" else len(self.given)

    def has_frame(self, number: int) -> bool:
        return self.is_all or len(self.items) > self.rows + number

    def frame(self, number: int) -> list[int]:
        items = self.items
        return frames_of(items, self.rows)[number] if self.is_all else frame_of(number, items, self.rows)

    @property
    def edge(self) -> str | None:
        """The stream that it takes. Media are of the prompt: nobody needs their rows who gets its keys."""
        is_given = isinstance(self.task, Submit) and self.task.phase == "decode" and self.part.node == "thinker"
        return None if is_given else next(iter(self.part.inputs), None)

    @property
    def items(self) -> list[Any]:
        """The items from the first one on without a gap."""
        found = list[Any]()
        while len(found) in self.taken:
            found.append(self.taken[len(found)])
        return found

    @property
    def is_all(self) -> bool:
        return self.last is not None and len(self.items) >= self.last
