# SPDX-License-Identifier: Apache-2.0
"""A request on a worker, and its construction from a Submit message."""

import time
from dataclasses import dataclass, field, replace
from functools import partial

from pontil.runtime.engine.engine import Output
from pontil.runtime.engine.sequences.output_record import Known
from pontil.runtime.engine.sequences.prompt_keys import NO_USED_ADAPTER, SaltedPrefix, UsedAdapter
from pontil.runtime.engine.sequences.sequence import Branch, FinishReason, Purpose, Sequence, Standing
from pontil.runtime.engine.sequences.token_rules import DrawRules, SequenceStops
from pontil.runtime.errors import MalformedFrame, RequestError
from pontil.runtime.foundation.fair_share import FairShare
from pontil.runtime.foundation.value import value
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.timeline.work_times import WorkTimes
from pontil.runtime.tokenizer.detokenizer import Detokenizer, StopStrings
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Submit, Tokens
from pontil.runtime.wire.request_messages import CLAIM, HOLD
from pontil.runtime.worker.process.reasoning import budget_of
from pontil.runtime.worker.start.assembly import WorkerResources

# Ended requests to remember, since a later attempt may come to this worker.
REMEMBERED = 1024
# The ends of an answer with which its prompt is kept.
KEPT_ENDS = (FinishReason.STOP, FinishReason.LENGTH)
# Finish reasons on the wire; an end that is not in this table does not end the answer.
FINISH_REASONS: dict[FinishReason | None, str] = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


class TextStops:
    """The matcher of stop strings where tokens are sampled, so that the worker itself decides the count and the finish
    reason. It detokenizes one sequence as the proxy will, and returns the stop string that its text has reached. The
    text of the first `min_tokens` tokens never matches, not even as part of a stop string."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self.detokenizer = Detokenizer(tokenizer, params.skip_special_tokens)
        self.stops = StopStrings(params.stop, params.include_stop_str_in_output)
        self.early = params.min_tokens

    def feed(self, token_id: int) -> str | None:
        text = self.detokenizer.add([token_id])
        if self.early > 0:
            self.early -= 1
            return None
        self.stops.feed(text)
        return self.stops.matched


@value(frozen=True, slots=True)
class PullOutcome:
    """The result of pulling a prompt's KV: bytes, and the seconds that copying them took; or the error."""

    bytes: int | None = None
    seconds: float | None = None
    error: str | None = None


NOTHING_PULLED = PullOutcome()


@dataclass(slots=True, eq=False)
class WorkerRequest:
    """One attempt at one request. `proxy` is the incarnation that submitted it and gets its results; `arrived` is in
    seconds of the scheduler's clock. `pulled` is set once a transfer to this worker has ended; it `handed` over what is
    known where the prompt is computed once more. A text that follows a grammar ends with one of the `ends`."""

    proxy: str
    request_id: str
    attempt: int
    sequence: Sequence
    submit: Submit
    arrived: float = field(default_factory=lambda: time.monotonic())
    first_cached: int | None = None
    pulled: PullOutcome = NOTHING_PULLED
    ends: frozenset[int] = frozenset()
    times: WorkTimes = field(default_factory=WorkTimes)
    handed: list[Known] | None = None

    def __post_init__(self) -> None:
        self.sequence.history.times = self.times

    @property
    def key(self) -> str:
        return self.sequence.id

    @property
    def hands_over(self) -> bool:
        """Return whether its prompt is computed here for another worker."""
        return self.sequence.hands_over

    @property
    def gives_way(self) -> bool:
        return self.sequence.standing.share.gives_way

    @property
    def is_held(self) -> bool:
        """Return whether its prompt is kept for whichever decode worker claims it."""
        return self.submit.phase == HOLD

    @property
    def is_kept(self) -> bool:
        """Return whether its prompt is computed, and there was room to keep it."""
        return self.submit.phase == HOLD and self.hands_over and self.sequence.finish in KEPT_ENDS

    @property
    def claims(self) -> bool:
        """Return whether its prompt was computed and kept by another worker."""
        return self.submit.phase == CLAIM

    @property
    def queue_seconds(self) -> float | None:
        """Return the seconds that it waited to be scheduled here, including the wait for a decode worker with room;
        None if its prompt was not computed here."""
        scheduled = self.sequence.history.scheduled_at
        return None if scheduled is None else scheduled - self.arrived

    @property
    def cached(self) -> int:
        """Return the prompt tokens that the first attempt found cached: those of a later one may have been computed by
        the first."""
        return self.sequence.history.cached if self.first_cached is None else self.first_cached

    @property
    def known(self) -> list[Known] | None:
        """Return the tokens that there are of each choice that continues, if an answer is continued: those that the
        client has, or another worker sampled."""
        delivered = self.submit.delivered
        if self.handed is not None:
            return self.handed
        if not delivered:
            return None
        return [Known(choice, delivered[choice], len(delivered[choice])) for choice in self.sequence.choices]


