# SPDX-License-Identifier: Apache-2.0
"""Messages about requests, between a proxy and its workers."""

from dataclasses import dataclass, field
from typing import Any

from pontil.runtime.foundation.value import value


@dataclass(frozen=True, slots=True)
class Embed:
    """From proxy to worker: make one vector of this text, or one score of this pair of texts. The first `dimensions`
    numbers are wanted; None: all. `types` says of each token which text of a pair it is of; empty: there is one text,
    or the model does not tell them apart. The rest is as in Submit."""

    sender: str
    receiver: str
    request_id: str
    attempt: int
    prompt: list[int]
    dimensions: int | None = None
    priority: int = 0
    deadline: float | None = None
    types: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Embedding:
    """From worker to proxy: the vector of a text, as float32 numbers in little-endian order, of length 1; or a score.
    `prompt_tokens` is the worker's count of the text, `computed_tokens` of which were computed here (A11).
    `queue_seconds` is the time for which it had waited here."""

    sender: str
    receiver: str
    request_id: str
    attempt: int
    vector: bytes
    prompt_tokens: int
    computed_tokens: int
    queue_seconds: float | None = None


# Phases of a Submit whose prompt changes hands through somebody else's router.
HOLD, CLAIM = "hold", "claim"

# For each token: [token id, logprob, rank from 1] of the token itself, then of the most likely ones; empty if none.
Logprobs = list[list[list[float]]]


@value(frozen=True, slots=True)
class Submit:
    """From proxy to worker: do your part of this request.

    Without a `transfer_id` the worker does all of it. With one, `phase` says which half is meant ("prefill" computes
    the prompt and hands over to `peer`, "decode" receives it from `peer`); `peer` is the other worker's incarnation and
    `peer_endpoint` where a decode worker reaches it. Prompts with another `cache_salt` share no cached prefix.
    An `adapter` is named by the digest of its files; empty: the model is asked as it is. It is in use from the position
    `adapter_start` of the prompt on. Where it was loaded while the launch runs, `adapter_directory` has them: the
    worker may have begun after its name was free.

    Where another router brings the two workers together, neither knows of the other's request. The phase "hold" does
    all of it, and keeps the prompt's blocks under `transfer_id` for whichever decode worker claims them. The phase
    "claim" receives the prompt's KV so kept by `peer`, in its `peer_blocks` where these are told, and does all the
    rest: where that fails, also the prompt.

    A later attempt continues an answer: `delivered` has, for each choice, the ids that the client was given already.
    They are taken as they are, never drawn again. Only `choices` go on, the others have ended; an empty list means all.
    Waiting requests are admitted by lowest `priority`, then in order of arrival.

    Where the system has keys, both workers get the `transfer_secret` that the proxy drew for this transfer: with it the
    decode worker proves to the prefill worker that it may read the blocks.

    The first token is of use for `deadline` more seconds; None: without limit.

    Workers share seats and steps by `caller`, a digest that says no more than which requests are of one key, and by the
    `weight` of that key; empty: a caller like every other without a name.

    `graph` is set for a stage of a model of several stages; its keys are those of GraphPart
    (runtime/stages/graph/part.py).
    `frames` has, for each delivered id of choice 0, all codes of its frame, where a step makes several. `traceparent`
    (W3C) names the trace of the request, where it has one, for log lines.

    A `lease` is asked for on the prompt's first `tokens`, in whole blocks, once they are computed here: its `id`,
    `owner` and `seconds`. If it `must` be granted, a request for which there is no room fails before it is computed.
    """

    sender: str
    receiver: str
    request_id: str
    attempt: int
    prompt: list[int]
    sampling: dict[str, Any]
    phase: str = "whole"
    transfer_id: str | None = None
    peer: str | None = None
    peer_endpoint: str | None = None
    cache_salt: str = ""
    delivered: list[list[int]] = field(default_factory=list)
    choices: list[int] = field(default_factory=list)
    transfer_secret: str | None = field(default=None, repr=False)
    priority: int = 0
    deadline: float | None = None
    graph: dict[str, Any] | None = None
    frames: list[list[int]] = field(default_factory=list)
    traceparent: str | None = None
    caller: str = ""
    weight: float = 1.0
    peer_blocks: list[int] | None = None
    lease: dict[str, Any] | None = None
    adapter: str = ""
    adapter_directory: str = ""
    adapter_start: int = 0


