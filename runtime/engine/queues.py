# SPDX-License-Identifier: Apache-2.0
"""The sequences of one engine by state, each queue in the order of priority, then of arrival."""

from bisect import insort
from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace
from operator import attrgetter, itemgetter

from pontil.runtime.engine.prefixes.cache import PrefixCache
from pontil.runtime.engine.sequences.sequence import Sequence, SequenceState
from pontil.runtime.foundation.fair_share import GUARANTEED, ServiceClass
from pontil.runtime.foundation.seat_counts import SeatCounts

by_order, by_turn, by_place = attrgetter("order"), attrgetter("turn"), itemgetter(0, 1, 2, 3)


# A parked sequence has its seat for the time when its KV is here.
SEATED = (SequenceState.RUNNING, SequenceState.WAITING_FOR_REMOTE_KVS)


class SequenceQueues:
    """Sequences that are `waiting` for admission, `running`, `paused`, and `parked`: admitted, but without their KV,
    which another worker computes. A paused sequence keeps its blocks and has no seat. Conservation: those that run or
    are parked have one seat each, which `seats` counts by caller; of the others those that could have one are in the
    line of their caller, in the order of their turns. A waiting sequence is in none until `prefix` releases it."""

    def __init__(self, max_num_seqs: int, prefix: PrefixCache) -> None:
        self.max_num_seqs, self.prefix = max_num_seqs, prefix
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.parked: list[Sequence] = []
        self.paused: list[Sequence] = []
        self.lines: dict[str, list[Sequence]] = {}
        self.seats = SeatCounts()
        self.arrivals = self.pauses = 0

    @property
    def is_empty(self) -> bool:
        return not (self.running or self.waiting or self.parked or self.paused)

    @property
    def seats_taken(self) -> int:
        return self.seats.taken + self.seats.lent

    @property
    def is_full(self) -> bool:
        """Return whether every seat is taken."""
        return self.seats_taken >= self.max_num_seqs

    def may_seat(self, sequence: Sequence) -> bool:
        """Return whether there is a seat for a sequence, or somebody who is to give one."""
        return not self.is_full or self.newest_above(sequence) is not None

    def free_seat(self, sequence: Sequence) -> None:
        """Have a seat free for a sequence that gets one now."""
        if self.is_full and (above := self.newest_above(sequence)) is not None:
            self.pauses += 1
            self.remove(above)
            above.move(SequenceState.PAUSED)
            # Nobody waits for what it would compute.
            self.prefix.drop(above)
            self.pause(above)

    def resume(self, sequence: Sequence) -> None:
        """Give a paused sequence a seat."""
        self.free_seat(sequence)
        self.remove(sequence)
        sequence.move(SequenceState.RUNNING)
        self.run(sequence)
        self.prefix.claim(sequence)

    def arrive(self, sequence: Sequence) -> None:
        """Give a sequence its place in the order, which it keeps."""
        if not sequence.standing.has_arrived:
            self.arrivals += 1
            sequence.standing.arrival = self.arrivals

    def wait(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=by_turn)
        if self.prefix.prepare(sequence):
            self.line_up(sequence)

    def holds_back(self, sequence: Sequence) -> bool:
        """Return whether a waiting sequence needs what an older one computes. Then it leaves its line until that is
        done."""
        waits = self.prefix.holds_back(sequence)
        if waits:
            self.leave_line(sequence)
        return waits

    def pause(self, sequence: Sequence) -> None:
        insort(self.paused, sequence, key=by_order)
        self.line_up(sequence)

    def run(self, sequence: Sequence) -> None:
        insort(self.running, sequence, key=by_order)
        self.seats.add(sequence.standing.share)

    def park(self, sequence: Sequence) -> None:
        self.parked.append(sequence)
        self.seats.add(sequence.standing.share)

    def line_up(self, sequence: Sequence) -> None:
        """Have a sequence get a seat when it is its turn."""
        insort(self.lines.setdefault(sequence.standing.share.caller, []), sequence, key=by_turn)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence from the queue of its state, and its seat or its place in the line."""
        places = {
            SequenceState.RUNNING: self.running,
            SequenceState.WAITING_FOR_REMOTE_KVS: self.parked,
            SequenceState.WAITING: self.waiting,
            SequenceState.PAUSED: self.paused,
        }
        places[sequence.state].remove(sequence)
        if sequence.state in SEATED:
            self.seats.add(sequence.standing.share, -1)
        else:
            self.leave_line(sequence)

    def leave_line(self, sequence: Sequence) -> None:
        line = self.lines.get(sequence.standing.share.caller, [])
        if sequence in line:
            line.remove(sequence)
            if not line:
                del self.lines[sequence.standing.share.caller]

    def next_in_turn(self) -> Iterator[Sequence]:
        """Yield sequences without a seat in the order in which they get one: by priority, then those of the caller that
        holds the fewest seats for its weight, then by turn. Whoever takes one may give it a seat."""
        if len(self.lines) < 2:
            for line in list(self.lines.values()):
                yield from list(line)
            return
        lines = [iter(list(line)) for line in self.lines.values()]
        heads = [(*self.turn_of(first), place, first) for place, line in enumerate(lines) for first in [next(line)]]
        heapify(heads)
        while heads:
            *_, place, head = heads[0]
            yield head
            following = next(lines[place], None)
            if following is None:
                heappop(heads)
            else:
                heapreplace(heads, (*self.turn_of(following), place, following))

    def turn_of(self, sequence: Sequence) -> tuple[int, float, bool, int, int]:
        priority, is_new, arrival, choice = sequence.turn
        return priority, self.seats.level(sequence.standing.share, 1), is_new, arrival, choice

    def running_in_turn(self) -> list[Sequence]:
        """Return the running sequences in the order in which they get blocks: by priority, then the first of each
        caller, then the second; by order within a caller and where callers are alike."""
        if len(self.seats.held) < 2:
            return list(self.running)
        places: dict[str, int] = {}
        turns: list[tuple[int, float, int, int, Sequence]] = []
        for sequence in self.running:
            place = places[sequence.standing.share.caller] = places.get(sequence.standing.share.caller, 0) + 1
            turns.append(
                (
                    sequence.standing.priority,
                    place / sequence.standing.share.weight,
                    sequence.standing.arrival,
                    sequence.branch.choice,
                    sequence,
                )
            )
        return [sequence for *_, sequence in sorted(turns, key=by_place)]

    def newest_above(self, sequence: Sequence) -> Sequence | None:
        """Return the running sequence that is to give its place to one that waits: the newest of the caller that holds
        the most seats for its weight, if its own part is left to that. What is more urgent does not give way, nor what
        is promised to a peer or drives another stage."""
        victim: Sequence | None = None
        if (yielding := self.newest_yielding(sequence)) is not None:
            return yielding
        if sequence.is_streamed or not self.seats.has_claim(sequence.standing.share):
            return None
        for candidate in reversed(self.running):
            if candidate.standing.priority < sequence.standing.priority:
                break
            above = self.seats.yields(candidate.standing.share.caller, sequence.standing.share)
            if (
                may_yield(candidate)
                and above
                and (
                    victim is None
                    or self.seats.level(candidate.standing.share) > self.seats.level(victim.standing.share)
                )
            ):
                victim = candidate
        return victim

    @property
    def kept_seats(self) -> int:
        """The seats that those which give way keep once they have them: of a batch that is too small for their part to
        be a seat none."""
        return int(self.max_num_seqs * GUARANTEED[ServiceClass.BATCH])

    def newest_yielding(self, sequence: Sequence) -> Sequence | None:
        """Return the last sequence of those that give way to any other, if they have more than they keep."""
        if self.seats.lent <= self.kept_seats or sequence.standing.share.gives_way:
            return None
        candidates = (candidate for candidate in reversed(self.running) if candidate.standing.share.gives_way)
        return next((candidate for candidate in candidates if may_yield(candidate)), None)

    def newest_paused(self, sequence: Sequence) -> Sequence | None:
        """Return the last of the paused sequences, which have blocks and no use for them now, to give some to this one.
        Who gives way gets none of others."""
        newest = self.paused[-1] if self.paused else None
        if newest is not None and sequence.standing.share.gives_way and not newest.standing.share.gives_way:
            return None
        return newest


def may_yield(sequence: Sequence) -> bool:
    """Return whether a sequence may give its seat or its blocks to another caller's: not if its blocks are promised to
    a peer, nor if other stages wait for it."""
    return not sequence.hands_over and not sequence.is_streamed
