# SPDX-License-Identifier: Apache-2.0
"""Weighted fair queueing over callers, within priorities. Pure, and without a clock.

A lower priority number is always served first. Within one priority the order is that of start-time fair queueing
(Goyal, Vin and Cheng, 1996): each caller has a virtual time that moves by cost / weight with each of its items, and the
caller whose time is the lowest is next. Two callers that both have items waiting are served in proportion to their
weights, within one item of each; within a caller the order is that of arrival.

A caller that returns starts at the virtual time of its priority level: it gets no credit for the time it had nothing
waiting, and it still owes the rest of its last item. The level's time is the start of the item popped last, and also
moves by the share that one more caller would have had of it: otherwise a stream of new callers, each with a single
item, could starve a caller that was served once.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from operator import attrgetter
from typing import Generic, TypeVar

T = TypeVar("T")
# Bounds on the memory of what no longer waits: callers in each priority whose last item is not yet paid for, and
# priorities. Forgetting one gives a caller at most one item too much.
MOST_DEBTS = 1024
MOST_QUIET_LEVELS = 16
by_arrival = attrgetter("arrival")
# The only caller of a queue that is not fair.
EVERYBODY = ""


@dataclass(frozen=True, slots=True)
class QueueEntry(Generic[T]):
    """One waiting item. `arrival` numbers all items ever pushed."""

    item: T
    caller: str
    weight: float
    priority: int
    cost: float
    arrival: int
    lane: Hashable = None

    @property
    def turn(self) -> float:
        """The virtual time by which the item advances its caller."""
        return self.cost / self.weight


@dataclass(slots=True)
class CallerBacklog(Generic[T]):
    """The entries of one caller at one level, at least one while the level has it. `start` is the virtual time at which
    the first of them begins, `cost` and `turns` are sums over all; `most_cost` and `most_weight` are upper bounds.
    `lanes` has the same entries by lane, each in the order of arrival."""

    start: float
    entries: OrderedDict[int, QueueEntry[T]] = field(default_factory=OrderedDict)
    lanes: dict[Hashable, OrderedDict[int, QueueEntry[T]]] = field(default_factory=dict)
    cost: float = 0.0
    turns: float = 0.0
    most_cost: float = 0.0
    most_weight: float = 0.0

    @property
    def head(self) -> QueueEntry[T]:
        return next(iter(self.entries.values()))

    @property
    def heads(self) -> list[QueueEntry[T]]:
        """The first entry of each lane, in the order of arrival."""
        return sorted([next(iter(lane.values())) for lane in self.lanes.values()], key=by_arrival)

    @property
    def end(self) -> float:
        """The virtual time at which one more entry would begin."""
        return self.start + self.turns

    def add(self, entry: QueueEntry[T]) -> None:
        self.entries[entry.arrival] = entry
        self.lanes.setdefault(entry.lane, OrderedDict())[entry.arrival] = entry
        self.cost += entry.cost
        self.turns += entry.turn
        self.most_cost = max(self.most_cost, entry.cost)
        self.most_weight = max(self.most_weight, entry.weight)

    def discard(self, entry: QueueEntry[T]) -> None:
        del self.entries[entry.arrival]
        lane = self.lanes[entry.lane]
        del lane[entry.arrival]
        if not lane:
            del self.lanes[entry.lane]
        self.cost -= entry.cost
        self.turns -= entry.turn

    def cost_until(self, time: float) -> float:
        """Return an upper bound of the cost of the entries that begin at `time` or before: all of them but the last are
        paid for by the virtual time since `start`."""
        if self.start > time:
            return 0.0
        return min(self.cost, (time - self.start) * self.most_weight + self.most_cost)


@dataclass(slots=True)
class PriorityLevel(Generic[T]):
    """The backlogs of one priority; `order` has each of them once, by the start of its head. `debts` are the virtual
    times up to which callers without a backlog were served, beyond `time`."""

    time: float = 0.0
    cost: float = 0.0
    weight: float = 0.0
    backlogs: dict[str, CallerBacklog[T]] = field(default_factory=dict)
    order: list[tuple[float, int, str]] = field(default_factory=list)
    debts: dict[str, float] = field(default_factory=dict)

    def push(self, entry: QueueEntry[T]) -> None:
        backlog = self.backlogs.get(entry.caller)
        if backlog is None:
            backlog = self.backlogs[entry.caller] = CallerBacklog(self.begin(entry.caller))
            self.debts.pop(entry.caller, None)
            backlog.add(entry)
            self.line_up(backlog)
        else:
            backlog.add(entry)
        self.cost += entry.cost

    def begin(self, caller: str) -> float:
        """Return the virtual time at which the next entry of a caller would begin."""
        backlog = self.backlogs.get(caller)
        return max(self.time, self.debts.get(caller, 0.0)) if backlog is None else backlog.end

    @property
    def first(self) -> QueueEntry[T]:
        return self.backlogs[self.order[0][2]].head

    @property
    def heads(self) -> Iterator[QueueEntry[T]]:
        """The first entry of each lane of each caller, in the order in which these have their turns. Nothing may be
        changed meanwhile."""
        for _, _, caller in self.order:
            yield from self.backlogs[caller].heads

    def serve(self, entry: QueueEntry[T]) -> None:
        """Remove an entry that is served, whether it is the first or passes others: its caller pays for it."""
        backlog = self.backlogs[entry.caller]
        self.time = max(backlog.start, self.time + entry.cost / (self.weight + entry.weight))
        self.take(entry, backlog.start + entry.turn)

    def take(self, entry: QueueEntry[T], start: float) -> None:
        """Remove an entry; the next one of its caller begins at `start`."""
        backlog = self.backlogs[entry.caller]
        if backlog.head is not entry and start == backlog.start:
            backlog.discard(entry)
            self.cost -= entry.cost
            return
        self.step_out(backlog)
        backlog.discard(entry)
        self.cost -= entry.cost
        backlog.start = start
        self.go_on(entry.caller, backlog)

    def go_on(self, caller: str, backlog: CallerBacklog[T]) -> None:
        """Queue the rest of a backlog whose head is gone, or remember its caller's debt."""
        if backlog.entries:
            self.line_up(backlog)
            return
        del self.backlogs[caller]
        if backlog.start > self.time:
            self.debts[caller] = backlog.start
        if len(self.debts) > 2 * MOST_DEBTS:
            debts = [(name, until) for name, until in self.debts.items() if until > self.time]
            self.debts = dict(debts[-MOST_DEBTS:])
        if not self.backlogs:
            # Reset the sums of an empty level, so that rounding errors do not stay in them.
            self.cost = self.weight = 0.0

    def line_up(self, backlog: CallerBacklog[T]) -> None:
        head = backlog.head
        insort(self.order, (backlog.start, head.arrival, head.caller))
        self.weight += head.weight

    def step_out(self, backlog: CallerBacklog[T]) -> None:
        head = backlog.head
        del self.order[bisect_left(self.order, (backlog.start, head.arrival, head.caller))]
        self.weight -= head.weight

    def ahead_of(self, caller: str) -> float:
        begin = self.begin(caller)
        other_costs = (backlog.cost_until(begin) for name, backlog in self.backlogs.items() if name != caller)
        own_cost = self.backlogs[caller].cost if caller in self.backlogs else 0.0
        return own_cost + sum(other_costs)

    def __iter__(self) -> Iterator[QueueEntry[T]]:
        """Yield entries in the order of pops, if nothing is pushed meanwhile."""
        waiting = {name: iter(list(backlog.entries.values())) for name, backlog in self.backlogs.items()}
        heads = [(backlog.start, backlog.head.arrival, next(waiting[name])) for name, backlog in self.backlogs.items()]
        heapify(heads)
        while heads:
            start, _, entry = heads[0]
            yield entry
            following = next(waiting[entry.caller], None)
            if following is None:
                heappop(heads)
            else:
                heapreplace(heads, (start + entry.turn, following.arrival, following))