@value(frozen=True, slots=True)
class Cancel:
    """From proxy to worker: stop working on this request and free what it holds. Unknown requests are no error."""

    sender: str
    receiver: str
    request_id: str
    attempt: int


@value(frozen=True, slots=True)
class Tokens:
    """From worker to proxy: accepted tokens of one choice, the first of them at `index` of its answer.

    `finish_reason` ("stop" or "length") is set on the terminal frame only. `generated_tokens` is the worker's count: a
    prefill worker states it on its first-token frame, any other worker on the terminal frame (rule A3). `stop_match` is
    the stop string that ended the choice, where one did. `logprobs` has one item for each id, `prompt_logprobs` one for
    each prompt token, on the first frame of choice 0; both only where they were asked for. That frame also says, where
    the prompt was computed here, for how many seconds the request had waited to be scheduled (B10), and how many prompt
    tokens were computed for the first time: with the cached ones they are all (A11). All ids were drawn; of
    `draft_tokens` guessed in advance, `accepted_draft_tokens` were right (B1). A later attempt also repeats in
    `first_cached_tokens` what an earlier attempt had found cached here, where that is known: it may itself find what
    that one computed. Where the prompt's KV came from another worker, the same frame says how many bytes were pulled
    and in how many seconds of copying; `pull_error` is the reason of a failed pull, where the prompt was computed here
    after all. `frames` has all codes of each id's frame, where a step makes several. `kept_blocks` are those in which
    the prompt's KV is kept for another worker, on the last frame of a request whose prompt is. `top_logits` has, where
    they were asked for, so many highest logits for each id, as runtime/receipts/chain.py lays them out.
    """

    sender: str
    receiver: str
    request_id: str
    attempt: int
    index: int
    ids: list[int]
    choice: int = 0
    finish_reason: str | None = None
    stop_match: str | None = None
    generated_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    queue_seconds: float | None = None
    computed_tokens: int | None = None
    draft_tokens: int | None = None
    accepted_draft_tokens: int | None = None
    first_cached_tokens: int | None = None
    pulled_bytes: int | None = None
    pulled_seconds: float | None = None
    pull_error: str | None = None
    frames: list[list[int]] | None = None
    kept_blocks: list[int] | None = None
    top_logits: bytes | None = None


@value(frozen=True, slots=True)
class Step:
    """From worker to proxy: the Tokens of one step that carry no optional fields but `top_logits`. Each of `rows`
    belongs to the request at the same index of `requests` and holds attempt, choice, index, prompt_tokens and
    cached_tokens, then the ids; the logits have the same index, and are empty for rows without, if any row has some."""

    sender: str
    receiver: str
    requests: list[str]
    rows: list[list[int]]
    top_logits: list[bytes] | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """From worker to proxy: so many positions of the prompt have their KV, and the rest is being computed. Sent after
    the first of several steps, before anybody can find what it computed, and now and then for prompts that take long.
    `cached_tokens` are those found when it was admitted: a worker that dies now cannot state them later, and the next
    one may find what this one computed (A9)."""

    sender: str
    receiver: str
    request_id: str
    attempt: int
    computed: int
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """From worker to proxy: this attempt ended without an answer. `status` is the HTTP status that describes it.
    `moved`: nothing is wrong with the request, but this worker is leaving; another one should continue it. `late`: its
    first token would have come after the request's deadline, so another attempt is useless."""

    sender: str
    receiver: str
    request_id: str
    attempt: int
    reason: str
    status: int = 503
    moved: bool = False
    late: bool = False


@value(frozen=True, slots=True)
class AttemptTimes:
    """From worker to proxy: where the time of my part of an attempt went, now that it is over. It is told once, and
    only where it holds up no tokens.

    All times are in seconds since the Submit arrived here; `age` is the time of this message. The sequence was
    `scheduled`, or had its room. `chunks` are begin, end and tokens of each computed part of the prompt, one behind the
    other, `pulls` begin, end, blocks and bytes of each pull of KV blocks. Of a prompt that was handed over, `handoff`
    is when it was computed, and when the decode worker had verified it. The sequence lost its blocks at `preempted`.
    Many chunks or pulls are told as fewer, longer ones.
    """

    sender: str
    receiver: str
    request_id: str
    attempt: int
    age: float
    scheduled: float | None = None
    chunks: list[float] = field(default_factory=list)
    pulls: list[float] = field(default_factory=list)
    handoff: list[float] = field(default_factory=list)
    preempted: list[float] = field(default_factory=list)
    first_token: float | None = None
    last_token: float | None = None
