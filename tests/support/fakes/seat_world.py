# SPDX-License-Identifier: Apache-2.0
"""An engine whose model is a formula: its KV is the ids themselves, so that a lost or foreign block is noticed."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

from tiny import name_of, sequence

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.engine import Engine, Output
from pontil.runtime.engine.prompt_turns import StepBudget
from pontil.runtime.engine.queues import may_yield
from pontil.runtime.engine.runner.runner import Launched
from pontil.runtime.engine.sampling.sampler import Sampled
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.engine.sequences.batch import Batch
from pontil.runtime.engine.sequences.output_record import Known
from pontil.runtime.engine.sequences.sequence import FinishReason, Sequence, SequenceState
from pontil.runtime.foundation.fair_share import FairShare, class_of

BLOCK = 8
# All of a sequence's KV is checked when so many tokens were added, and when it is read to compute more than one.
OFTEN = 64


def formula(prompt: list[int], choice: int, position: int) -> int:
    """Return the token of a choice at a position."""
    said = f"{prompt}:{choice}:{position}".encode()
    return hashlib.blake2b(said, digest_size=1).digest()[0]


class FormulaRunner:
    """A runner that notes the id of each position in its block, and checks that those before are there. If it is
    `late`, rows may refer to ids of the step before."""

    answers_are_found, keeps_states = False, False

    def __init__(self, late: bool = False) -> None:
        self.late = late
        self.cells: dict[tuple[int, int], int] = {}
        self.last: list[int] = []

    def launch(self, batch: Batch) -> Launched:
        for source, target in batch.copies:
            for inside in range(BLOCK):
                if (source, inside) in self.cells:
                    self.cells[target, inside] = self.cells[source, inside]
        sampled, places, drawn = list[Sampled](), dict[Sequence, int](), list[int]()
        for span in batch.spans:
            one = span.sequence
            end = span.start + span.count
            first = 0 if span.count > 1 or end % OFTEN == 0 else span.start
            for position in range(first, end):
                token = self.known(one.token(position))
                cell = one.blocks[position // BLOCK], position % BLOCK
                if position >= span.start:
                    self.cells[cell] = token
                assert self.cells[cell] == token, (one.id, one.branch.choice, position)
            if span.samples:
                tokens = [formula(one.prompt, choice, end) for choice in one.choices]
                sampled += [Sampled(one, c, [t], 1, []) for c, t in zip(one.choices, tokens, strict=True)]
                places |= {one: len(drawn)} if len(tokens) == 1 else {}
                drawn += tokens
        self.last = drawn
        return Launched(lambda: sampled, places if self.late else {}, late=self.late)

    def run(self, batch: Batch) -> list[Sampled]:
        return self.launch(batch).collect()

    def beside(self, storage: KVStorage) -> "FormulaRunner":
        return FormulaRunner(self.late)

    def known(self, token: int) -> int:
        return token if token >= 0 else self.last[-1 - token]


class RemoteAtOnce:
    """A prefill worker that can always be asked."""

    is_ready, draws_first = True, False

    def __init__(self, world: "SeatWorld", asked: Sequence) -> None:
        self.world, self.asked = world, asked

    def begin(self) -> None:
        self.world.due[self.asked] = self.world.steps + 2


@dataclass
class SeatWorld:
    """An engine with its requests; `said` has the tokens of each choice, as a client would have them."""

    seats: int = 4
    blocks: int = 4000
    late: bool = False
    caching: bool = True
    budget: int = 64
    steps: int = 0
    said: dict[str, list[int]] = field(default_factory=dict)
    wanted: dict[str, list[int]] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    due: dict[Sequence, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pool = BlockPool(self.blocks)
        layout = KVLayout(BLOCK, 1, 1, 8, "float32")
        self.scheduler = Scheduler(self.pool, layout, self.seats, StepBudget(self.budget), self.caching)
        self.runner = FormulaRunner(self.late)
        self.schedule = self.scheduler.schedule
        self.scheduler.schedule = self.watched  # type: ignore[method-assign]
        self.engine = Engine(self.runner, self.scheduler)

    @property
    def queues(self) -> Any:
        return self.scheduler.queues

    def add(
        self, name: str, caller: str = "", n: int = 1, tokens: int = 3, prompt: list[int] | None = None,
        weight: float = 1.0, priority: int = 0, remote: bool = False,
    ) -> Sequence:  # fmt: skip
        prompt = prompt or [len(self.wanted) % 251, *name.encode()]
        made = sequence(name, prompt, tokens, n=n, temperature=1.0)
        made.standing.share, made.standing.priority = FairShare(caller, weight, class_of(priority).gives_way), priority
        for choice in range(n):
            named = name if n == 1 else f"{name}/{choice}"
            self.wanted[named] = [formula(prompt, choice, len(prompt) + place) for place in range(tokens)]
        if remote:
            self.engine.park(made, RemoteAtOnce(self, made))
        else:
            self.engine.add(made)
        return made

    def cancel(self, name: str) -> None:
        for each in self.engine.sequences.get(name, ()):
            self.wanted.pop(name_of(each), None)
        # A choice that was not forked yet has no sequence of its own.
        for named in [named for named in self.wanted if named.split("/")[0] == name]:
            if len(self.said.get(named, ())) < len(self.wanted[named]):
                del self.wanted[named]
        self.engine.end(name, FinishReason.ABORTED)

    def watched(self) -> Batch:
        """Schedule, and check that no seat is idle which somebody could take, as far as there are blocks, and that
        none is held by a caller above its part while another one has a sequence that could have it."""
        batch = self.schedule()
        queues = self.queues
        able = [one for line in queues.lines.values() for one in line if one in queues.paused or not self.awaits(one)]
        assert self.is_tight or queues.is_full or not able
        most_urgent = min((one.standing.priority for one in able), default=0)
        wanting = {one.standing.share.caller: one for one in able if one.standing.priority == most_urgent}
        holding = {
            one.standing.share.caller
            for one in queues.running
            if may_yield(one) and one.standing.priority >= most_urgent
        }
        for one in [] if self.is_tight else wanting.values():
            assert not any(queues.seats.yields(caller, one.standing.share) for caller in holding)
        assert all(span.sequence in queues.running for span in batch.spans)
        return batch

    def awaits(self, sequence: Sequence) -> bool:
        """Return whether an older sequence computes a part of the prompt."""
        prefix = self.scheduler.prefix
        return prefix.may_use(sequence) and prefix.claims.last_claimed(sequence, prefix.keys_of(sequence)) is not None

    @property
    def is_tight(self) -> bool:
        return self.blocks < 4000

    def step(self) -> None:
        self.steps += 1
        for one in [one for one, due in self.due.items() if due <= self.steps]:
            del self.due[one]
            if one.state is SequenceState.WAITING_FOR_REMOTE_KVS:
                self.receive(one)
        self.scheduler.admit(in_step=False)
        if self.engine.has_work:
            for output in self.engine.step():
                self.take(output)
        self.check()

    def receive(self, one: Sequence) -> None:
        """Let the KV of a prompt arrive, with the first token of each choice."""
        one.history.admissions = 1
        assert self.scheduler.memory.grow(one, len(one.prompt))
        for position, token in enumerate(one.prompt):
            self.runner.cells[one.blocks[position // BLOCK], position % BLOCK] = token
        firsts = [Known(choice, [formula(one.prompt, choice, len(one.prompt))]) for choice in one.choices]
        self.engine.promote(one, len(one.prompt), firsts)

    def take(self, output: Output) -> None:
        name = name_of(output.sequence)
        self.first.setdefault(output.sequence.id, self.steps)
        said = self.said.setdefault(name, [])
        assert output.index == len(said), "nothing is said twice, and nothing left out"
        said += output.ids

    def check(self) -> None:
        """Check what holds after every step."""
        queues = self.queues
        assert queues.seats_taken == len(queues.running) + len(queues.parked) <= self.seats
        assert sum(queues.seats.held.values()) == queues.seats.taken
        in_line = [one for line in queues.lines.values() for one in line]
        held = len(self.scheduler.prefix.claims.awaited) + len(self.scheduler.prefix.claims.woken)
        held += len(self.scheduler.prefix.unkeyed)
        assert len(in_line) + held == len(queues.waiting) + len(queues.paused)
        assert not any(one in self.scheduler.prefix.claims.counts for one in queues.paused), "nobody waits for these"

    def drain(self, most: int) -> None:
        most += self.steps
        while self.engine.sequences or self.engine.has_work:
            assert self.steps < most, list(self.engine.sequences)
            self.step()
        assert {name: self.said.get(name) for name in self.wanted} == self.wanted
        self.pool.check()
        assert self.pool.available == self.pool.capacity and not self.queues.lines and not self.queues.seats.held
