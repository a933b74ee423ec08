# SPDX-License-Identifier: Apache-2.0
"""One request's tokens in one engine, and its state."""

from __future__ import annotations

from collections import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from pontil.runtime.engine.sequences.compute_history import ComputeHistory
from pontil.runtime.engine.sequences.draft_state import DraftState, TargetStates
from pontil.runtime.engine.sequences.output_record import DrawnAhead, Known, OutputRecord
from pontil.runtime.engine.sequences.prompt_keys import SaltedPrefix
from pontil.runtime.engine.sequences.remote_prefill import RemotePrefill
from pontil.runtime.engine.sequences.streamed import NO_STREAMS, StageStreams
from pontil.runtime.engine.sequences.token_logprobs import TokenLogprobs
from pontil.runtime.engine.sequences.token_rules import DrawRules, Guide
from pontil.runtime.foundation.fair_share import EVERYBODY, FairShare
from pontil.runtime.sampling_params import SamplingParams


@dataclass(slots=True)
class Standing:
    """A sequence's claim to seats and blocks beside others: the lowest `priority` comes first, then callers by what
    they hold for their `share`, then the earliest `arrival`, which is numbered from 1."""

    priority: int = 0
    share: FairShare = EVERYBODY
    arrival: int = 0

    @property
    def has_arrived(self) -> bool:
        return self.arrival > 0


@dataclass(slots=True)
class Branch:
    """The choices whose tokens are those of one sequence.

    A request with n > 1 choices is one sequence until its first tokens are sampled, all from the same logits; then it
    is `forked` into one for each `choice`. If only some choices continue, they are `wanted`; `given` has the first
    tokens, by choice, that must not be sampled because the client has them.
    """

    choice: int = 0
    wanted: tuple[int, ...] = ()
    given: Mapping[int, int] = field(default_factory=dict)
    forked: bool = False

    @classmethod
    def of(cls, wanted: tuple[int, ...]) -> Branch:
        """Return the stem of these choices, of all without any."""
        return cls(wanted[0] if wanted else 0, wanted)

    @property
    def leads(self) -> bool:
        """Return whether it is the first of the choices that continue, which reports what they share."""
        return self.choice == (self.wanted or (0,))[0]

    def fork(self, choice: int) -> Branch:
        """Return that of another choice; from now on this one stands for its own alone, too."""
        self.forked = True
        return Branch(choice, self.wanted, forked=True)


class SequenceState(Enum):
    WAITING = "waiting"
    WAITING_FOR_REMOTE_KVS = "waiting_for_remote_kvs"
    RUNNING = "running"
    PAUSED = "paused"
    PREEMPTED = "preempted"
    FINISHED = "finished"


# Every allowed state transition. FINISHED is final.
TRANSITIONS: dict[SequenceState, frozenset[SequenceState]] = {
    SequenceState.WAITING: frozenset(
        {SequenceState.RUNNING, SequenceState.WAITING_FOR_REMOTE_KVS, SequenceState.FINISHED}
    ),
    SequenceState.WAITING_FOR_REMOTE_KVS: frozenset(
        {SequenceState.RUNNING, SequenceState.WAITING, SequenceState.FINISHED}
    ),
    SequenceState.RUNNING: frozenset({SequenceState.PAUSED, SequenceState.PREEMPTED, SequenceState.FINISHED}),
    SequenceState.PAUSED: frozenset({SequenceState.RUNNING, SequenceState.PREEMPTED, SequenceState.FINISHED}),
    SequenceState.PREEMPTED: frozenset({SequenceState.WAITING, SequenceState.FINISHED}),
    SequenceState.FINISHED: frozenset(),
}


class FinishReason(Enum):
    """The reason why a sequence ended. HANDED_OVER ends it in this engine only: another one decodes on."""

    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"
    ERROR = "error"
    HANDED_OVER = "handed_over"


class Purpose(Enum):
    """The use of what is computed of a sequence: the `ANSWER`; its first tokens and its KV for another engine, which
    decodes on (`HANDOVER`: it stops after its first token and keeps its blocks); or its `KV` alone."""

    ANSWER = "answer"
    HANDOVER = "handover"
    KV = "kv"


