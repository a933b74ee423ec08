# SPDX-License-Identifier: Apache-2.0
"""State of one request in the proxy, driven by frames and never by text (A7)."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from pontil.runtime.accounting.book import stated_count
from pontil.runtime.accounting.counts import DECODE, PREFILL, Account, Usage
from pontil.runtime.accounting.ledger import (
    AFTER_END,
    BEYOND_BUDGET,
    BROKEN,
    REPEATED,
    Ledger,
    LedgerEntry,
)
from pontil.runtime.foundation.fair_share import EVERYBODY, FairShare
from pontil.runtime.foundation.trace_context import TraceContext
from pontil.runtime.proxy.fleet.registered_worker import RegisteredWorker
from pontil.runtime.proxy.fleet.worker_release import WorkerRelease
from pontil.runtime.proxy.requests.choice_text import MAX_TOKEN_ID, BrokenAnswer, ChoiceText, TokenPath
from pontil.runtime.proxy.requests.embedding_task import EmbeddingTask
from pontil.runtime.proxy.requests.logprob_check import fit
from pontil.runtime.proxy.requests.stream import Finished, Mailbox
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.proxy.routing.policy import DisaggregatedRoute, Route, Team
from pontil.runtime.proxy.routing.prompt_prefix import PromptPrefix
from pontil.runtime.proxy.routing.remote_kv import RemoteKV
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.stages.runs.stage_task import StageTask
from pontil.runtime.timeline.recorder import RequestRecorder
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Cancel, Logprobs, Submit, Tokens

LONGEST_REASON = 300
# Attempts that may end through no fault of their workers before each of them counts as a fault, too.
MOST_EXCUSED = 64
# Route name of a request that was never dispatched.
NO_ROUTE = "-"
# That of a request that no client sent.
NO_TICKET = Ticket()


@dataclass(frozen=True, slots=True)
class PullReport:
    """A decode worker's report of the pull of a prompt's KV blocks: bytes, seconds of copying if credible, and the
    error if the pull failed."""

    bytes: int = 0
    seconds: float | None = None
    error: str | None = None


class Journal(Protocol):
    """The record of a request."""

    def note(self) -> bool:
        """Record the request as it is now; return whether it could be."""

    def close(self, billed: Usage, finish: str) -> None:
        """Record its end, before that is in the usage log."""

    def let_go(self) -> None:
        """Take note that its end is in the usage log, or on its way there."""


@dataclass(slots=True)
class Request:
    """A request in flight.

    `arrived`, `last_frame`, `waits_since` and `first_token` are in seconds of the proxy's clock; `queued` is the
    seconds that it waited in its worker's queue, if known. The usage log is complete for a request that has ended once
    its `receipt` is done. `heard` holds the pairs of phase and choice for which a frame has arrived, `reasons` the
    finish reason of each choice. `drafted` counts draft tokens, `accepted` those that were right. Workers keep to the
    `share` of its caller. A `trial` is a self-test request of the proxy: no client gets its answer, and
    nobody is billed.

    Attempts serve a request one after another. Before the first and between two of them `phases` is empty. `broken` are
    the teams that failed it; `excused` counts attempts that ended through no fault. `sent` is the time when the attempt
    was dispatched, `stranded_at` when the last one that reached its workers broke; `prompt_worker` has yet to compute
    `uncomputed` tokens of the prompt, and `seated` choices count at its `workers`, as they were registered when it was
    sent to them. A request has `begun` once any token
    of its answer has arrived. `token_paths` holds those that are open, by worker and choice. With an `embedding` task
    its answer is the `vector`, and no tokens; with a `stage` task it is for one stage of a model of several. `prefix`
    is what was computed to find its prompt in caches. It stays with the workers of one `release`, where there are
    several. With `remote_kv` its prompt is kept for a worker of another proxy, or comes from one. `stop_matches` has
    the stop string of each choice that ended, as its worker stated it. A `journal` records what another proxy needs to
    go on with the request, the `recorder` where its time goes. `trace` is the span of its HTTP request, where that is
    traced.
    """

    id: str
    ticket: Ticket
    prompt: list[int]
    params: SamplingParams
    account: Account
    entry: LedgerEntry
    answers: tuple[ChoiceText, ...]
    arrived: float
    last_frame: float
    waits_since: float
    sent: float
    route: Route | None = None
    attempt: int = -1
    excused: int = 0
    stranded_at: float | None = None
    phases: dict[str, str] = field(default_factory=dict)
    broken: set[Team] = field(default_factory=set)
    heard: set[tuple[str, int]] = field(default_factory=set)
    reasons: dict[int, str] = field(default_factory=dict)
    prompt_logprobs: Logprobs = field(default_factory=list)
    share: FairShare = EVERYBODY
    mailbox: Mailbox = field(default_factory=Mailbox)
    prompt_worker: str | None = None
    uncomputed: int = 0
    seated: int = 0
    workers: tuple[RegisteredWorker, ...] = ()
    begun: bool = False
    first_token: float | None = None
    queued: float | None = None
    drafted: int = 0
    accepted: int = 0
    receipt: "Future[None] | None" = None
    trial: bool = False
    pulled: PullReport = PullReport()
    token_paths: dict[tuple[str, int], TokenPath] = field(default_factory=dict)
    embedding: EmbeddingTask | None = None
    vector: bytes | None = None
    stage: StageTask | None = None
    prefix: PromptPrefix | None = None
    release: WorkerRelease | None = None
    remote_kv: RemoteKV | None = None
    stop_matches: dict[int, str | None] = field(default_factory=dict)
    journal: "Journal | None" = None
    recorder: RequestRecorder = field(default_factory=RequestRecorder)
    trace: TraceContext | None = None

    @classmethod
    def start(
        cls,
        name: str,
        prompt: list[int],
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        now: float,
        ticket: Ticket = NO_TICKET,
        ledger: Ledger | None = None,
        stage: StageTask | None = None,
    ) -> "Request":
        """Create a request that waits for its first attempt, and open its entry in the ledger, if there is one.
        InFlight closes the entry. Nobody reads the text of one without a tokenizer. A `stage` that takes another
        stage's items is billed no prompt, and its ids stand for sound instead of text."""
        spoken = stage is not None and stage.takes_items
        billed = 0 if spoken else len(prompt)
        account = Account(billed, params.max_tokens, params.n, audible=spoken)
        answers = tuple(ChoiceText(None if spoken else tokenizer, params) for _ in range(params.n))
        # The prompt is shown before the answer, whichever worker's frame comes first.
        mailbox = Mailbox(held=params.prompt_logprobs is not None)
        entry = (Ledger() if ledger is None else ledger).open(name, billed, params.n)
        entry.rows_apart = spoken
        return cls(
            name, ticket, prompt, params, account, entry, answers, now, now, now, now, mailbox=mailbox, stage=stage
        )

    def begin(self, route: Route, now: float) -> None:
        """Begin the next attempt, on these workers, after the tokens that were delivered. The first attempt's deadline
        counts from the request's arrival."""
        self.attempt += 1
        self.route, self.phases, self.sent = route, route.phases, now
        self.waits_since = now if self.attempt else self.arrived
        self.recorder.begin(self.attempt, {one.incarnation: one.name for one in route.workers}, now)
        self.heard.clear()
        self.token_paths.clear()
        self.account.open(self.attempt, tuple(self.phases.values()), self.reasons)
        self.entry.begin(self.attempt, self.phases, [len(answer.ids) for answer in self.answers])

    def broke(self, now: float, *, excused: bool = False) -> None:
        """End an attempt that broke; `excused` if no worker failed, and the same workers may serve the next."""
        self.account.died(self.attempt)
        if excused:
            self.excused += 1
        else:
            self.broken.add(tuple(self.phases))
        self.phases, self.waits_since = {}, now
        self.recorder.broke(now)
        if self.stranded_at is None:
            self.stranded_at = now
        self.token_paths.clear()

    @property
    def faults(self) -> int:
        """Number of attempts that broke; valid between two attempts."""
        return self.attempt + 1 - min(self.excused, MOST_EXCUSED)

    @property
    def route_name(self) -> str:
        """Name of the current or last route."""
        return NO_ROUTE if self.route is None else self.route.name

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
        return ",".join(self.reasons[choice] for choice in sorted(self.reasons)) if self.complete else None

    def expects(self, sender: str, attempt: int) -> bool:
        return attempt == self.attempt and sender in self.phases

    def needs(self, incarnation: str, *, drained: bool = False) -> bool:
        """Return whether the answer depends on this worker. The prefill worker is no longer needed once the decode
        worker has sent tokens of every unfinished choice, and the prompt's logprobs, if requested, are here; or once it
        is `drained`, since it then has handed the prompt over or reported a failure."""
        phase = self.phases.get(incarnation)
        if phase != PREFILL:
            return phase is not None
        if drained:
            return False
        if self.params.prompt_logprobs is not None and not self.prompt_logprobs:
            return True
        return any((DECODE, choice) not in self.heard and choice not in self.reasons for choice in range(self.params.n))

    def reached(self, incarnation: str) -> bool:
        """Return whether a frame of this worker has arrived in this attempt."""
        return any(phase == self.phases[incarnation] for phase, _ in self.heard)

    def accept(self, frame: Tokens, now: float) -> int:
        """Take a frame's ids and counts; return how many ids were new. Closes the mailbox after the last ones.

        Raises BrokenAnswer if frames contradict each other or leave a gap: the answer cannot be completed.
        """
        answer, choice, phase = self.answers[frame.choice], frame.choice, self.phases[frame.sender]
        made = self.book(frame)
        try:
            new = answer.unseen(frame.index, frame.ids)
        except BrokenAnswer:
            self.entry.settle(made, 0, BROKEN)
            raise
        self.heard.add((phase, choice))
        self.last_frame = self.waits_since = now
        if self.queued is None and frame.queue_seconds is not None:
            self.queued = self.credible(frame.queue_seconds, now)
        if frame.pulled_bytes is not None:
            self.note_pull(frame, now)
        ended = choice in self.reasons
        accepted = 0 if ended else len(new)
        cached = frame.cached_tokens if frame.first_cached_tokens is None else frame.first_cached_tokens
        self.account.accept(self.attempt, phase, accepted, frame.generated_tokens, cached, choice)
        if ended:
            self.entry.settle(made, 0, AFTER_END)
            return 0
        reason = self.account.finish_reason(frame.finish_reason, choice)
        delivered = list(new[: self.params.max_tokens - len(answer.ids)])
        self.entry.settle(made, len(delivered), BEYOND_BUDGET if len(delivered) < len(new) else REPEATED)
        text = answer.add(delivered, reason, frame.stop_match)
        if self.stage is not None:
            self.stage.take_frames(frame, len(new), len(delivered))
        if frame.prompt_logprobs:
            self.prompt_logprobs = frame.prompt_logprobs
            self.mailbox.release()
        self.begun = self.begun or bool(delivered)
        if delivered:
            self.recorder.gaps.note(now)
        if delivered or text:
            tell = self.mailbox.put if reason is None else self.mailbox.add
            tell(text, delivered, choice, logprobs_of(frame, len(new), len(delivered)))
        if reason is not None:
            self.stop_matches[choice] = frame.stop_match
            self.end_choice(choice, phase, reason)
        elif delivered and (frame.sender, choice) not in self.token_paths:
            self.open_token_path(frame.sender, phase, choice)
        return len(delivered)

    @property
    def group(self) -> str | None:
        """The key of the workers that serve it; None for those of the model that generates."""
        if self.stage is not None:
            return self.stage.group
        return None if self.embedding is None else self.embedding.model

    @property
    def is_clients(self) -> bool:
        """True for what a client asked for, and waits for the end of."""
        return not self.trial and (self.stage is None or self.stage.is_clients)

    def open_token_path(self, sender: str, phase: str, choice: int) -> None:
        """Open a token path, if the worker has sent the counts that are only in its first frame and no logprobs are
        wanted."""
        said = self.entry.prompt_stated is not None and phase in self.account.cached_by[self.attempt]
        plain = self.stage is None or self.stage.node.codes == 1
        if said and plain and self.params.logprobs is None and self.params.prompt_logprobs is None:
            share = self.entry.shares[self.attempt, sender, choice]
            count = self.account.choices[choice].attempts[self.attempt]
            answer, gaps = self.answers[choice], self.recorder.gaps
            self.token_paths[sender, choice] = TokenPath(self, choice, self.attempt, answer, share, count, gaps)

    def note_pull(self, frame: Tokens, now: float) -> None:
        seconds = None if frame.pulled_seconds is None else self.credible(frame.pulled_seconds, now)
        error = None if frame.pull_error is None else frame.pull_error[:LONGEST_REASON]
        self.pulled = PullReport(stated_count(frame.pulled_bytes) or 0, seconds, error)

    def credible(self, seconds: float, now: float) -> float | None:
        """Return a reported duration, or None if it is negative or longer than the request exists."""
        return float(seconds) if 0.0 <= seconds <= now - self.arrived else None

    def book(self, frame: Tokens) -> int:
        """Book the frame in the ledger; return how many ids it adds to those generated."""
        if frame.prompt_tokens is not None and self.entry.prompt_stated is None:
            self.entry.prompt_stated = stated_count(frame.prompt_tokens)
        if frame.draft_tokens is not None:
            self.note_drafts(frame)
        if frame.computed_tokens is not None:
            self.entry.hear_prompt(self.attempt, frame.sender, frame.cached_tokens, frame.computed_tokens)
        return self.entry.hear(
            self.attempt, frame.sender, frame.choice, frame.index, len(frame.ids), frame.generated_tokens
        )

    def note_drafts(self, frame: Tokens) -> None:
        """Add up draft tokens, for the request's summary only (B9): drafts are never billed."""
        drafted = min(stated_count(frame.draft_tokens) or 0, self.params.max_tokens)
        self.drafted += drafted
        self.accepted += min(stated_count(frame.accepted_draft_tokens) or 0, drafted, len(frame.ids))

    def end_choice(self, choice: int, phase: str, reason: str) -> None:
        self.reasons[choice] = reason
        self.token_paths = {key: path for key, path in self.token_paths.items() if key[1] != choice}
        self.account.ended_by(self.attempt, phase, choice)
        is_last = len(self.reasons) == self.params.n
        end = Finished(self.reasons[0], self.account.usage, self.route_name) if is_last else None
        stopped_by = self.answers[choice].stop_reason if reason == "stop" else None
        self.mailbox.end_choice(choice, reason, stopped_by, end)

    def is_sound(self, frame: Tokens) -> bool:
        """Return whether the frame's numbers are in range for this request."""
        ids = frame.ids
        fits = not ids or (min(ids) >= 0 and max(ids) < MAX_TOKEN_ID)
        fits = fits and (frame.frames is None if self.stage is None else self.stage.fits(frame))
        return (
            fits and 0 <= frame.choice < len(self.answers) and frame.index >= 0 and fit(frame, self.prompt, self.params)
        )

    def submits(self, sender: str, transfer_secret: str | None = None, deadline: float | None = None) -> list[Submit]:
        """Return the messages that start the attempt: one per worker, the decode worker's first, as it has to make
        room. The secret is for the transfer between the two; the first token is of use for `deadline` seconds."""
        assert self.route is not None, "begin the attempt first"
        common: dict[str, Any] = {
            "sender": sender, "request_id": self.id, "attempt": self.attempt, "prompt": self.prompt,
            "sampling": self.params.to_wire(), "cache_salt": self.ticket.cache_salt,
            "priority": self.ticket.priority, "deadline": deadline,
            "traceparent": None if self.trace is None else self.trace.traceparent,
            "caller": self.share.caller, "weight": self.share.weight,
        }  # fmt: skip
        if self.attempt > 0:
            common["delivered"] = [answer.ids for answer in self.answers]
            common["choices"] = [choice for choice in range(self.params.n) if choice not in self.reasons]
            if self.prompt_logprobs:
                common["sampling"]["prompt_logprobs"] = None
        if not isinstance(self.route, DisaggregatedRoute):
            if self.remote_kv is not None:
                common |= self.remote_kv.submitted(self)
            return [Submit(receiver=self.route.worker.incarnation, **common)]
        prefill, decode = self.route.prefill, self.route.decode
        common |= {"transfer_id": f"{self.id}.{self.attempt}", "transfer_secret": transfer_secret}
        return [
            Submit(
                receiver=decode.incarnation, phase=DECODE, peer=prefill.incarnation,
                peer_endpoint=prefill.peer_endpoint, **common,
            ),
            Submit(receiver=prefill.incarnation, phase=PREFILL, peer=decode.incarnation, **common),
        ]  # fmt: skip

    def cancels(self, sender: str) -> list[Cancel]:
        return [Cancel(sender, incarnation, self.id, self.attempt) for incarnation in self.phases]


def logprobs_of(frame: Tokens, new: int, delivered: int) -> Logprobs:
    """Return the logprobs of the delivered ids: the frame's last `new` ones, cut at the budget."""
    known = frame.logprobs
    return known[len(known) - new :][:delivered] if known else []
