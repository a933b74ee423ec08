# SPDX-License-Identifier: Apache-2.0
"""The cores of one machine, which workers, the proxy and the clients share.

A step takes longer while others compute: as much as the profile measured on other cores, and at least twice as long on
its own.
What a host has to do beside is short and wants a core at once, as the system's scheduler gives it to who has slept: one
without work, else one that has such work already, else it holds up a worker. What begins later prolongs steps that run:
their processes are held up.

A worker without a step may lend its cores. A step that borrows some is taken to have them to its end, and what their
owner or the host does there meanwhile prolongs it, as everything does.
"""

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from pontil.runtime.planner.device_profile import CompanyTimes
from pontil.runtime.wire.simulated.processes import WorldProcess
from pontil.runtime.wire.simulated.virtual_time import VirtualWorld

# Kinds of work: steps that only decode, those with prompt tokens, and all that is no step.
DECODE, PROMPT, HOST = "decode", "prompt", "host"
# Seconds that no clock tells apart.
NOTHING = 1e-9


class CoreProcess(WorldProcess):
    """A process whose turn can take longer than it seemed when it began. `late` are the seconds of all delays."""

    late = 0.0

    def hold_up(self, seconds: float) -> None:
        """Have the turn that is under way end so much later, and all that it does at its end."""
        if self.busy_until > self.world.time:
            self.busy_until += seconds
            self.late += seconds

    def acts(self, when: float, work: Callable[[], object]) -> None:
        if when <= self.world.time:
            self.act(when, work)
        else:
            self.world.at(when, self.act_late, when, self.late, work)

    def act_late(self, when: float, late: float, work: Callable[[], object]) -> None:
        if self.late - late > NOTHING:
            when += self.late - late
            self.world.at(when, self.act_late, when, self.late, work)
        else:
            self.act(when, work)

    def fire(self, ticket: int) -> None:
        if ticket == self.ticket and self.due is not None and self.busy_until - self.world.time > NOTHING:
            self.due = None
            self.wake_at(self.busy_until)
        else:
            super().fire(ticket)


@dataclass(slots=True)
class RunningStep:
    """A step of a worker on its cores, and on those of the worker at the place `lender`. By its kind and that of what
    runs beside it, on another core or on its own, it has `lost` such parts of its time; without the lender it loses the
    part `borrowed` of it."""

    process: CoreProcess
    place: int
    cores: frozenset[int]
    lost: Mapping[tuple[str, str, bool], float]
    kind: str
    begins: float
    until: float
    lender: int | None = None
    borrowed: float = 0.0

    def loses(self, other: "RunningStep") -> float:
        """Return the part of its time that it loses to another step."""
        lost = self.lost[self.kind, other.kind, not self.cores.isdisjoint(other.cores)]
        return lost if other.place != self.lender else 1.0 - (1.0 - lost) * (1.0 - self.borrowed)

    def hold_up(self, seconds: float) -> None:
        self.until += seconds
        self.process.hold_up(seconds)


class HostWork:
    """The host's work on one core, as pieces with their begin and end, in order: what is under way, and what is known
    to come. Those that ended are forgotten."""

    def __init__(self) -> None:
        self.pieces = list[tuple[float, float]]()

    def gap(self, begins: float, seconds: float) -> float:
        """Return the first time from this one on at which so many seconds are free."""
        for begin, end in self.pieces:
            if begin >= begins + seconds:
                break
            begins = max(begins, end)
        return begins

    def take(self, begins: float, seconds: float, now: float) -> None:
        if self.pieces and self.pieces[0][1] <= now:
            self.pieces = self.leave(now)
        insort(self.pieces, (begins, begins + seconds))

    def leave(self, now: float) -> list[tuple[float, float]]:
        """Take out what has not ended."""
        left, self.pieces = [one for one in self.pieces if one[1] > now], []
        return left


class OwnCores:
    """Cores enough for everybody: workers have machines of their own, and so have clients."""

    def compute(self, process: CoreProcess, place: int, kind: str, seconds: float, lent: float = 1.0) -> float:
        """Return the seconds of a step that begins now, of the worker of this place, and takes so many alone, and this
        part of them while another worker lends it cores."""
        return seconds

    def serve(self, begins: float, seconds: float) -> float:
        """Return when work of the host ends that can begin at a time and takes so many seconds."""
        return begins + seconds


