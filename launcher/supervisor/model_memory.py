# SPDX-License-Identifier: Apache-2.0
"""The memory for several models: their workers are started when they are asked for, and end when others need the
room (docs/decisions/128)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pontil.launcher.child.child import Child
from pontil.launcher.child.child_state import ChildState, DrainState
from pontil.launcher.child.process import ChildProcess
from pontil.launcher.child.reports import UseReport
from pontil.launcher.host.resource_usage import ResourceSample
from pontil.launcher.logs.console import Console
from pontil.launcher.options.worker_roles import GENERATING_ROLES
from pontil.launcher.supervisor.model_moves import MemoryStage, ModelState, model_moves

# Seconds that the last requests of a model have to end before its workers do.
LAST_REQUESTS = 3600.0
# Workers of a model that takes no memory of the host.
UNLIMITED = 1 << 30


@dataclass(slots=True)
class ModelUse:
    """The use of a model at all proxies: `counts` has the requests that there were, by proxy, `open` and `waiting` how
    many there are now. Awake each worker takes `own` bytes, and all of them together `shared`. Since `grows_at` one
    that was added waits for room."""

    own: int = 0
    shared: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    open: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    used_at: float = 0.0
    asked_at: float | None = None
    since: float = 0.0
    stage: MemoryStage = MemoryStage.AWAKE
    grows_at: float | None = None

    def size(self, workers: int) -> int:
        return self.shared + workers * self.own


class ModelMemory:
    """The models of a launch within so many bytes of memory; None: all of them stay. The first model, whose group is
    empty, is one of them."""

    def __init__(self, memory: int | None, console: Console) -> None:
        self.memory, self.console = memory, console
        self.models: dict[str, ModelUse] = {}
        # The bytes that each takes awake with the workers that it has first, and how many of these they share.
        self.sizes: Mapping[str, Sequence[int]] = {}

    @property
    def most_workers(self) -> dict[str, int]:
        """Return how many workers each model may have where the memory is limited: all others sleep then."""
        memory = self.memory or 0
        return {name: (memory - use.shared) // use.own if use.own else UNLIMITED for name, use in self.models.items()}

    def begin(self, children: Sequence[Child], now: float) -> None:
        """Have the models start that fit, in their order; the others sleep."""
        if self.memory is None:
            return
        taken = 0
        for name in dict.fromkeys(child.plan.group for child in children if is_answering(child)):
            workers, (size, shared) = workers_of(name, children), self.sizes.get(name, (0, 0))
            self.models[name] = ModelUse(-((shared - size) // len(workers)), shared, since=now)
            if taken and taken + size > self.memory:
                for child in workers:
                    child.rest()
            else:
                taken += size

    def hear(self, process: ChildProcess, report: UseReport, now: float) -> None:
        """Take what a proxy says of the use of models."""
        for name, use in self.models.items():
            count, is_open, waiting = figures(report.models.get(name))
            if count != use.counts.get(process.name, 0) or is_open or waiting:
                use.used_at = now
            use.counts[process.name], use.open[process.name], use.waiting[process.name] = count, is_open, waiting
            is_asked = any(use.waiting.values())
            use.asked_at = (use.asked_at or now) if is_asked else None

    def advance(self, children: Sequence[Child], usages: Mapping[int, ResourceSample], now: float) -> None:
        """Put models to sleep and wake them, as far as that is due."""
        if self.memory is None:
            return
        for child in children:
            if child.sleeps and child.state is ChildState.READY and child.drain_state is DrainState.DRAINED:
                child.stop()
        states = [
            self.state_of(name, use, workers_of(name, children), usages, now) for name, use in self.models.items()
        ]
        moves = model_moves(states, self.memory, now)
        for child in (child for name in moves.sleep for child in workers_of(name, children)):
            self.console.line(
                f"{child.name} goes to sleep when its last requests have ended: another model needs the room"
            )
            child.go_to_sleep(LAST_REQUESTS)
        for name in (*moves.wake, *moves.stay):
            for child in workers_of(name, children):
                (child.wake if self.models[name].grows_at is None else child.rise)(now)
        for child in (child for name in moves.forget for child in workers_of(name, children)):
            child.memory.close()

    def state_of(
        self, name: str, use: ModelUse, workers: Sequence[Child], usages: Mapping[int, ResourceSample], now: float
    ) -> ModelState:
        stage = stage_of(workers)
        if stage is not use.stage:
            use.stage, use.since = stage, now
        resting = [child for child in workers if child.state is ChildState.ASLEEP]
        grows = bool(resting) and stage in (MemoryStage.AWAKE, MemoryStage.COMING)
        use.grows_at = (use.grows_at or now) if grows else None
        size = use.size(len(workers) - len(resting) if grows else len(workers))
        samples = [
            usages[process.process.pid]
            for child in workers
            for process in child.processes
            if process.process.pid in usages
        ]
        if stage is MemoryStage.ASLEEP:
            held = sum(child.memory.held_bytes for child in workers)
        elif all(child.state is ChildState.GIVEN_UP for child in workers):
            held = 0
        else:
            # Weights are mapped as they are read, and the last sample may be older than that.
            resident = sum(sample.rss_bytes for sample in samples) - use.shared * max(0, len(samples) - 1)
            held = max(size, resident)
        busy = any(use.open.values()) or any(use.waiting.values())
        growth = use.own if grows else 0
        return ModelState(name, stage, size, held, use.used_at, use.since, use.asked_at, busy, growth, use.grows_at)


def figures(value: object) -> tuple[int, int, int]:
    """Return a model's figures in a report. What somebody else has written stands for none."""
    if isinstance(value, list) and len(value) == 3 and all(isinstance(one, int) for one in value):
        return value[0], value[1], value[2]
    return 0, 0, 0


def is_answering(child: Child) -> bool:
    return child.plan.role in GENERATING_ROLES


def workers_of(name: str, children: Sequence[Child]) -> list[Child]:
    return [child for child in children if is_answering(child) and child.plan.group == name]


def stage_of(workers: Sequence[Child]) -> MemoryStage:
    """Return the stage of a model by those of its workers. One that was given up, or is started again, is awake: it is
    nobody's turn to wake it."""
    if any(child.sleeps for child in workers):
        return MemoryStage.GOING
    left = [child for child in workers if child.state is not ChildState.GIVEN_UP]
    if left and all(child.state is ChildState.ASLEEP for child in left):
        return MemoryStage.ASLEEP
    return MemoryStage.COMING if any(child.state is ChildState.STARTING for child in workers) else MemoryStage.AWAKE