class FirstAdmissions:
    """The number of cached prompt tokens at each request's first admission, for a later attempt to report: that attempt
    may find what the first one computed (A9)."""

    def __init__(self) -> None:
        self.cached: dict[str, int] = {}

    def remember(self, request: WorkerRequest) -> None:
        """Remember an attempt that has ended here. One that was never admitted passes on what an earlier attempt
        stated, if any."""
        if request.sequence.history.admissions or request.first_cached is not None:
            self.cached[request.request_id] = request.cached
            while len(self.cached) > REMEMBERED:
                del self.cached[next(iter(self.cached))]

    def recall(self, request: WorkerRequest) -> WorkerRequest:
        """Return a new attempt with what is remembered about earlier ones."""
        cached = self.cached.pop(request.request_id, None)
        return request if cached is None or request.attempt == 0 else replace(request, first_cached=cached)


def key_of(request_id: str, attempt: int) -> str:
    return f"{request_id}#{attempt}"


def make_request(submit: Submit, machine: WorkerResources) -> WorkerRequest:
    """Build the request. Raise RequestError for what this worker cannot compute, even if the proxy accepted it."""
    try:
        params = SamplingParams.from_wire(submit.sampling)
    except MalformedFrame as error:
        raise RequestError(str(error)) from None
    config, prompt = machine.config, submit.prompt
    if not prompt or min(prompt) < 0 or max(prompt) >= config.vocab_size:
        raise RequestError("the prompt is empty or has token ids outside the vocabulary", param="prompt")
    if params.max_tokens < 0 or len(prompt) + params.max_tokens > config.max_model_len:
        raise RequestError(
            f"{len(prompt)} prompt tokens and {params.max_tokens} more exceed the context of {config.max_model_len}"
        )
    params.check(config.vocab_size)
    stops, ends = ends_of(params, machine)
    strings = SequenceStops(partial(TextStops, machine.tokenizer, params) if params.stop else None)
    check_delivered(submit, params, config.vocab_size)
    hands_over, delivered = submit.phase in ("prefill", HOLD) and submit.transfer_id is not None, submit.delivered
    sequence = Sequence(
        key_of(submit.request_id, submit.attempt),
        prompt,
        params,
        stops,
        Purpose.HANDOVER if hands_over else Purpose.ANSWER,
        SaltedPrefix(submit.cache_salt, adapter_of(submit, machine), submit.adapter_start),
        DrawRules(stops=strings, thinking=budget_of(params, stops, machine)),
        Branch.of(tuple(submit.choices)),
        Standing(submit.priority, FairShare.stated(submit.caller, submit.weight, submit.priority)),
    )
    machine.scheduler.queues.arrive(sequence)
    if hands_over:
        sequence.branch.given = {
            choice: delivered[choice][0] for choice in sequence.choices if delivered and delivered[choice]
        }
    return WorkerRequest(submit.sender, submit.request_id, submit.attempt, sequence, submit, ends=ends)


