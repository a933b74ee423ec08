# SPDX-License-Identifier: Apache-2.0
"""The sequences of one engine by state, each queue in the order of priority, then of arrival."""

from bisect import insort
from operator import attrgetter

from pontil.runtime.engine.prefix_cache import PrefixCache
from pontil.runtime.engine.sequence import Sequence, SequenceState

by_order, by_turn = attrgetter("order"), attrgetter("turn")


class SequenceQueues:
    """Sequences that are `waiting` for admission, `running`, and `parked`: admitted, but without their KV, which
    another worker computes. Of those waiting admission looks at the `candidates`: for others it waits until `prefix`
    releases them."""

    def __init__(self, prefix: PrefixCache) -> None:
        self.prefix = prefix
        self.waiting: list[Sequence] = []
        self.candidates: list[Sequence] = []
        self.running: list[Sequence] = []
        self.parked: list[Sequence] = []
        self.arrivals = 0

    @property
    def is_empty(self) -> bool:
        return not (self.running or self.waiting or self.parked)

    @property
    def seats_taken(self) -> int:
        """Return the number of seats taken. A sequence that will fork holds a seat for each of its choices."""
        return sum(len(sequence.choices) for some in (self.running, self.parked) for sequence in some)

    def arrive(self, sequence: Sequence) -> None:
        """Give a sequence its place in the order, which it keeps."""
        if sequence.arrival == 0:
            self.arrivals += 1
            sequence.arrival = self.arrivals

    def wait(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=by_turn)
        if self.prefix.prepare(sequence):
            self.consider(sequence)

    def consider(self, sequence: Sequence) -> None:
        """Have admission look at a waiting sequence."""
        insort(self.candidates, sequence, key=by_turn)

    def holds_back(self, sequence: Sequence) -> bool:
        """Return whether a candidate waits for what an older sequence computes. Then it is none until that is done."""
        waits = self.prefix.holds_back(sequence)
        if waits:
            self.candidates.remove(sequence)
        return waits

    def leave(self, sequence: Sequence) -> None:
        """Remove a candidate that is admitted."""
        self.waiting.remove(sequence)
        self.candidates.remove(sequence)

    def run(self, sequence: Sequence) -> None:
        insort(self.running, sequence, key=by_order)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence from the queue of its state."""
        places = {
            SequenceState.RUNNING: self.running,
            SequenceState.WAITING_FOR_REMOTE_KVS: self.parked,
            SequenceState.WAITING: self.waiting,
        }
        places[sequence.state].remove(sequence)
        if sequence.state is SequenceState.WAITING and sequence in self.candidates:
            self.candidates.remove(sequence)

    def newest_to_preempt(self) -> Sequence | None:
        """Return the newest running sequence whose blocks are not promised to a peer."""
        return next((one for one in reversed(self.running) if not one.hands_over), None)