class SharedCores(OwnCores):
    """So many cores for all. Of each worker it is told how many it has, and what its profile says of company."""

    def __init__(self, world: VirtualWorld, count: int, workers: Sequence[tuple[int, CompanyTimes]]) -> None:
        self.world, self.count = world, count
        firsts = accumulate((each for each, _ in workers), initial=0)
        self.places = [
            (frozenset((first + number) % count for number in range(each)), company.lost())
            for first, (each, company) in zip(firsts, workers, strict=False)
        ]
        self.steps: dict[int, RunningStep] = {}
        self.host = [HostWork() for _ in range(count)]
        # The seconds for which the host's work has held up the steps of each worker: it comes to all alike.
        self.held = [0.0] * len(self.places)
        # A core of several workers is nobody's to lend.
        self.may_lend = sum(each for each, _ in workers) <= count

    def compute(self, process: CoreProcess, place: int, kind: str, seconds: float, lent: float = 1.0) -> float:
        begins = self.world.now()
        cores, lost = self.places[place]
        step = RunningStep(process, place, cores, lost, kind, begins, begins)
        if lent < 1.0 and (lender := self.lender_of(place, begins)) is not None:
            step.lender, step.borrowed, seconds = lender, 1.0 - lent, seconds * lent
        starts = begins + self.wait(cores, begins, seconds)
        step.until = starts + seconds
        for other in self.steps.values():
            # Until it starts, the host's work is beside others, which they have been told of.
            if other.until > starts and other.process is not process:
                mine, theirs = step.loses(other), other.loses(step)
                # Each takes longer for as long as the other does.
                overlap = min((other.until - starts) / (1.0 - theirs), seconds / (1.0 - mine))
                step.until += overlap * mine
                other.hold_up(overlap * theirs)
        self.steps[place] = step
        return step.until - begins

    def lender_of(self, place: int, at: float) -> int | None:
        """Return the place of a worker whose cores nobody borrows: one without a step, or whose step ends first."""
        running = {number: one.until for number, one in self.steps.items() if one.until > at}
        borrowed = {one.lender for number, one in self.steps.items() if number in running and number != place}
        others = [number for number in range(len(self.places)) if number != place and number not in borrowed]
        return min(others, key=lambda number: running.get(number, at), default=None) if self.may_lend else None

    def wait(self, cores: frozenset[int], begins: float, seconds: float) -> float:
        """Return the seconds that a step of so many, which begins on these cores, loses to the host's work there: what
        others have room for moves to them."""
        waits = 0.0
        for core in cores:
            if not self.host[core].pieces:
                continue
            spare = [self.host[other] for other in self.without_steps(begins) if other not in cores]
            lost = 0.0
            for begin, end in self.host[core].leave(begins):
                begin = max(begin, begins)
                other = next((one for one in spare if one.gap(begin, end - begin) <= begin), None)
                if other is None and begin < begins + seconds + lost:
                    lost += end - begin
                (other or self.host[core]).take(begin, end - begin, begins)
            waits = max(waits, lost)
        return waits

    def running(self, at: float) -> list[RunningStep]:
        return [one for one in self.steps.values() if one.begins <= at < one.until]

    def without_steps(self, at: float) -> list[int]:
        used = {core for one in self.running(at) for core in one.cores}
        return [core for core in range(self.count) if core not in used]

    def serve(self, begins: float, seconds: float) -> float:
        if not seconds:
            return begins
        running, victim = self.running(begins), None
        if spare := self.without_steps(begins):
            begins, core = min((self.host[core].gap(begins, seconds), core) for core in spare)
            self.host[core].take(begins, seconds, self.world.time)
            for one in running:
                if one.lender is not None and core in self.places[one.lender][0]:
                    one.hold_up(seconds * one.borrowed)
        elif running:
            victim = min(running, key=lambda one: self.held[one.place])
            victim.hold_up(seconds)
            self.held[victim.place] += seconds
        for one in running:
            if one is not victim:
                one.hold_up(seconds * one.lost[one.kind, HOST, False])
        return begins + seconds
