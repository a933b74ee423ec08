# SPDX-License-Identifier: Apache-2.0
"""Messages about the embedding of texts, between a proxy and its workers. Progress, Failed and Cancel are those of
requests."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Embed:
    """From proxy to worker: make one vector of this text. The first `dimensions` numbers are wanted; None: all. The
    rest is as in Submit."""

    sender: str
    receiver: str
    request_id: str
    attempt: int
    prompt: list[int]
    dimensions: int | None = None
    priority: int = 0
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Embedding:
    """From worker to proxy: the vector of a text, as float32 numbers in little-endian order, of length 1.
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
