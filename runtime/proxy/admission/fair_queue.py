# SPDX-License-Identifier: Apache-2.0
"""Weighted fair queueing over callers, within priorities, within classes. Pure, and without a clock.

A priority is a place (runtime/foundation/fair_share.py). Within a class the lowest is always served first; classes
have turns by what each is guaranteed (class_turns.py). Within one priority the order is that of start-time fair
queueing (Goyal, Vin and Cheng, 1996): each caller has a virtual time that moves by cost / weight with each of its
items, and the caller whose time is the lowest is next. Two callers that both have items waiting are served in
proportion to their weights, within one item of each; within a caller the order is that of arrival. A cost is an
estimate: once it is known how much an item took, its caller's time is corrected by the difference.

A caller that returns starts at the virtual time of its priority level: it gets no credit for the time it had nothing
waiting, and it still owes the rest of its last item. The level's time is the start of the item popped last, and also
moves by the share that one more caller would have had of it: otherwise a stream of new callers, each with a single
item, could starve a caller that was served once.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from itertools import chain
from typing import Generic, TypeVar

from pontil.runtime.foundation.fair_share import BAND, GUARANTEED, ServiceClass, class_of
from pontil.runtime.proxy.admission.class_turns import ClassTurns
from pontil.runtime.proxy.admission.priority_level import PriorityLevel, QueueEntry

T = TypeVar("T")
# The most priorities with nothing waiting that are remembered.
MOST_QUIET_LEVELS = 16
# The only caller of a queue that is not fair.
EVERYBODY = ""


class FairQueue(Generic[T]):
    """Waiting items, told apart by identity. Conservation: each one pushed leaves by exactly one `pop` or `remove`,
    and comes back with `put_back` after `take_out`. `changes` counts what may have changed them or their order.

    push, pop and remove compare O(log callers) times, and move the pointers of as many callers, or of as many
    priorities, as have something waiting. Without `fair` the order is (priority, arrival) over all callers.
    """

    def __init__(self, fair: bool = True) -> None:
        self.fair = fair
        self.arrivals = self.changes = 0
        self.entries: dict[int, QueueEntry[T]] = {}
        self.levels: dict[int, PriorityLevel[T]] = {}
        # Priorities, ascending: with something waiting, and without.
        self.busy: list[int] = []
        self.quiet: list[int] = []
        self.turns = ClassTurns()

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[T]:
        """Yield items in the order in which they would be popped, if nothing is pushed meanwhile."""
        turns = self.turns.copy()
        busy = {each: self.busy_of(each) for each in ServiceClass}
        waiting = {each: chain.from_iterable(self.levels[place] for place in places) for each, places in busy.items()}
        heads = {each: entry for each in ServiceClass if (entry := next(waiting[each], None)) is not None}
        while heads:
            served = turns.next({each: head.cost for each, head in heads.items()})
            entry = heads[served]
            yield entry.item
            turns.serve(served, entry.cost, heads)
            following = next(waiting[served], None)
            if following is None:
                del heads[served]
            else:
                heads[served] = following

    def __contains__(self, item: object) -> bool:
        return id(item) in self.entries

    def push(
        self, item: T, caller: str, weight: float = 1.0, priority: int = 0, cost: float = 1.0, lane: Hashable = None
    ) -> None:
        """Add an item that is not waiting yet. `cost` is in tokens; weight and cost are above 0. Items of another
        `lane` may be served while those of this one cannot."""
        assert id(item) not in self.entries and 0.0 < cost < float("inf") and 0.0 < weight < float("inf")
        self.arrivals += 1
        self.changes += 1
        caller = caller if self.fair else EVERYBODY
        entry = QueueEntry(item, caller, weight if self.fair else 1.0, priority, cost, self.arrivals, lane)
        self.entries[id(item)] = entry
        self.level_for(priority).push(entry)

    def busy_of(self, service_class: ServiceClass) -> list[int]:
        """Return the priorities of a class with something waiting, ascending."""
        start, end = (bisect_left(self.busy, place) for place in (service_class.first, service_class.first + BAND))
        return self.busy[start:end]

    @property
    def first_places(self) -> dict[ServiceClass, int]:
        """The most urgent priority of each class that has something waiting."""
        places = [bisect_left(self.busy, each.first) for each in ServiceClass]
        firsts = [self.busy[place] for place in dict.fromkeys(places) if place < len(self.busy)]
        return {class_of(first): first for first in firsts}

    @property
    def first(self) -> int:
        """The priority whose turn it is, where something waits."""
        firsts = self.first_places
        if len(firsts) < 2:
            return self.busy[0]
        return firsts[self.turns.next({each: self.levels[place].first.cost for each, place in firsts.items()})]

    @property
    def in_turn(self) -> list[int]:
        """The priorities with something waiting, in the order of their turns."""
        if not self.busy or (first := self.first) == self.busy[0]:
            return self.busy
        own = self.busy_of(class_of(first))
        return own + [priority for priority in self.busy if class_of(priority) is not class_of(first)]

    def peek(self) -> T | None:
        return self.levels[self.first].first.item if self.busy else None

    def heads(self) -> Iterator[T]:
        """Yield the items that may be served next, if those before them cannot be: the first of each caller and lane
        in each priority. Nothing may be changed meanwhile."""
        for priority in self.in_turn:
            for entry in self.levels[priority].heads:
                yield entry.item

    def is_due(self, item: T) -> bool:
        """Return whether an item goes before other classes by what its own is guaranteed."""
        return class_of(self.entries[id(item)].priority) is class_of(self.first) is not min(self.first_places)

    def serve(self, item: T) -> None:
        """Take out an item that is served."""
        self.changes += 1
        entry = self.entries[id(item)]
        self.turns.serve(class_of(entry.priority), entry.cost, self.first_places)
        self.levels[entry.priority].serve(entry)
        self.forget(entry)

    def may_claim(self, item: T) -> bool:
        """Return whether the caller of an item may have others give way for it: those whose turn it is have no less to
        come, by more than their next item, than it has."""
        entry, first = self.entries[id(item)], self.first
        level = self.levels[first]
        return entry.priority == first and (level.backlogs[entry.caller].start <= level.order[0][0] + level.first.turn)

    def correct(self, caller: str, weight: float, priority: int, change: float) -> None:
        """Note that what was served of a caller took so much more than its cost, or less."""
        if not change:
            return
        self.changes += 1
        self.turns.serve(class_of(priority), change, self.first_places)
        if (level := self.levels.get(priority)) is not None:
            level.correct(caller if self.fair else EVERYBODY, change / (weight if self.fair else 1.0))

    def pop(self) -> T:
        """Return the next item, which is served. Raise IndexError where nothing waits."""
        item = self.levels[self.first].first.item
        self.serve(item)
        return item

    def remove(self, item: T) -> bool:
        """Take an item out unserved, at no cost to its caller; return False where it was not waiting."""
        if item not in self:
            return False
        self.take_out(item)
        return True

    def take_out(self, item: T) -> QueueEntry[T]:
        """Take out an item that waits for something else now; return what puts it back."""
        entry = self.entries[id(item)]
        self.changes += 1
        level = self.levels[entry.priority]
        level.take(entry, level.backlogs[entry.caller].start)
        self.forget(entry)
        return entry

    def put_back(self, entry: QueueEntry[T]) -> None:
        """Have an item wait again that was taken out, before what its caller has pushed since it came. Its caller gets
        no credit for the time in which nothing else of it waited."""
        self.changes += 1
        self.entries[id(entry.item)] = entry
        self.level_for(entry.priority).put_back(entry)

    def ahead_of(self, priority: int, caller: str, cost: float = 0.0) -> float:
        """Return the cost of what would be served before an item that came now, if nothing else came after it.

        An upper bound within its class: exact without `fair`, and for the caller's own and more urgent items; for every
        other caller with two items or more waiting at this priority it may count one too many. O(callers). The turn of
        an item comes at the virtual time at which it begins, so it depends on neither its own weight nor its own cost.
        Of the classes before its own no more counts than goes first until its class is owed that much and this `cost`,
        of those behind it what they are owed by then.
        """
        own_class, ahead = class_of(priority), dict.fromkeys(ServiceClass, 0.0)
        for level_key in self.busy:
            if class_of(level_key) is not own_class or level_key < priority:
                ahead[class_of(level_key)] += self.levels[level_key].cost
        level = self.levels.get(priority)
        own = ahead[own_class] + (0.0 if level is None else level.ahead_of(caller if self.fair else EVERYBODY))
        first = own + sum(ahead[each] for each in ServiceClass if each < own_class)
        if own_class in GUARANTEED:
            first = max(own, min(first, (own + cost) / GUARANTEED[own_class]))
        behind = [each for each in ServiceClass if each > own_class and ahead[each]]
        rest = 1.0 - sum(GUARANTEED[each] for each in behind)
        owed = {each: self.turns.owed.get(each, 0.0) + GUARANTEED[each] * first for each in behind}
        return first + sum(min(ahead[each], owed[each] / rest) for each in behind)

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
