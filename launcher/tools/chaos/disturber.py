# SPDX-License-Identifier: Apache-2.0
"""Carries a plan of faults out: each at its time, or as soon after that as nobody else of its role is disturbed."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pontil.launcher.control.control_client import ControlReply
from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.tools.chaos.disk_fill import DiskFill
from pontil.launcher.tools.chaos.fault_plan import FILL, GREED, KILL, PAUSES, PROXY, PlannedFault
from pontil.launcher.tools.chaos.greedy_caller import GreedyCaller
from pontil.launcher.tools.chaos.launch_facts import ChildFacts, ExitFacts, LaunchFacts, converse, facts_of
from pontil.launcher.tools.chaos.launch_rest import EffectCounts, grown

# Seconds between two looks at a launch that is to become whole, and the longest wait for that.
LOOK_EVERY, WHOLE_WITHIN = 0.2, 180.0
# Seconds between two looks for room that was freed on a full disk.
FILL_EVERY = 0.1

# Asks the server for its counts of what faults cause, by name and then by series.
Effects = Callable[[], Awaitable[EffectCounts]]


@dataclass(slots=True)
class FaultRecord:
    """A fault that was carried out: when it began, was undone, and the launch was whole again, in seconds of the
    monotonic clock. `survived` says that the process did; `effects` are the counts in between, `problem` what went
    wrong with the trial itself."""

    planned: PlannedFault
    begun: float = 0.0
    ended: float = 0.0
    recovered: float = 0.0
    survived: bool = True
    effects: dict[str, int] = field(default_factory=dict)
    problem: str | None = None

    @property
    def took_place(self) -> bool:
        return self.begun > 0.0


class Disturber:
    """The faults of one run, and the exits of all children from the time `since` on: the supervisor forgets old
    ones. `greedy` is the caller of those that need a second one."""

    def __init__(self, folder: Path, effects: Effects, since: float, greedy: GreedyCaller | None = None) -> None:
        self.folder, self.effects, self.greedy = folder, effects, greedy
        self.since = since
        self.exits: list[ExitFacts] = []
        self.records: list[FaultRecord] = []
        # One fault begins at a time: each looks at what the others have begun.
        self.turn = asyncio.Lock()

    @property
    def under_way(self) -> list[PlannedFault]:
        return [record.planned for record in self.records if record.took_place and not record.recovered]

    async def run(self, plan: Sequence[PlannedFault], began: float) -> None:
        """Carry out the whole plan, whose times count from `began`; one that is late still comes some time after the
        one before. Raises LaunchError if the launch has ended."""
        running, earliest = list[asyncio.Task[None]](), began
        try:
            for planned_fault in plan:
                await asyncio.sleep(max(earliest, began + planned_fault.at) - time.monotonic())
                running.append(asyncio.create_task(self.one(planned_fault)))
                if not overlapping(planned_fault, plan):
                    await asyncio.gather(*running)
                    earliest = time.monotonic() + PAUSES[0]
            await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()

    async def one(self, planned_fault: PlannedFault) -> None:
        record = FaultRecord(planned_fault)
        self.records.append(record)
        before = await self.effects()
        try:
            if planned_fault.variant == FILL:
                await self.fill(record)
            elif planned_fault.variant == GREED:
                await self.greed(record)
            else:
                await self.disturb(record)
        except OSError as error:
            record.problem = f"{planned_fault.target} could not be filled: {error.strerror or error}"
        record.recovered = time.monotonic()
        await self.collect_exits()
        record.effects = grown(before, await self.effects())

    async def collect_exits(self) -> None:
        """Take the exits that are new."""
        exits = (await facts_of(self.folder, self.since)).exits
        self.exits += [exit_facts for exit_facts in exits if exit_facts not in self.exits]
        self.since = max([self.since, *(exit_facts.at for exit_facts in exits)])

    async def fill(self, record: FaultRecord) -> None:
        with DiskFill(record.planned.target) as file:
            record.begun = time.monotonic()
            until = record.begun + record.planned.seconds
            while time.monotonic() < until:
                await asyncio.to_thread(file.top_up)
                await asyncio.sleep(FILL_EVERY)
        record.ended = time.monotonic()

    async def greed(self, record: FaultRecord) -> None:
        assert self.greedy is not None, "a plan has greed where there are two callers"
        async with self.greedy.asking() as greed_record:
            record.begun = time.monotonic()
            await asyncio.sleep(record.planned.seconds)
        record.ended, record.problem = time.monotonic(), greed_record.problem
        if record.problem:
            record.begun = 0.0

    async def disturb(self, record: FaultRecord) -> None:
        planned_fault = record.planned
        async with self.turn:
            before = await self.whole(planned_fault)
            if before is None:
                record.problem = (
                    f"{planned_fault.target} had no turn within {WHOLE_WITHIN:.0f} s: the launch was not whole"
                )
                return
            record.begun = time.monotonic()
            request = asyncio.create_task(converse(self.folder, request_of(planned_fault)))
            await self.begun(request, planned_fault.target)
        reply = await request
        record.ended = time.monotonic()
        if reply.code:
            record.begun, record.problem = 0.0, f"{planned_fault.target} was not disturbed: {reply.text}"
            return
        record.begun, record.survived = reply.facts["begun"], reply.facts["survived"] and planned_fault.variant != KILL
        starts = next(child.starts for child in before.children if child.name == planned_fault.target)
        await self.wait_until_back(record, starts)

    async def begun(self, request: "asyncio.Task[ControlReply]", name: str) -> None:
        """Wait until the supervisor shows the process as disturbed, or has answered."""
        while not request.done():
            child = (await facts_of(self.folder)).child(name)
            if child is None or child.disturbed:
                return
            await asyncio.sleep(LOOK_EVERY)

    async def whole(self, planned_fault: PlannedFault) -> LaunchFacts | None:
        """Wait until a fault may begin; return the facts then, None if that takes too long."""
        deadline = time.monotonic() + WHOLE_WITHIN
        while time.monotonic() < deadline:
            facts = await facts_of(self.folder)
            if may_begin(planned_fault, facts):
                return facts
            await asyncio.sleep(LOOK_EVERY)
        return None

    async def wait_until_back(self, record: FaultRecord, starts: int) -> None:
        """Wait until the target serves again: as another process, if the fault ended the one before."""
        name, deadline = record.planned.target, time.monotonic() + WHOLE_WITHIN
        least = starts + (not record.survived)
        while time.monotonic() < deadline:
            child = (await facts_of(self.folder)).child(name)
            if child is None or child.given_up:
                record.problem = f"{name} did not come back: it was given up"
                return
            if child.ready and child.starts >= least:
                return
            await asyncio.sleep(LOOK_EVERY)
        record.problem = f"{name} did not come back within {WHOLE_WITHIN:.0f} s"


def request_of(planned_fault: PlannedFault) -> dict[str, Any]:
    return {
        "command": "chaos",
        "fault": planned_fault.fault,
        "worker": planned_fault.target,
        "rank": planned_fault.rank,
        "seconds": planned_fault.seconds,
    }


def may_begin(planned_fault: PlannedFault, facts: LaunchFacts) -> bool:
    """Return whether the target is whole, nobody else of its role is disturbed or starting, and somebody else serves.
    Raises LaunchError if it is gone for good."""
    target = facts.child(planned_fault.target)
    if target is None or target.given_up:
        raise LaunchError(f"{planned_fault.target} is gone from the launch: it was given up or removed")
    whole = {child.name for child in facts.children if child.ready and not child.disturbed}
    alike = [child for child in facts.children if stands_in(child, target)]
    peers = [child for child in alike if child.role == planned_fault.role]
    other_names = {child.name for child in alike} - {planned_fault.target}
    return all(child.name in whole for child in peers) and bool(whole & other_names)


def stands_in(child: ChildFacts, target: ChildFacts) -> bool:
    """Return whether a child does the work of this one: both proxies, or both workers of one group."""
    return child.group == target.group and (child.role == PROXY) == (target.role == PROXY)


def overlapping(planned_fault: PlannedFault, plan: Sequence[PlannedFault]) -> bool:
    """Return whether the next fault of the plan is to begin before this one has ended."""
    after = plan[plan.index(planned_fault) + 1 :][:1]
    return bool(after) and after[0].at < planned_fault.at + max(planned_fault.seconds, 1.0)
