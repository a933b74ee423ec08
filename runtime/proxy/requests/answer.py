# SPDX-License-Identifier: Apache-2.0
"""A request's answer, from the workers' tokens to its reader: each choice's ids, counted once, the text that may be
shown, and the events that wait to be read, of which the last is exactly one end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pontil.runtime.accounting.counts import AttemptCount, Usage
from pontil.runtime.accounting.ledger import BEYOND_BUDGET, BROKEN, REPEATED, LedgerEntry, WorkShare
from pontil.runtime.errors import PontilError
from pontil.runtime.proxy.requests.logprob_check import NO_LOGITS, ShownLogits
from pontil.runtime.receipts.chain import START, extended, marks
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.timeline.step_gaps import BUFFER, StepGaps
from pontil.runtime.tokenizer.detokenizer import Detokenizer, StopStrings
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.codec import HEAD
from pontil.runtime.wire.messages import Logprobs

MAX_TOKEN_ID = 1 << 31


class BrokenAnswer(Exception):
    """Frames that contradict each other or leave a gap: tokens were lost, or two workers disagree."""


@dataclass(slots=True)
class Delta:
    """New tokens of one choice. `text` may be empty: a token need not complete a character (A7). `logprobs` has one
    item for each id if they were requested."""

    text: str
    ids: list[int]
    choice: int = 0
    logprobs: Logprobs = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Ended:
    """One choice is complete. `stop_reason` is the stop string, or the id of `stop_token_ids`, that ended it."""

    choice: int
    reason: str
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a request: every choice is complete. `reason` is choice 0's. `route` names the workers that served
    it."""

    reason: str
    usage: Usage
    route: str


Event = Delta | Ended | Finished
# An event and the index of its choice, counted through all requests of a reply.
ChoiceEvent = tuple[int, Delta | Ended]


class WholeAnswer:
    """The answer to so many requests, `running` until they end. What closes the accounts of those that have ended is
    `held` until it is known whether there is an answer, or its reader has `begun` to take it in parts: nobody is billed
    for an answer that failed before."""

    def __init__(self, requests: int) -> None:
        self.running, self.failed, self.begun = requests, False, False
        self.held: list[Callable[[], None]] = []

    def add(self) -> None:
        """Count one request more, which begins only now."""
        self.running += 1

    def end(self, close: Callable[[], None], *, failed: bool) -> None:
        """Note the end of a request. `close` is called once none runs, or one has failed."""
        self.running -= 1
        self.held.append(close)
        if failed and not self.begun:
            self.fail()
        elif self.failed or self.begun or not self.running:
            self.close()

    def begin(self) -> None:
        """Note that the reader has a part: each request is billed as what was delivered of it."""
        self.begun = True
        self.close()

    def fail(self) -> None:
        self.failed = True
        self.close()

    def close(self) -> None:
        callbacks, self.held = self.held, []
        for close in callbacks:
            close()


class Mailbox:
    """One request's queue of events from the workers' frames to one reader, within one event loop.

    Events that the reader has not taken are merged into one Delta per choice, so a slow reader holds at most one
    answer, and the writer never blocks. After `close` the rest is still delivered, then the end. Nothing is delivered
    while it is `held`. The `listener` is called synchronously by every write, and may `drain`; it must not raise. It is
    `untaken` while the reader takes nothing at all. It is a part of a `whole` answer if the reader takes that, or
    its beginning, or an error.
    """

    def __init__(self, held: bool = False) -> None:
        self.held, self.untaken = held, False
        self.whole: WholeAnswer | None = None
        self.deltas: dict[int, Delta] = {}
        self.ended: dict[int, Ended] = {}
        self.end: Finished | PontilError | None = None
        self.listener: Callable[[], None] = no_listener

    @property
    def is_read(self) -> bool:
        """True if its reader has a part of what came, or would have one by now."""
        return self.whole is None or self.whole.begun

    def put(self, text: str, ids: Sequence[int], choice: int = 0, logprobs: Logprobs | None = None) -> None:
        self.add(text, ids, choice, logprobs)
        self.notify()

    def add(self, text: str, ids: Sequence[int], choice: int = 0, logprobs: Logprobs | None = None) -> None:
        """Put without a call of the listener, which the end of the choice makes."""
        delta = self.deltas.get(choice)
        if delta is None:
            self.deltas[choice] = Delta(text, list(ids), choice, list(logprobs or ()))
        else:
            delta.text += text
            delta.ids += ids
            delta.logprobs += logprobs or ()

    def end_choice(
        self, choice: int, reason: str, stop_reason: str | int | None = None, end: Finished | None = None
    ) -> None:
        """End a choice, and the request if this was the last one: that is its `end` then."""
        self.ended[choice] = Ended(choice, reason, stop_reason)
        if end is None or self.end is not None:
            self.notify()
        else:
            self.close(end)

    @property
    def tokens(self) -> int:
        """The tokens that wait for the reader."""
        return sum(len(delta.ids) for delta in self.deltas.values())

    def close(self, end: Finished | PontilError) -> None:
        """End the request; only the first call has an effect."""
        if self.end is None:
            self.end = end
            self.held = False
            self.notify()

    def release(self) -> None:
        if self.held:
            self.held = False
            self.notify()

    def notify(self) -> None:
        if not self.held:
            self.listener()

    def drain(self) -> list[Delta | Ended]:
        """Remove and return all events but the end, which is next where it is set."""
        if self.held:
            return []
        events: list[Delta | Ended] = list(self.deltas.values())
        self.deltas.clear()
        if self.ended:
            events += self.ended.values()
            self.ended.clear()
        return events


