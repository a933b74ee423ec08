# SPDX-License-Identifier: Apache-2.0
"""State of one request in the proxy, driven by frames and never by text (A7)."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum

from pontil.runtime.accounting.book import stated_count
from pontil.runtime.accounting.counts import DECODE, PREFILL, Account, Usage
from pontil.runtime.accounting.ledger import AFTER_END, Ledger, LedgerEntry
from pontil.runtime.foundation.fair_share import EVERYBODY, FairShare
from pontil.runtime.foundation.trace_context import TraceContext
from pontil.runtime.proxy.fleet.worker_release import WorkerRelease
from pontil.runtime.proxy.requests.answer import (
    MAX_TOKEN_ID,
    AnswerTimes,
    BrokenAnswer,
    Choice,
    Finished,
    Mailbox,
    TokenSource,
)
from pontil.runtime.proxy.requests.attempts import Attempts, RequestLoad, WorkerReports
from pontil.runtime.proxy.requests.journal import Journal
from pontil.runtime.proxy.requests.logprob_check import ShownLogits, fit
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.proxy.routing.policy import Route
from pontil.runtime.proxy.routing.prompt_prefix import PromptPrefix
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.timeline.recorder import RequestRecorder
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Cancel, Embed, Logprobs, NodeOutput, NodeTask, Submit, Tokens

# The ticket of a request that no client sent.
NO_TICKET = Ticket()
NO_HEADERS: Mapping[str, str] = {}


class WorkPart(Enum):
    """The part of a client's request that work is: that of which the client waits for the end, one that was opened
    beside it and waits in no queue, or a question whose answer it needs first."""

    CLIENTS = "client's"
    JOINED = "joined"
    QUESTION = "question"


@dataclass(slots=True, eq=False)
class Work(ABC):
    """The work that a request asks of workers: a prompt, its parameters, and what differs between its kinds. Unless a
    kind says otherwise its answer is tokens, which one worker or pair makes of the model that generates. What is
    `beside` is a part of another request, which counts against the limits of its key for both. `image_tokens` of the
    prompt stand for images."""

    prompt: list[int]
    params: SamplingParams
    beside: bool = field(default=False, kw_only=True)
    image_tokens: int = field(default=0, kw_only=True)

    @abstractmethod
    def messages(
        self, request: "Request", sender: str, secret: str | None, deadline: float | None
    ) -> "Sequence[Submit | Embed | NodeTask]":
        """Return the messages that start the request's attempt, one for each worker. The secret is for the transfer
        between two; the answer's beginning is of use for `deadline` more seconds."""

    @property
    def group(self) -> str | None:
        """The key of the workers that serve it; None for those of the model that generates."""
        return None

    @property
    def model(self) -> str | None:
        """The name of the model; None for the one that generates."""
        return None

    @property
    def stage(self) -> str | None:
        """The name of the stage that it is for, of a model of several."""
        return None

    @property
    def joint(self) -> Sequence[str | None] | None:
        """The groups of workers of which each has to have a free seat before it begins; None if only its own counts."""
        return None

    @property
    def part(self) -> WorkPart:
        return WorkPart.CLIENTS

    @property
    def alone(self) -> Sequence[str] | None:
        """The roles of the workers of which one has to do all of it, where there are any of them; None if two may."""
        return None

    def suits(self, worker: str) -> bool:
        """Return whether the worker of this incarnation does it best, of those of these roles."""
        return True

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of a reply to it, as far as they are known when it begins."""
        return NO_HEADERS

    @property
    def may_pause(self) -> bool:
        """True if it can be computed again from any token on, for a reader that takes nothing now."""
        return False

    @property
    def makes_tokens(self) -> bool:
        return True

    @property
    def makes_outputs(self) -> bool:
        """True if its answer is numbered outputs of a node, which `accept_output` takes."""
        return False

    @property
    def has_bare_tokens(self) -> bool:
        """True if there is nothing beside the ids of its tokens."""
        return True

    @property
    def is_spoken(self) -> bool:
        """True if its ids stand for sound, made of another stage's items: it is billed no prompt and has no text."""
        return False

    @property
    def claim(self) -> tuple[int, int]:
        """The requests and tokens that count against the limits of the caller's key: the most that it may hold at
        once, its prompt and everything that it may generate."""
        return (0, 0) if self.beside else (1, len(self.prompt) + self.params.n * self.params.max_tokens)

    def cost(self, expected: float) -> float:
        """Return its cost in a fair share, where an answer is `expected` to have so many tokens."""
        return max(1.0, len(self.prompt) + self.params.n * min(float(self.params.max_tokens), expected))

    def load(self, request: "Request") -> int:
        """Return the prompt tokens that keep a worker busy."""
        return len(self.prompt)

    @property
    def ends_as(self) -> str | None:
        """The finish reason of one that was answered otherwise than by tokens; None: those of its choices."""
        return None

    def awaited(self, begun: bool) -> str:
        """Return the words for what the request waits for."""
        return "next token" if begun else "first token"

    def waits_since(self, request: "Request") -> float:
        """Return the time of its last progress."""
        return request.times.waits_since

    def prefix_keys(self, block_size: int, ticket: Ticket) -> PromptPrefix | None:
        """Return what is known of its prompt's keys; None where no worker would use what it has cached."""
        return None

    def fits(self, frame: Tokens) -> bool:
        """Return whether what comes beside the ids of a frame can be of this work."""
        return frame.frames is None

    def take_codes(self, frame: Tokens, new: int, delivered: int) -> None:
        """Keep what comes beside the `delivered` ids, of the `new` ones that are a frame's last."""
        return

    def accept_output(self, request: "Request", frame: NodeOutput, now: float) -> None:
        """Take an output. Raises BrokenAnswer for one that cannot be of this work."""
        raise BrokenAnswer("an output of a node came for what has none")

    def opened(self, request: "Request") -> None:
        """Take note of the request that was made for it."""
        return

    def launched(self, request: "Request") -> None:
        """Take note that an attempt was sent to all of its workers."""
        return

    def ended(self, request: "Request") -> None:
        """Take note of the request's end."""
        return


