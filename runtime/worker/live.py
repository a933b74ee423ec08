# SPDX-License-Identifier: Apache-2.0
"""A request as a worker holds it, and how it becomes one."""

from dataclasses import dataclass
from functools import partial

from pontil.runtime.engine.engine import Output
from pontil.runtime.engine.sequence import Finish, Sequence
from pontil.runtime.errors import MalformedFrame, RequestError
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.wire.messages import Submit, Tokens
from pontil.runtime.worker.assembly import Machine
from pontil.runtime.worker.stop_check import TextStops

# What the wire says of each end; an end that is not here is not the end of the answer.
FINISH_REASONS: dict[Finish | None, str] = {Finish.STOP: "stop", Finish.LENGTH: "length"}


@dataclass(frozen=True, slots=True, eq=False)
class Live:
    """One attempt at one request. `proxy` is the incarnation that submitted it and hears of it."""

    proxy: str
    request_id: str
    attempt: int
    sequence: Sequence
    submit: Submit

    @property
    def key(self) -> str:
        return self.sequence.id


def key_of(request_id: str, attempt: int) -> str:
    return f"{request_id}#{attempt}"


def make_live(submit: Submit, machine: Machine) -> Live:
    """Raises RequestError for what this worker cannot compute, whatever the proxy let through."""
    try:
        params = SamplingParams.from_wire(submit.sampling)
    except MalformedFrame as error:
        raise RequestError(str(error)) from None
    config, prompt = machine.config, submit.prompt
    if not prompt or min(prompt) < 0 or max(prompt) >= config.vocab_size:
        raise RequestError("the prompt is empty or has token ids outside the vocabulary", param="prompt")
    if params.max_tokens < 1 or len(prompt) + params.max_tokens > config.max_model_len:
        raise RequestError(
            f"{len(prompt)} prompt tokens and {params.max_tokens} more exceed the context of {config.max_model_len}"
        )
    params.check(config.vocab_size)
    stops = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset(config.eos_token_ids))
    check = partial(TextStops, machine.tokenizer, params) if params.stop else None
    key = key_of(submit.request_id, submit.attempt)
    hands_over = submit.phase == "prefill" and submit.transfer_id is not None
    sequence = Sequence(key, prompt, params, stops, hands_over, check, submit.cache_salt)
    return Live(submit.sender, submit.request_id, submit.attempt, sequence, submit)


def tokens_frame(incarnation: str, live: Live, output: Output) -> Tokens:
    """What the proxy hears of accepted tokens. A choice's count is stated where its part here ends (A3)."""
    sequence, counted = output.sequence, output.finish is not None
    opens = output.index == 0 and sequence.choice == 0
    return Tokens(
        incarnation,
        live.proxy,
        live.request_id,
        live.attempt,
        output.index,
        output.ids,
        choice=sequence.choice,
        finish_reason=FINISH_REASONS.get(output.finish),
        stop_match=sequence.stop_match,
        generated_tokens=sequence.generated if counted else None,
        prompt_tokens=len(sequence.prompt),
        cached_tokens=sequence.cached,
        logprobs=[entry.to_wire() for entry in output.logprobs] or None,
        prompt_logprobs=(
            [entry.to_wire() if entry else [] for entry in sequence.prompt_logprobs] or None if opens else None
        ),
    )