def no_listener() -> None:
    """Leave the events to who drains them."""


class NoText:
    """The detokenizer of ids that stand for no text."""

    def add(self, ids: Sequence[int]) -> str:
        return ""

    def finish(self) -> str:
        return ""


class Choice:
    """One of a request's answers, by its `number`: its ids, its text, which is empty without a tokenizer, and once it
    has ended the finish `reason`, with the stop string as its worker stated it; and the `chain` of its ids, with the
    `marks` of their logits, where these are asked for (an answer that another proxy began has only its own). Frames may
    arrive late, twice and from two workers (decode repeats what prefill sent), so ids are counted once, by index."""

    def __init__(self, tokenizer: Tokenizer | None, params: SamplingParams, number: int = 0) -> None:
        self.params, self.number = params, number
        self.ids: list[int] = []
        self.reason: str | None = None
        self.stop_match: str | None = None
        self.chain, self.marks = START, bytearray()
        self.detokenizer = NoText() if tokenizer is None else Detokenizer(tokenizer, params.skip_special_tokens)
        self.stops = StopStrings(params.stop, params.include_stop_str_in_output) if params.stop else None
        self.end_ids = (*(() if tokenizer is None else tokenizer.eos_ids), *params.stop_token_ids)

    def unseen(self, index: int, ids: Sequence[int]) -> Sequence[int]:
        """Return the new tail of `ids`, which start at `index`. Raises BrokenAnswer for a gap or a contradiction."""
        have = len(self.ids)
        if index == have:
            return ids
        if index > have:
            raise BrokenAnswer(f"token {have} of the answer was lost")
        overlap = have - index
        if self.ids[index : index + len(ids)] != list(ids[:overlap]):
            raise BrokenAnswer("two workers disagree about a token of the answer")
        return ids[overlap:]

    def add(self, ids: Sequence[int], reason: str | None = None, stop_match: str | None = None) -> str:
        """Append new ids; return the text that can be shown now. With a `reason` they are the last, and no text is held
        back. The text of the first `min_tokens` ids is not matched against stop strings."""
        shown_ids = ids[:-1] if self.is_ended(ids, reason, stop_match) and self.hides_text(ids) else ids
        early = self.params.min_tokens - len(self.ids)
        self.ids += ids
        prefix, tail = (self.detokenizer.add(shown_ids[:early]), shown_ids[early:]) if early > 0 else ("", shown_ids)
        text = self.detokenizer.add(tail)
        if reason is not None:
            text += self.detokenizer.finish()
        if self.stops is None:
            return prefix + text
        text = prefix + self.stops.feed(text)
        return text if reason is None else text + self.stops.finish()

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string, or the id of `stop_token_ids`, with which an answer that was stopped ends; None if it was
        the model's own end."""
        if self.stops is not None and self.stops.matched is not None:
            return self.stops.matched
        return self.ids[-1] if self.ids and self.ids[-1] in self.params.stop_token_ids else None

    def is_ended(self, ids: Sequence[int], reason: str | None, stop_match: str | None) -> bool:
        """Return whether the last of these ids, which came with this reason, is a token that ends the answer. One with
        which a grammar closed it for its budget is, though the reason is `length`."""
        if reason == "length":
            return self.params.grammar is not None and bool(ids) and ids[-1] in self.end_ids
        return reason == "stop" and stop_match is None

    def hides_text(self, ids: Sequence[int]) -> bool:
        """Return whether the text of the last id, which ended the answer, is not to be shown."""
        return self.hides_end or (
            bool(ids) and ids[-1] in self.params.stop_token_ids and not self.params.include_stop_str_in_output
        )

    @property
    def hides_end(self) -> bool:
        """True if a token that ends the answer is not to be shown at all."""
        return self.params.hide_end_token and not self.params.include_stop_str_in_output

    def shown(self, ids: Sequence[int], reason: str | None, stop_match: str | None) -> Sequence[int]:
        """Return those of the last ids, which came with this reason, that are shown."""
        return ids[:-1] if self.hides_end and self.is_ended(ids, reason, stop_match) else ids


