# SPDX-License-Identifier: Apache-2.0
"""A scheduler without a model: tokens are invented, and KV from a remote prefill arrives after a few steps."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tiny import sequence

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.engine.prefixes.cache import PrefixHit
from pontil.runtime.engine.prompt_turns import StepBudget
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.engine.sequences.output_record import Known
from pontil.runtime.engine.sequences.sequence import FinishReason, Sequence

BLOCK = 16


@dataclass(eq=False)
class Remote:
    """A prefill worker for one request: ready from step `ready_at` on, and done `takes` steps after it is asked."""

    world: "QueueWorld"
    ready_at: int = 0
    takes: int = 1
    due: int | None = None
    draws_first: bool = False

    @property
    def is_ready(self) -> bool:
        return self.world.steps >= self.ready_at

    def begin(self) -> None:
        self.due = self.world.steps + self.takes


@dataclass
class QueueWorld:
    """A scheduler with its requests. `admitted` has them in the order of first admission. No request may be overtaken
    without a reason."""

    seats: int = 4
    blocks: int = 200
    budget: int = 64
    steps: int = 0
    remotes: dict[str, Remote] = field(default_factory=dict)
    admitted: list[str] = field(default_factory=list)
    arrived: list[Sequence] = field(default_factory=list)
    unfinished: set[Sequence] = field(default_factory=set)

    def __post_init__(self) -> None:
        layout = KVLayout(BLOCK, 1, 1, 8, "float32")
        self.pool = BlockPool(self.blocks)
        self.scheduler = Scheduler(self.pool, layout, self.seats, StepBudget(self.budget), clock=lambda: 0.0)
        self.reserve = self.scheduler.reserve
        self.scheduler.reserve = self.watched  # type: ignore[method-assign]

    def arrive(self, name: str, prompt: list[int], tokens: int = 2, priority: int = 0) -> Sequence:
        made = sequence(name, prompt, tokens)
        made.standing.priority = priority
        self.arrived.append(made)
        self.unfinished.add(made)
        return made

    def whole(self, name: str, prompt: list[int], tokens: int = 2, priority: int = 0) -> None:
        self.scheduler.add(self.arrive(name, prompt, tokens, priority))

    def handed(
        self, name: str, prompt: list[int], tokens: int = 2, priority: int = 0, ready_at: int = 0, takes: int = 1
    ) -> None:
        self.remotes[name] = Remote(self, ready_at, takes)
        self.scheduler.park(self.arrive(name, prompt, tokens, priority), self.remotes[name])

    def watched(self, sequence: Sequence, find: Callable[[], PrefixHit]) -> PrefixHit | None:
        """Reserve blocks, and check that a newly admitted sequence overtakes only those with a reason to wait."""
        found = self.reserve(sequence, find)
        if found is not None and sequence.history.admissions == 0:
            passed = [one for one in self.scheduler.waiting if one.order < sequence.order]
            assert all(map(self.is_excused, passed)), (sequence.id, [one.id for one in passed])
            admitted = (one for one in self.scheduler.waiting if one.history.admissions)
            again = [one for one in admitted if one.standing.priority <= sequence.standing.priority]
            assert not again, "those that lost their blocks go first"
            self.admitted.append(sequence.id)
        if found is None:
            spare = sum(not one.hands_over for one in self.scheduler.running)
            assert self.scheduler.memory.lacking(sequence, find(), spare) > 0, "it would fit"
        return found

    def is_excused(self, passed: Sequence) -> bool:
        """Return whether its peer or the keys of its prompt are not ready yet, or an earlier sequence is computing the
        same prefix."""
        if passed.prefix.keys is None or passed.prefix.keys.left:
            return True
        if passed.remote_prefill is not None:
            return not passed.remote_prefill.is_ready
        return any(
            one.order < passed.order and one.prompt[:BLOCK] == passed.prompt[:BLOCK] and one.computed < len(one.prompt)
            for one in self.scheduler.running
        )

    def check_claims(self) -> None:
        """Check that whoever waits for a block waits for an older sequence that has it to compute."""
        claims = self.scheduler.prefix.claims
        for one, key in claims.awaited.items():
            assert one in claims.waiters[key] and claims.owners[key].order < one.order
            assert key not in self.pool.index.blocks
            assert claims.owners[key] in self.scheduler.running or claims.owners[key] in self.scheduler.parked
        assert sum(map(len, claims.waiters.values())) == len(claims.awaited)
        assert sum(claims.counts.values()) == len(claims.owners)

    def step(self) -> None:
        self.steps += 1
        self.check_claims()
        self.receive()
        self.scheduler.admit(in_step=False)
        batch = self.scheduler.schedule()
        self.scheduler.advance(batch)
        for span in batch.spans:
            if span.sequence.remaining == 0:
                self.say(span.sequence)

    def receive(self) -> None:
        """Promote sequences whose remote prefill is done."""
        for one in list(self.scheduler.parked):
            due = self.remotes[one.id].due
            if due is not None and due <= self.steps:
                one.history.admissions = 1
                assert self.scheduler.memory.grow(one, len(one.prompt))
                self.scheduler.promote(one, len(one.prompt), [Known(0, [5])])
                if one.params.max_tokens == 1:
                    self.end(one)

    def say(self, one: Sequence) -> None:
        if one.append(5) is not None:
            self.end(one)

    def end(self, one: Sequence) -> None:
        self.scheduler.finish(one, FinishReason.LENGTH)
        self.unfinished.remove(one)

    def drain(self, most: int) -> None:
        """Run until all requests have ended, within so many steps."""
        most += self.steps
        while self.unfinished:
            assert self.steps < most, [one.id for one in self.unfinished]
            self.step()
        self.pool.check()
        assert self.pool.available == self.pool.capacity and not self.scheduler.prefix.claims
        assert not self.scheduler.prefix.claims.awaited and not self.scheduler.queues.lines
