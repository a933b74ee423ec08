# SPDX-License-Identifier: Apache-2.0
"""Checks that a handoff belongs to the request it names, and the known tokens of its choices."""

import hashlib
import math
from array import array
from collections.abc import Sequence

from torch import Tensor

from pontil.runtime.cache.adaptation import NOT_ADAPTED, Adaptation
from pontil.runtime.cache.head_groups import can_divide
from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.engine.sequences.output_record import Known
from pontil.runtime.engine.sequences.streamed import RowInputs
from pontil.runtime.engine.sequences.token_logprobs import TokenLogprobs
from pontil.runtime.receipts.chain import width
from pontil.runtime.wire.messages import Begin, Handoff
from pontil.runtime.worker.process.worker_request import WorkerRequest


def is_for(handoff: Handoff, request: WorkerRequest, vocab_size: int) -> bool:
    """Return whether the whole prompt was computed and the first tokens are in the vocabulary, which the engine takes
    on trust. First tokens that were delivered before must be the same."""
    sequence, tokens, going_on = request.sequence, handoff.first_tokens, handoff.choices
    n, delivered = sequence.params.n, request.submit.delivered
    inside = len(tokens) == n and are_tokens(tokens, vocab_size)
    same = inside and all(ids[0] == token for ids, token in zip(delivered, tokens, strict=False) if ids)
    some = bool(going_on) and set(going_on) <= set(sequence.choices) and len(set(going_on)) == len(going_on)
    guessed = [[]] * n if handoff.draft_tokens is None else handoff.draft_tokens
    drafts = len(guessed) == n and all(are_tokens(draft, vocab_size) for draft in guessed)
    whole = handoff.computed == len(sequence.prompt) and 0 <= handoff.cached_tokens <= handoff.computed
    framed = sequence.streams.inputs is None or can_resume(handoff, sequence.streams.inputs)
    return whole and same and some and drafts and framed and knows_its_logprobs(handoff, request)


def can_resume(handoff: Handoff, inputs: RowInputs) -> bool:
    """Return whether the rows of a sequence that another stage drives can go on from the handoff (E14)."""
    frames, index = handoff.frames, handoff.next_index
    if frames is None or index is None or not inputs.can_resume(frames, index):
        return False
    return frames[0][:1] == handoff.first_tokens


def is_kept(handoff: Handoff, request: WorkerRequest) -> bool:
    """Return whether a kept prompt was computed whole, and is in the blocks that its keeper told of. Nothing else of
    the handoff is used."""
    told = request.submit.peer_blocks
    same = told is None or handoff.block_ids == told[handoff.first :]
    return same and handoff.computed == len(request.sequence.prompt) and 0 <= handoff.cached_tokens <= handoff.computed


def objection_to(begin: Begin, prompt: Sequence[int], layout: KVLayout) -> str | None:
    """Return why a decode worker cannot have what it asks for of this prompt's blocks, else None."""
    if not 0 <= begin.have <= len(prompt) // layout.block_size:
        return "the prompt does not have so many blocks"
    if not can_divide(layout.num_kv_heads, begin.ranks):
        return f"so many ranks ({begin.ranks}) cannot hold the model's KV heads"
    return None


def prompt_digest(prompt: Sequence[int], adapted: Adaptation = NOT_ADAPTED) -> str:
    """Return the digest by which a claim names its prompt, and how that is computed."""
    return hashlib.sha256(array("q", prompt).tobytes() + adapted.told).hexdigest()


def are_tokens(ids: list[int], vocab_size: int) -> bool:
    return all(0 <= token < vocab_size for token in ids)


def delivered_of(request: WorkerRequest, choice: int) -> list[int]:
    """Return the ids that the client already has of a continued choice."""
    return request.submit.delivered[choice] if request.submit.delivered else []


def knows_its_logprobs(handoff: Handoff, request: WorkerRequest) -> bool:
    """Return whether logprobs, if there are any, are given for every first token that is not yet delivered, and the
    highest logits, if they are asked for."""
    known, top_logits, params = handoff.logprobs, handoff.top_logits, request.sequence.params
    told = [choice for choice in handoff.choices if not delivered_of(request, choice)]
    if told and params.top_logits:
        size = width(params.top_logits)
        if top_logits is None or len(top_logits) != params.n or any(len(top_logits[choice]) != size for choice in told):
            return False
    if known is None:
        return True
    return len(known) == params.n and all(known[choice] and are_logprobs(known[choice]) for choice in told)


def are_logprobs(entries: list[list[float]]) -> bool:
    """Return whether each entry is [token id, logprob, rank]. Minus infinity is a valid logprob; NaN and infinity are
    not."""
    return all(
        len(entry) == 3 and isinstance(entry[0], int) and entry[1] < math.inf and isinstance(entry[2], int)
        for entry in entries
    )


def known_of(handoff: Handoff, request: WorkerRequest, hidden: Tensor | None = None) -> list[Known]:
    """Return the known tokens of each choice that continues: those delivered, else the first token from the handoff,
    which was checked. `hidden` is the state that came with it, if there is one."""
    return [known_of_choice(handoff, choice, delivered_of(request, choice), hidden) for choice in handoff.choices]


def known_of_choice(handoff: Handoff, choice: int, delivered: list[int], hidden: Tensor | None) -> Known:
    if delivered:
        return Known(choice, delivered, len(delivered), hidden=hidden)
    entries = [] if handoff.logprobs is None else handoff.logprobs[choice]
    top_logits = b"" if handoff.top_logits is None else handoff.top_logits[choice]
    logprobs = (TokenLogprobs.from_wire(entries, top_logits),) if entries or top_logits else ()
    draft = () if handoff.draft_tokens is None else tuple(handoff.draft_tokens[choice])
    return Known(choice, [handoff.first_tokens[choice]], logprobs=logprobs, draft=draft, hidden=hidden)
