# SPDX-License-Identifier: Apache-2.0
"""The part of a request that asks for a vector instead of tokens."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pontil.runtime.accounting.counts import EMBEDDED
from pontil.runtime.proxy.requests.stream import Finished
from pontil.runtime.wire.messages import Embed, Embedding

if TYPE_CHECKING:
    from pontil.runtime.proxy.requests.request import Request

FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class EmbeddingTask:
    """The name of the model that is to embed a text, and the wanted length of the vector; None: the model's own."""

    model: str
    dimensions: int | None = None


def embed_message(request: "Request", task: EmbeddingTask, sender: str, deadline: float | None) -> Embed:
    """Return the message that starts the attempt. The vector is of use for `deadline` more seconds."""
    (worker,) = request.phases
    return Embed(
        sender, worker, request.id, request.attempt, request.prompt, task.dimensions, request.ticket.priority, deadline
    )  # fmt: skip


def fits(frame: Embedding, request: "Request", task: EmbeddingTask, size: int | None) -> bool:
    """Return whether a vector and its counts can be of this request, by a model with vectors of this size."""
    counts = frame.prompt_tokens == len(request.prompt) == frame.computed_tokens
    if not counts or size is None or len(frame.vector) != FLOAT_BYTES * (task.dimensions or size):
        return False
    # NaN and infinity have no JSON, and a sum of numbers of 32 bits is finite where all of them are.
    return math.isfinite(sum(memoryview(frame.vector).cast("f")))


def accept_embedding(request: "Request", frame: Embedding, now: float) -> None:
    """Take the vector and its counts, which end the request."""
    request.last_frame = request.waits_since = now
    if frame.queue_seconds is not None:
        request.queued = request.credible(frame.queue_seconds, now)
    request.entry.prompt_stated, request.entry.answered = frame.prompt_tokens, True
    request.entry.hear_prompt(request.attempt, frame.sender, 0, frame.computed_tokens)
    request.account.accept(request.attempt, request.phases[frame.sender], 0, generated=0, cached=0)
    request.vector, request.begun = frame.vector, True
    request.reasons[0] = EMBEDDED
    request.mailbox.close(Finished("stop", request.account.usage, request.route_name))