@dataclass(slots=True)
class Request:
    """A request in flight: the `work` that its `ticket` admitted.

    Its bill is in `account`, all that was computed for it in `entry`. `answers` are its choices, whose events wait in
    the `mailbox`. Workers keep to the `share` of its caller, and it is a `load` of theirs; it stays with those of one
    `release`, where there are several. The usage log is complete for a request that has ended once its `receipt` is
    done. A `trial` is a self-test request of the proxy: no client gets its answer, and nobody is billed. A `journal`
    records what another proxy needs to go on with the request, the `recorder` where its time goes. `trace` is the span
    of its HTTP request, where that is traced.
    """

    id: str
    ticket: Ticket
    work: Work
    account: Account
    entry: LedgerEntry
    answers: tuple[Choice, ...]
    mailbox: Mailbox
    times: AnswerTimes
    attempts: Attempts
    reports: WorkerReports = field(default_factory=WorkerReports)
    load: RequestLoad = field(default_factory=RequestLoad)
    share: FairShare = EVERYBODY
    release: WorkerRelease | None = None
    prompt_logprobs: Logprobs = field(default_factory=list)
    trial: bool = False
    receipt: "Future[None] | None" = None
    journal: Journal | None = None
    recorder: RequestRecorder = field(default_factory=RequestRecorder)
    trace: TraceContext | None = None

    @classmethod
    def start(
        cls,
        name: str,
        work: Work,
        tokenizer: Tokenizer | None,
        now: float,
        ticket: Ticket = NO_TICKET,
        ledger: Ledger | None = None,
    ) -> "Request":
        """Create a request that waits for its first attempt, and open its entry in the ledger, if there is one.
        InFlight closes the entry. Nobody reads the text of one without a tokenizer."""
        params = work.params
        prompt_tokens = 0 if work.is_spoken else len(work.prompt)
        account = Account(prompt_tokens, params.max_tokens, params.n, audible=work.is_spoken)
        answers = tuple(Choice(None if work.is_spoken else tokenizer, params, number) for number in range(params.n))
        # The prompt is shown before the answer, whichever worker's frame comes first.
        mailbox = Mailbox(held=params.prompt_logprobs is not None)
        entry = (Ledger() if ledger is None else ledger).open(name, prompt_tokens, params.n)
        entry.rows_apart = work.is_spoken
        return cls(name, ticket, work, account, entry, answers, mailbox, AnswerTimes(now, now, now), Attempts(now))

    @property
    def model(self) -> str | None:
        """The name of the model or adapter that it asks for; None: that of the model that generates."""
        return self.work.model if self.ticket.adapter is None else self.ticket.adapter.name

    @property
    def prompt(self) -> list[int]:
        return self.work.prompt

    @property
    def params(self) -> SamplingParams:
        return self.work.params

    @property
    def is_clients(self) -> bool:
        """True for what a client asked for, and waits for the end of."""
        return not self.trial and self.work.part is WorkPart.CLIENTS

    @property
    def is_joined(self) -> bool:
        """True if it was opened beside the client's own request."""
        return self.work.part is WorkPart.JOINED

    @property
    def unended(self) -> list[Choice]:
        return [choice for choice in self.answers if choice.reason is None]

    @property
    def reasons(self) -> dict[int, str]:
        """The finish reason of each choice that has ended."""
        return {choice.number: choice.reason for choice in self.answers if choice.reason is not None}

    def begin(self, route: Route, now: float) -> None:
        """Begin the next attempt, on these workers, after the tokens that were delivered. The first attempt's deadline
        counts from the request's arrival."""
        self.attempts.begin(route, now)
        number, phases = self.attempts.number, self.attempts.phases
        self.times.waits_since = now if number else self.times.arrived
        self.recorder.begin(number, {load.incarnation: load.name for load in route.workers}, now)
        self.account.open(number, tuple(phases.values()), self.reasons)
        self.entry.begin(number, phases, [len(answer.ids) for answer in self.answers])
        for worker, choice in ((worker, choice) for worker in phases for choice in self.answers):
            self.attempts.sources[worker, choice.number] = TokenSource(
                choice, number, self.mailbox, self.times, self.recorder.gaps, self.entry,
                self.entry.shares[number, worker, choice.number], self.account.choices[choice.number].attempts[number],
                self.is_clients and not self.ticket.is_line,
            )  # fmt: skip

    def broke(self, now: float, *, excused: bool = False) -> None:
        """End an attempt that broke; `excused` if no worker failed, and the same workers may serve the next."""
        self.account.died(self.attempts.number)
        self.attempts.end(now, excused=excused)
        self.times.waits_since = now
        self.recorder.broke(now)

    @property
    def usage(self) -> Usage:
        return self.account.running_usage

    @property
    def complete(self) -> bool:
        """True if every choice has finished."""
        return isinstance(self.mailbox.end, Finished)

    @property
    def billed(self) -> Usage:
        end = self.mailbox.end
        return end.usage if isinstance(end, Finished) else self.account.running_usage

    @property
    def finish(self) -> str | None:
        """The finish reasons of a complete answer, by choice; else None."""
        return (self.work.ends_as or ",".join(self.reasons.values())) if self.complete else None

    def needs(self, incarnation: str, *, drained: bool = False) -> bool:
        """Return whether the answer depends on this worker. The prefill worker is no longer needed once the decode
        worker has sent tokens of every unfinished choice, and the prompt's logprobs, if requested, are here; or once it
        is `drained`, since it then has handed the prompt over or reported a failure."""
        phase = self.attempts.phases.get(incarnation)
        if phase != PREFILL:
            return phase is not None
        if drained:
            return False
        if self.params.prompt_logprobs is not None and not self.prompt_logprobs:
            return True
        return any((DECODE, choice.number) not in self.attempts.heard for choice in self.unended)

    def accept(self, frame: Tokens, now: float) -> int:
        """Take a frame's ids and counts; return how many ids were new. Closes the mailbox after the last ones. Raises
        BrokenAnswer if frames contradict each other or leave a gap: the answer cannot be completed."""
        source, phase = self.attempts.sources[frame.sender, frame.choice], self.attempts.phases[frame.sender]
        choice = source.choice
        self.hear_prompt(frame)
        booked_tokens, new = source.hear(frame.index, frame.ids, now, frame.generated_tokens)
        self.attempts.heard.add((phase, choice.number))
        self.times.note_queue(frame.queue_seconds, now)
        self.reports.note_pull(frame, self.times, now)
        self.prompt_logprobs = frame.prompt_logprobs or self.prompt_logprobs
        has_ended = choice.reason is not None
        num_cached = frame.cached_tokens if frame.first_cached_tokens is None else frame.first_cached_tokens
        self.account.accept(
            self.attempts.number, phase, 0 if has_ended else len(new), frame.generated_tokens, num_cached, choice.number
        )
        if self.mailbox.held and self.attempts.has_heard_prompt:
            self.give_held()
        if has_ended:
            self.entry.settle(booked_tokens, 0, AFTER_END)
            return 0
        reason = self.account.finish_reason(frame.finish_reason, choice.number)
        delivered_tokens = source.deliver(new, booked_tokens, now, reason, frame.stop_match, ShownLogits.of(frame))
        self.work.take_codes(frame, len(new), delivered_tokens)
        if reason is not None:
            self.end_choice(choice, phase, reason, frame.stop_match)
        elif delivered_tokens:
            source.is_open = source.is_open or self.has_heard_all(phase)
        return delivered_tokens

    def has_heard_all(self, phase: str) -> bool:
        """Return whether a worker has sent the counts that are only in its first frame, and will send ids alone."""
        has_counts = self.entry.prompt_stated is not None and phase in self.account.cached_by[self.attempts.number]
        plain = not self.params.shows_logits and self.params.prompt_logprobs is None
        return has_counts and plain and self.work.has_bare_tokens

    def hear_prompt(self, frame: Tokens) -> None:
        """Book what a frame says of the prompt, and of drafts."""
        if frame.prompt_tokens is not None and self.entry.prompt_stated is None:
            self.entry.prompt_stated = stated_count(frame.prompt_tokens)
        self.reports.note(frame, self.params.max_tokens)
        if frame.computed_tokens is not None:
            self.entry.hear_prompt(self.attempts.number, frame.sender, frame.cached_tokens, frame.computed_tokens)

    def end_choice(self, choice: Choice, phase: str, reason: str, stop_match: str | None) -> None:
        choice.reason, choice.stop_match = reason, stop_match
        self.account.ended_by(self.attempts.number, phase, choice.number)
        end = None if self.unended or self.mailbox.held else self.finished(str(self.answers[0].reason))
        self.mailbox.end_choice(choice.number, reason, choice.stop_reason if reason == "stop" else None, end)

    def finished(self, reason: str) -> Finished:
        return Finished(reason, self.account.usage, self.attempts.route_name)

    def give_held(self) -> None:
        """Give the reader what was held until more is known of the prompt, and the end of a whole answer."""
        self.mailbox.release()
        if not self.unended:
            self.mailbox.close(self.finished(str(self.answers[0].reason)))

    def end_at_once(self, sender: str, label: str) -> None:
        """End a request that was answered otherwise than by tokens. Its one choice has this label."""
        self.account.accept(self.attempts.number, self.attempts.phases[sender], 0, generated=0, cached=0)
        self.answers[0].reason = label
        self.mailbox.close(self.finished("stop"))

    def is_sound(self, frame: Tokens) -> bool:
        """Return whether the frame's numbers are in range for this request."""
        fits = not frame.ids or (min(frame.ids) >= 0 and max(frame.ids) < MAX_TOKEN_ID)
        is_placed = 0 <= frame.choice < len(self.answers) and frame.index >= 0
        return fits and is_placed and self.work.fits(frame) and fit(frame, self.prompt, self.params)

    def cancels(self, sender: str) -> list[Cancel]:
        return [Cancel(sender, worker, self.id, self.attempts.number) for worker in self.attempts.phases]