def adapter_of(submit: Submit, machine: WorkerResources) -> UsedAdapter:
    """Return the adapter that a request asks for. Raise RequestError where this worker does not have it."""
    if not 0 <= submit.adapter_start < len(submit.prompt):
        raise RequestError("the adapter begins at no position of the prompt")
    if not submit.adapter:
        return NO_USED_ADAPTER
    found = machine.adapters.by_digest.get(submit.adapter)
    if found is None:
        raise RequestError("this worker does not have the adapter: try again", status=503)
    return found.used


def ends_of(params: SamplingParams, machine: WorkerResources) -> tuple[frozenset[int], frozenset[int]]:
    """Return the ids that end a sequence, and those of them that are not text, with which a grammar's text may end. A
    complete grammar needs an end: `ignore_eos` delays it, but is not allowed to suppress it. Raise RequestError for a
    grammar without any end."""
    asked, own = frozenset(params.stop_token_ids), frozenset(machine.config.eos_token_ids)
    if params.grammar is None:
        return asked | (frozenset() if params.ignore_eos else own), frozenset()
    ends = own | (asked & machine.tokenizer.special_ids)
    ends = frozenset(token for token in ends if token < machine.config.vocab_size)
    if not ends:
        raise RequestError("this model has no end token, so that no answer of it can follow a grammar")
    return asked | ends, ends


def check_delivered(submit: Submit, params: SamplingParams, vocab_size: int) -> None:
    """Raise RequestError where the delivered ids cannot be of this request. A choice that has ended has some."""
    delivered, choices = submit.delivered or [[]] * params.n, submit.choices or range(params.n)
    inside = all(0 <= token < vocab_size for ids in delivered for token in ids)
    distinct = len(set(choices)) == len(choices) and all(0 <= choice < params.n for choice in choices)
    if not inside or not distinct or len(delivered) != params.n:
        raise RequestError("the tokens to go on from are not of this request")
    if not all(delivered[choice] for choice in range(params.n) if choice not in choices):
        raise RequestError("a choice that has ended has no tokens")
    going_on = [delivered[choice] for choice in choices]
    if any(ids and len(ids) >= params.max_tokens for ids in going_on):
        raise RequestError("there is nothing to go on with: the budget is used")


def tokens_frame(incarnation: str, request: WorkerRequest, output: Output) -> Tokens:
    """Return the message to the proxy about accepted tokens. A choice's count is stated where its part here ends
    (A3)."""
    sequence, counted = output.sequence, output.finish is not None
    opens = output.index == sequence.record.delivered and sequence.branch.choice == (request.submit.choices or [0])[0]
    pulled, logprobs = request.pulled if opens else NOTHING_PULLED, output.logprobs
    return Tokens(
        incarnation,
        request.proxy,
        request.request_id,
        request.attempt,
        output.index,
        output.ids,
        choice=sequence.branch.choice,
        finish_reason=FINISH_REASONS.get(output.finish),
        stop_match=sequence.rules.stops.match,
        generated_tokens=sequence.record.generated if counted else None,
        prompt_tokens=len(sequence.prompt),
        cached_tokens=sequence.history.cached + sequence.history.cached_later,
        logprobs=[entry.to_wire() for entry in logprobs if entry.entries] or None if logprobs else None,
        prompt_logprobs=(
            [entry.to_wire() if entry else [] for entry in sequence.record.prompt_logprobs] or None if opens else None
        ),
        first_cached_tokens=request.cached if sequence.history.cached_later else request.first_cached,
        queue_seconds=request.queue_seconds if output.opens else None,
        computed_tokens=sequence.history.prompt_computed if output.opens else None,
        draft_tokens=output.drafted or None,
        accepted_draft_tokens=output.accepted if output.drafted else None,
        pulled_bytes=pulled.bytes,
        pulled_seconds=pulled.seconds,
        pull_error=pulled.error,
        frames=output.frames or None,
        kept_blocks=list(sequence.blocks) if request.is_kept else None,
        top_logits=b"".join([entry.top_logits for entry in logprobs]) or None if logprobs else None,
    )