@dataclass(slots=True, eq=False)
class Sequence:
    """The state of a sequence: `length` tokens are known (prompt, then output) and the KV of `computed` of them is in
    `blocks`.

    Every step computes part of `length - computed`: prompt chunks, decode, replay, prefix hits and KV from another
    worker differ only in these two numbers. Of the output, `record` says where it came from; the tokens `ahead` of it
    have been drawn, and are not known yet.

    The sequences of one request's choices (`branch`) share blocks, and each copies the one it is about to write into.
    Each needs a seat of its own: one without is paused, keeps its blocks, and goes on when it gets one. A waiting
    sequence with a `remote_prefill` waits for seats and blocks only: it will be parked.

    In a model of several stages it may have `streams` from and to others. It rests while an input is missing or a
    consumer is behind.
    """

    id: str
    prompt: list[int]
    params: SamplingParams
    stop_token_ids: frozenset[int]
    purpose: Purpose = Purpose.ANSWER
    prefix: SaltedPrefix = field(default_factory=SaltedPrefix)
    rules: DrawRules = field(default_factory=DrawRules)
    branch: Branch = field(default_factory=Branch)
    standing: Standing = field(default_factory=Standing)
    output: list[int] = field(default_factory=list)
    record: OutputRecord = field(default_factory=OutputRecord)
    ahead: DrawnAhead = field(default_factory=DrawnAhead)
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    history: ComputeHistory = field(default_factory=ComputeHistory)
    remote_prefill: RemotePrefill | None = None
    state: SequenceState = SequenceState.WAITING
    finish: FinishReason | None = None
    drafting: DraftState = field(default_factory=DraftState)
    streams: StageStreams = NO_STREAMS

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.output) + self.ahead.count

    @property
    def remaining(self) -> int:
        # Read for every sequence in every step, and therefore not by `length`.
        return len(self.prompt) + len(self.output) + self.ahead.count - self.computed

    @property
    def decodes(self) -> bool:
        """Return whether it lacks one position, and draws no more than one token after it."""
        return self.remaining == 1 and (self.branch.forked or len(self.choices) == 1)

    @property
    def max_length(self) -> int:
        """Return the most positions whose KV may be needed: the last token sampled is never fed back."""
        return len(self.prompt) + (0 if self.hands_over else max(0, self.params.max_tokens - 1))

    @property
    def due(self) -> int:
        """Return how many positions can be computed now: all that remain, or those whose rows are here. Another stage
        makes more rows only when it hears that these were computed (E13)."""
        return self.remaining if self.streams is NO_STREAMS else self.streams.ready(self.computed, self.length)

    @property
    def rests(self) -> bool:
        """Return whether it waits for another stage, whatever room there is."""
        return self.streams is not NO_STREAMS and self.streams.rest(self.computed, self.length)

    @property
    def is_streamed(self) -> bool:
        """Return whether it belongs to a stage that others follow or feed."""
        return self.streams is not NO_STREAMS

    @property
    def guide(self) -> Guide | None:
        """Return the guide that enforces its grammar, if it has one: each choice has its own."""
        return self.rules.guide

    @property
    def hands_over(self) -> bool:
        return self.purpose is Purpose.HANDOVER

    @property
    def draws(self) -> bool:
        """Return whether tokens are sampled after its last position."""
        return self.purpose is not Purpose.KV

    @property
    def order(self) -> tuple[int, int, int]:
        """Return the key of the scheduling order: the lowest priority first, then the earliest arrival."""
        return self.standing.priority, self.standing.arrival, self.branch.choice

    @property
    def turn(self) -> tuple[int, bool, int, int]:
        """Return the key of the admission order: of equal priority, sequences that were admitted before and lost their
        blocks go first."""
        return self.standing.priority, self.history.admissions == 0, self.standing.arrival, self.branch.choice

    @property
    def choices(self) -> abc.Sequence[int]:
        """Return the choices whose next token is sampled from the next logits."""
        branch = self.branch
        return (branch.choice,) if branch.forked else branch.wanted or range(self.params.n)

    @property
    def is_ready(self) -> bool:
        """Return whether its next row may be computed as soon as there is room."""
        ahead = self.ahead
        is_known = ahead.count == 0 or ahead.place is not None
        return is_known and (self.streams is NO_STREAMS or not self.rests)

    def drawn(self, place: int) -> None:
        """Note a token that was drawn, and its place among the results of its step."""
        self.ahead.count += 1
        self.ahead.place = place if self.may_go_on else None

    @property
    def may_go_on(self) -> bool:
        """Return whether the row after the token that was just drawn may be computed before that is known. It may turn
        out that the sequence ended with it: the row is then dropped. A row that needs the token itself waits for it: a
        budget that ends, a handoff, a token that the client has, choices to be forked. What a grammar or penalties make
        of the token concerns the next draw alone."""
        count = len(self.output) + self.ahead.count
        alone = len(self.choices) == 1 and not self.hands_over and not (self.branch.given and count == 1)
        return alone and count < self.params.max_tokens

    def forget_drawn(self) -> None:
        """Leave out tokens that are not known yet, since the sequence ends before them."""
        self.ahead.clear()
        self.roll_back()

    def token(self, position: int) -> int:
        """The token at a position; if it is unknown, -1 - its place among the last results."""
        inside = position - len(self.prompt)
        if inside >= len(self.output) and self.ahead.place is not None:
            return -1 - self.ahead.place
        return self.prompt[position] if inside < 0 else self.output[inside]

    def move(self, state: SequenceState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f"sequence {self.id}: {self.state.name} cannot become {state.name}")
        self.state = state

    def end(self, finish: FinishReason) -> None:
        self.move(SequenceState.FINISHED)
        self.finish = finish

    def fork(self, choice: int) -> Sequence:
        """Return a sequence for another choice of the same request, with the prompt's state. The caller counts the
        owners of the blocks."""
        return Sequence(
            self.id,
            self.prompt,
            self.params,
            self.stop_token_ids,
            self.purpose,
            self.prefix,
            self.rules.fork(),
            self.branch.fork(choice),
            self.standing,
            computed=self.computed,
            history=self.history.fork(),
            blocks=list(self.blocks),
            state=self.state,
            drafting=self.drafting.fork(),
            # Where there are several choices these are the media of their prompt, which all of them read.
            streams=self.streams,
        )

    def advance(self, end: int) -> int:
        """Mark the positions up to `end` as computed; return how many of them had been computed before, here or in an
        earlier attempt."""
        prompt, history = len(self.prompt), self.history
        if history.reached == self.computed >= prompt + self.record.delivered:
            # New tokens alone, one after the other: the general case, made short.
            self.computed = history.reached = end
            return 0
        again = history.advance(self.computed, end, prompt, self.record.delivered)
        self.computed = end
        return again

    def count_from(self, computed: int) -> None:
        """Take the positions before this one for computed, and no others."""
        self.computed = self.history.reached = computed

    def roll_back(self) -> None:
        """Discard the KV of rejected drafts: the newest token is always still to be computed."""
        if self.remaining <= 0:
            self.count_from(self.length - 1)

    def draft(self, count: int) -> tuple[int, ...]:
        """Propose at most `count` tokens that may come next, from what stood before."""
        count = self.guessable(count)
        return self.fitting(self.guess(count)) if count else ()

    def guessable(self, count: int) -> int:
        """Return how many tokens may be guessed, at most `count`: no more than the budget, minus the token that is
        sampled anyhow, and none if penalties make the logits depend on tokens that are not known yet, or if another
        stage gives the rows or reads their states."""
        if not self.output or self.params.penalizes or self.streams.exchange_rows:
            return 0
        return max(0, min(count, self.params.max_tokens - len(self.output) - 1))

    def fitting(self, guessed: tuple[int, ...]) -> tuple[int, ...]:
        """Return the guesses up to the first that the grammar forbids, or that the budget of reasoning may cut off."""
        return self.rules.fitting(self.output, guessed)

    def guess(self, count: int) -> tuple[int, ...]:
        """Return tokens that a handoff brought, or that followed an earlier occurrence of the last ones."""
        return self.drafting.guess(self.prompt, self.output, count, is_new=self.record.is_new)

    def receive(self, known: Known) -> None:
        """Add tokens that were sampled, and checked, elsewhere."""
        self.output += known.tokens
        self.record.receive(known)
        states = None if known.hidden is None else TargetStates(len(self.prompt) - 1, [known.hidden])
        self.drafting.handed, self.drafting.target_states = known.draft, states
        self.rules.stops.pass_by(known.tokens)

    def append_all(self, token_ids: list[int], logprobs: list[TokenLogprobs]) -> FinishReason | None:
        """Accept tokens up to the one that ends the sequence, if one does. The oldest of those `ahead`, if there is
        one, is known now."""
        if self.ahead.count:
            self.ahead.count -= 1
        for place, token_id in enumerate(token_ids):
            finish = self.append(token_id, logprobs[place] if logprobs else None)
            if finish is not None:
                return finish
        return FinishReason.LENGTH if self.params.max_tokens == 0 else None

    def append(self, token_id: int, logprobs: TokenLogprobs | None = None) -> FinishReason | None:
        """Accept one sampled token, and return the reason if it ends the sequence. A stop exactly at the budget is a
        stop, unless the grammar made it for the budget's sake."""
        self.output.append(token_id)
        if logprobs is not None:
            self.record.logprobs.append(logprobs)
        if token_id in self.stop_token_ids:
            is_cut = self.guide is not None and token_id in self.guide.ends and self.guide.is_cut(len(self.output))
            return FinishReason.LENGTH if is_cut else FinishReason.STOP
        stops = self.rules.stops
        if stops.check is not None and stops.feed(token_id):
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.output) >= self.params.max_tokens else None
