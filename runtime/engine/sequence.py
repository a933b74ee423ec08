# SPDX-License-Identifier: Apache-2.0
"""One request's tokens in one engine, and where it stands."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from pontil.runtime.engine.logprobs import TokenLogprobs
from pontil.runtime.engine.sampling_state import SamplingState
from pontil.runtime.sampling_params import SamplingParams


class State(Enum):
    WAITING = "waiting"
    WAITING_FOR_REMOTE_KVS = "waiting_for_remote_kvs"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


# Every move a sequence may make. FINISHED is final.
TRANSITIONS: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.RUNNING, State.WAITING_FOR_REMOTE_KVS, State.FINISHED}),
    State.WAITING_FOR_REMOTE_KVS: frozenset({State.RUNNING, State.WAITING, State.FINISHED}),
    State.RUNNING: frozenset({State.PREEMPTED, State.FINISHED}),
    State.PREEMPTED: frozenset({State.WAITING, State.FINISHED}),
    State.FINISHED: frozenset(),
}


class Finish(Enum):
    """Why a sequence ended. HANDED_OVER ends it in this engine only: another one decodes on."""

    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"
    ERROR = "error"
    HANDED_OVER = "handed_over"


class StopCheck(Protocol):
    """Watches the tokens of one sequence for its stop strings."""

    def feed(self, token_id: int) -> str | None:
        """The stop string that this token completed, if any."""


@dataclass(slots=True, eq=False)
class Sequence:
    """`length` tokens are known (prompt, then output) and the KV of `computed` of them is in `blocks`.

    Everything a step does to a sequence is some of `length - computed`: prompt chunks, decode, replay and KV that came
    from elsewhere are one subtraction. `received` output tokens were sampled elsewhere. A sequence with `hands_over`
    stops after its first token and keeps its blocks.
    """

    id: str
    prompt: list[int]
    params: SamplingParams
    stop_token_ids: frozenset[int]
    hands_over: bool = False
    stop_check: StopCheck | None = None
    output: list[int] = field(default_factory=list)
    received: int = 0
    computed: int = 0
    cached: int = 0
    blocks: list[int] = field(default_factory=list)
    credits: int = 0
    state: State = State.WAITING
    finish: Finish | None = None
    stop_match: str | None = None
    choice: int = 0
    # One for each prompt token whose position was computed here, from the first on; nothing is known of that one.
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    # Made from the parameters and the tokens when it is first needed.
    sampling_state: SamplingState | None = None

    @property
    def choices(self) -> range:
        """The choices whose next token is drawn from the next logits: at first all of them, from one prompt."""
        together = self.choice == 0 and not self.output
        return range(self.params.n) if together else range(self.choice, self.choice + 1)

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def remaining(self) -> int:
        return self.length - self.computed

    @property
    def max_length(self) -> int:
        """The positions whose KV may ever be needed: the last token sampled is never fed back."""
        return len(self.prompt) + (0 if self.hands_over else self.params.max_tokens - 1)

    @property
    def generated(self) -> int:
        """Tokens sampled here."""
        return len(self.output) - self.received

    def token(self, position: int) -> int:
        inside = position - len(self.prompt)
        return self.prompt[position] if inside < 0 else self.output[inside]

    def move(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f"sequence {self.id}: {self.state.name} cannot become {state.name}")
        self.state = state

    def end(self, finish: Finish) -> None:
        self.move(State.FINISHED)
        self.finish = finish

    def receive(self, token_id: int) -> None:
        """Take over a first token that was sampled, and checked, elsewhere."""
        self.output.append(token_id)
        self.received = 1
        if self.stop_check is not None:
            self.stop_check.feed(token_id)

    def append(self, token_id: int) -> Finish | None:
        """Accept one sampled token, and say whether it ends the sequence. A stop exactly at the budget is a stop."""
        self.output.append(token_id)
        if token_id in self.stop_token_ids:
            return Finish.STOP
        if self.stop_check is not None:
            self.stop_match = self.stop_check.feed(token_id)
            if self.stop_match is not None:
                return Finish.STOP
        return Finish.LENGTH if len(self.output) >= self.params.max_tokens else None
