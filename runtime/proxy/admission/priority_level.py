# SPDX-License-Identifier: Apache-2.0
"""The callers that wait at one priority, by start-time fair queueing (fair_queue.py)."""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import takewhile
from operator import attrgetter
from typing import Generic, TypeVar

T = TypeVar("T")
# The most callers in each priority whose last item is not yet paid for that are remembered. Forgetting one gives it at
# most one item too much.
MOST_DEBTS = 1024
by_arrival = attrgetter("arrival")


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

    def put_back(self, entry: QueueEntry[T]) -> None:
        """Add an entry that was taken out, before those that came later."""
        self.add(entry)
        for line in (self.entries, self.lanes[entry.lane]):
            earlier = [*takewhile(lambda arrival: arrival < entry.arrival, line), entry.arrival]
            for arrival in reversed(earlier):
                line.move_to_end(arrival, last=False)

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

    def put_back(self, entry: QueueEntry[T]) -> None:
        """Add an entry that was taken out, at its place among those of its caller."""
        backlog = self.backlogs.get(entry.caller)
        if backlog is None:
            self.push(entry)
            return
        self.step_out(backlog)
        backlog.put_back(entry)
        self.line_up(backlog)
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

    def correct(self, caller: str, turn: float) -> None:
        """Move the virtual time of a caller, as what it was served took so much more, or less. One that has nothing
        waiting saves nothing up."""
        backlog = self.backlogs.get(caller)
        if backlog is None:
            self.owe(caller, max(self.time, self.debts.pop(caller, 0.0)) + turn)
            return
        self.step_out(backlog)
        backlog.start += turn
        self.line_up(backlog)

    def go_on(self, caller: str, backlog: CallerBacklog[T]) -> None:
        """Queue the rest of a backlog whose head is gone, or remember its caller's debt."""
        if backlog.entries:
            self.line_up(backlog)
            return
        del self.backlogs[caller]
        self.owe(caller, backlog.start)
        if not self.backlogs:
            # Reset the sums of an empty level, so that rounding errors do not stay in them.
            self.cost = self.weight = 0.0

    def owe(self, caller: str, until: float) -> None:
        if until > self.time:
            self.debts[caller] = until
            debts = [(name, owed) for name, owed in self.debts.items() if owed > self.time]
            self.debts = dict(debts[-MOST_DEBTS:])

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