class FairQueue(Generic[T]):
    """Waiting items, told apart by identity. Conservation: each one pushed leaves by exactly one `pop` or `remove`.

    push, pop and remove compare O(log callers) times, and move the pointers of as many callers, or of as many
    priorities, as have something waiting. Without `fair` the order is (priority, arrival) over all callers.
    """

    def __init__(self, fair: bool = True) -> None:
        self.fair = fair
        self.arrivals = 0
        self.entries: dict[int, QueueEntry[T]] = {}
        self.levels: dict[int, PriorityLevel[T]] = {}
        # Priorities, ascending: with something waiting, and without.
        self.busy: list[int] = []
        self.quiet: list[int] = []

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[T]:
        """Yield items in the order in which they would be popped, if nothing is pushed meanwhile."""
        for priority in list(self.busy):
            for entry in self.levels[priority]:
                yield entry.item

    def __contains__(self, item: object) -> bool:
        return id(item) in self.entries

    def push(
        self, item: T, caller: str, weight: float = 1.0, priority: int = 0, cost: float = 1.0, lane: Hashable = None
    ) -> None:
        """Add an item that is not waiting yet. `cost` is in tokens; weight and cost are above 0. Items of another
        `lane` may be served while those of this one cannot."""
        assert id(item) not in self.entries and 0.0 < cost < float("inf") and 0.0 < weight < float("inf")
        self.arrivals += 1
        caller = caller if self.fair else EVERYBODY
        entry = QueueEntry(item, caller, weight if self.fair else 1.0, priority, cost, self.arrivals, lane)
        self.entries[id(item)] = entry
        self.level_for(priority).push(entry)

    def peek(self) -> T | None:
        return self.levels[self.busy[0]].first.item if self.busy else None

    def heads(self) -> Iterator[T]:
        """Yield the items that may be served next, if those before them cannot be: the first of each caller and lane
        in each priority. Nothing may be changed meanwhile."""
        for priority in self.busy:
            for entry in self.levels[priority].heads:
                yield entry.item

    def serve(self, item: T) -> None:
        """Take out an item that is served."""
        entry = self.entries[id(item)]
        self.levels[entry.priority].serve(entry)
        self.forget(entry)

    def pop(self) -> T:
        """Return the next item, which is served. Raise IndexError where nothing waits."""
        item = self.levels[self.busy[0]].first.item
        self.serve(item)
        return item

    def remove(self, item: T) -> bool:
        """Take an item out unserved, at no cost to its caller; return False where it was not waiting."""
        entry = self.entries.get(id(item))
        if entry is None:
            return False
        level = self.levels[entry.priority]
        level.take(entry, level.backlogs[entry.caller].start)
        self.forget(entry)
        return True

    def ahead_of(self, priority: int, caller: str) -> float:
        """Return the cost of what would be served before an item that came now, if nothing else came after it.

        An upper bound: exact without `fair`, and for the caller's own and more urgent items; for every other caller
        with two items or more waiting at this priority it may count one too many. O(callers). The turn of an item
        comes at the virtual time at which it begins, so it depends on neither its own weight nor its own cost.
        """
        more_urgent = sum(self.levels[level_key].cost for level_key in self.busy[: bisect_left(self.busy, priority)])
        level = self.levels.get(priority)
        return more_urgent + (0.0 if level is None else level.ahead_of(caller if self.fair else EVERYBODY))

    def level_for(self, priority: int) -> PriorityLevel[T]:
        """Return the level of a priority, created if needed, to push an entry to it."""
        level = self.levels.get(priority)
        if level is None:
            level = self.levels[priority] = PriorityLevel()
        if not level.backlogs:
            insort(self.busy, priority)
            place = bisect_left(self.quiet, priority)
            if self.quiet[place : place + 1] == [priority]:
                del self.quiet[place]
        return level

    def forget(self, entry: QueueEntry[T]) -> None:
        """Drop an entry that left its level. Of the levels with nothing waiting the most urgent are kept."""
        del self.entries[id(entry.item)]
        if self.levels[entry.priority].backlogs:
            return
        del self.busy[bisect_left(self.busy, entry.priority)]
        insort(self.quiet, entry.priority)
        if len(self.quiet) > MOST_QUIET_LEVELS:
            del self.levels[self.quiet.pop()]