@dataclass(slots=True)
class AnswerTimes:
    """The times of a request, in seconds of the proxy's clock: it `arrived`, the `last_frame` came, its deadline
    counts from `waits_since`. It has `begun` once any token of its answer has arrived. `queued` is the seconds that it
    waited in its worker's queue, if known."""

    arrived: float
    last_frame: float
    waits_since: float
    begun: bool = False
    first_token: float | None = None
    queued: float | None = None

    def heard(self, now: float) -> None:
        self.last_frame = self.waits_since = now

    def credible(self, seconds: float, now: float) -> float | None:
        """Return a reported duration, or None if it is negative or longer than the request exists."""
        return float(seconds) if 0.0 <= seconds <= now - self.arrived else None

    def note_queue(self, seconds: float | None, now: float) -> None:
        """Take the seconds in a queue that a worker reports, the first time."""
        if self.queued is None and seconds is not None:
            self.queued = self.credible(seconds, now)


@dataclass(slots=True)
class TokenSource:
    """One worker's part in a choice, during one attempt. It holds every object that a token changes, looked up once
    instead of per token; `is_clients` as its request. It `is_open` once the worker has sent what only its first frame
    carries: its rows have ids alone then."""

    choice: Choice
    attempt: int
    mailbox: Mailbox
    times: AnswerTimes
    gaps: StepGaps
    entry: LedgerEntry
    share: WorkShare
    count: AttemptCount
    is_clients: bool
    is_open: bool = False

    def try_accept(self, row: list[int], now: float) -> bool:
        """Take a row of a Step if it is ordinary; return whether it was. All else goes to `Request.accept`."""
        ids = row[HEAD:]
        if not self.is_ordinary(row, ids):
            return False
        booked_tokens, new = self.hear(row[2], ids, now)
        self.count.accepted += len(new)
        self.deliver(new, booked_tokens, now)
        return True

    def is_ordinary(self, row: Sequence[int], ids: Sequence[int]) -> bool:
        """Return whether the row has the next ids of the choice, all new and without the last one of its budget."""
        choice, index = self.choice, row[2]
        return (
            self.is_open
            and row[0] == self.attempt
            and choice.reason is None
            and index == len(choice.ids)
            and index + len(ids) < choice.params.max_tokens
            and min(row) >= 0
            and max(ids) < MAX_TOKEN_ID
        )

    def hear(self, index: int, ids: Sequence[int], now: float, stated: int | None = None) -> tuple[int, Sequence[int]]:
        """Book a frame's ids as generated; return how many that adds, and the ids that are new to the choice. Raises
        BrokenAnswer for a gap or a contradiction."""
        booked_tokens = self.share.generate(index, len(ids), stated)
        try:
            new = self.choice.unseen(index, ids)
        except BrokenAnswer:
            self.entry.settle(booked_tokens, 0, BROKEN)
            raise
        times = self.times
        times.last_frame = times.waits_since = now
        return booked_tokens, new

    def deliver(
        self,
        new: Sequence[int],
        made: int,
        now: float,
        reason: str | None = None,
        stop_match: str | None = None,
        shown_logits: ShownLogits = NO_LOGITS,
    ) -> int:
        """Put new ids, up to the budget, into the choice and its mailbox, with the last `logprobs` if there are any.
        Return how many were accepted; the others, of those `made`, are discarded. With a `reason` they are the last,
        and the listener hears of them at the choice's end."""
        choice = self.choice
        if choice.params.top_logits and new and not shown_logits.top_logits:
            self.entry.settle(made, 0, BROKEN)
            raise BrokenAnswer("a worker does not state logits, which a receipt needs: its version makes none")
        room = choice.params.max_tokens - len(choice.ids)
        ids = new if len(new) <= room else new[:room]
        count = len(ids)
        self.entry.settle(made, count, REPEATED if ids is new else BEYOND_BUDGET)
        if choice.params.top_logits:
            stated = shown_logits.of_last(len(new), count, choice.params.top_logits)
            choice.chain = extended(choice.chain, ids, stated)
            choice.marks += marks(stated, count)
        text = choice.add(ids, reason, stop_match)
        if count:
            self.times.begun = True
            # As StepGaps.note does, without a call.
            arrivals = self.gaps.arrivals
            arrivals.append(now)
            if len(arrivals) >= BUFFER:
                self.gaps.settle()
        shown = ids if reason is None else choice.shown(ids, reason, stop_match)
        if shown or text:
            tell = self.mailbox.put if reason is None else self.mailbox.add
            logprobs = shown_logits.logprobs
            tell(text, shown, choice.number, logprobs[len(logprobs) - len(new) :][: len(shown)] if logprobs else None)
        return count
