# SPDX-License-Identifier: Apache-2.0
"""The work of a request that is answered with a vector, or with the score of a pair of texts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pontil.runtime.accounting.counts import EMBEDDED, SCORED
from pontil.runtime.proxy.requests.request import Request, Work
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.wire.messages import Embed, Embedding

FLOAT_BYTES = 4
# A vector needs no tokens, but all work has parameters.
NO_TOKENS = SamplingParams(max_tokens=0, seed=0)


@dataclass(slots=True, eq=False)
class TextEmbedding(Work):
    """A text to be embedded by the model of this name. `dimensions` is the wanted length of the vector; None: the
    model's own. `types` are those of a pair's tokens, as in Embed."""

    params: SamplingParams = field(default=NO_TOKENS, init=False)
    model_name: str
    dimensions: int | None = None
    types: list[int] = field(default_factory=list)
    vector: bytes | None = None

    def messages(self, request: Request, sender: str, secret: str | None, deadline: float | None) -> Sequence[Embed]:
        (worker,) = request.attempts.phases
        attempt, priority = request.attempts.number, request.share.place(request.ticket.place)
        return [
            Embed(sender, worker, request.id, attempt, self.prompt, self.dimensions, priority, deadline, self.types)
        ]

    @property
    def group(self) -> str:
        return self.model_name

    @property
    def model(self) -> str:
        return self.model_name

    @property
    def makes_tokens(self) -> bool:
        return False

    @property
    def ends_as(self) -> str:
        """The finish reason of a text that was answered."""
        return EMBEDDED

    def awaited(self, begun: bool) -> str:
        return "embedding"

    def takes(self, frame: Embedding, size: int | None) -> bool:
        """Return whether a vector and its counts can be of this text, by a model with vectors of this size."""
        counts = frame.prompt_tokens == len(self.prompt) == frame.computed_tokens
        if not counts or size is None or len(frame.vector) != FLOAT_BYTES * (self.dimensions or size):
            return False
        # NaN and infinity have no JSON, and a sum of numbers of 32 bits is finite where all of them are.
        return math.isfinite(sum(memoryview(frame.vector).cast("f")))

    def accept(self, request: Request, frame: Embedding, now: float) -> None:
        """Take the vector and its counts, which end the request."""
        request.times.heard(now)
        request.times.note_queue(frame.queue_seconds, now)
        request.entry.prompt_stated, request.entry.answered = frame.prompt_tokens, True
        request.entry.hear_prompt(request.attempts.number, frame.sender, 0, frame.computed_tokens)
        self.vector, request.times.begun = frame.vector, True
        request.end_at_once(frame.sender, self.ends_as)


@dataclass(slots=True, eq=False)
class PairScore(TextEmbedding):
    """A pair of texts to be scored: its vector has one number."""

    @property
    def score(self) -> float:
        """The score, once it is there."""
        number: float = memoryview(self.vector or bytes(FLOAT_BYTES)).cast("f")[0]
        return number

    @property
    def ends_as(self) -> str:
        return SCORED

    def awaited(self, begun: bool) -> str:
        return "score"
