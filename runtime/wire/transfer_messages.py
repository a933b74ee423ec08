# SPDX-License-Identifier: Apache-2.0
"""Messages about the handoff of a prompt, between a decode and a prefill worker."""

from dataclasses import dataclass, field
from typing import Any

from pontil.runtime.wire.request_messages import Logprobs


@dataclass(frozen=True, slots=True)
class Greet:
    """From decode to prefill worker: introduce myself, to check whether our KV blocks are compatible. I am of so many
    `ranks`; None: of an earlier version, that knows no ranks."""

    sender: str
    receiver: str
    schema: int
    name: str
    model_fingerprint: str
    kv_fingerprint: str
    dtype: str | None = None
    block_size: int | None = None
    kernels: str | None = None
    kv_cache_dtype: str | None = None
    ranks: int | None = None


@dataclass(frozen=True, slots=True)
class Greeting:
    """From prefill to decode worker: the answer to Greet. `reason` is set when refused, else `pool` says how to read
    my blocks (the connector's descriptor; that of a worker of several ranks has one for each of them). `ranks` is as in
    Greet."""

    sender: str
    receiver: str
    pool: dict[str, Any] | None = None
    reason: str | None = None
    ranks: int | None = None


@dataclass(frozen=True, slots=True)
class Begin:
    """From decode to prefill worker: there is room for this transfer; start computing. The first `have` blocks of the
    prompt are here already and need not be sent. I take it with so many `ranks`. I read blocks from host memory, in
    which they are `staged`, or else from the GPU itself.

    With a `prompt_digest` it is a claim: the prompt was computed and kept before anyone asked for it, and has to be the
    one with this digest (`prompt_digest` in runtime/worker/generate/handoff_check.py). The answer is a Handoff at once,
    or Withdrawn."""

    sender: str
    receiver: str
    transfer_id: str
    request_id: str
    attempt: int
    have: int = 0
    ranks: int = 1
    staged: bool = True
    prompt_digest: str | None = None


@dataclass(frozen=True, slots=True)
class ChunkReady:
    """From prefill to decode worker: these blocks of the prompt, counted from block `first`, are final.

    `slot` is the reservation's cell in the epoch table. `digests` has one number for each block and head group, those
    of a block side by side (runtime/cache/head_groups.py): one for each block between workers of one rank.
    """

    sender: str
    receiver: str
    transfer_id: str
    epoch: int
    slot: int
    first: int
    block_ids: list[int]
    digests: list[int]


@dataclass(frozen=True, slots=True)
class Handoff:
    """From prefill to decode worker: the prompt is computed and the first token sampled; pull the rest of the blocks,
    and continue the sequence. `first_tokens` has one id for each choice, `logprobs` and `top_logits` what was asked
    about them; `choices` are those that go on, the others ended with their first token. `computed` counts the positions
    whose KV the blocks hold. `draft_tokens` are guesses, for each choice, of the tokens after its first (B7).
    `hidden_state` is the model's final state of the prompt's last position, little-endian floats of 32 bits, from which
    a draft layer goes on, with its `hidden_digest` (runtime/worker/generate/hidden_row.py).

    In a stage that another one drives, `frames` has the whole frame of each first token, and the prompt used up the
    items before `next_index` (E14)."""

    sender: str
    receiver: str
    transfer_id: str
    epoch: int
    slot: int
    first: int
    block_ids: list[int]
    digests: list[int]
    computed: int
    first_tokens: list[int]
    prompt_tokens: int
    cached_tokens: int
    kv_fingerprint: str
    prefill_seconds: float
    choices: list[int] = field(default_factory=lambda: [0])
    logprobs: Logprobs | None = None
    draft_tokens: list[list[int]] | None = None
    frames: list[list[int]] | None = None
    next_index: int | None = None
    hidden_state: bytes | None = None
    hidden_digest: str | None = None
    top_logits: list[bytes] | None = None


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """From prefill to decode worker: no handoff will come. `finished` says that the prefill worker itself ended the
    request."""

    sender: str
    receiver: str
    transfer_id: str
    finished: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Renew:
    """From decode to prefill worker: still pulling; extend the lease of this transfer."""

    sender: str
    receiver: str
    transfer_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """From decode to prefill worker: every block is here and verified; release yours."""

    sender: str
    receiver: str
    transfer_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """From decode to prefill worker: this transfer is no longer wanted (cancelled, failed or finished here)."""

    sender: str
    receiver: str
    transfer_id: str
    reason: str
