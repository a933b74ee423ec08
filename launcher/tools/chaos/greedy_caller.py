# SPDX-License-Identifier: Apache-2.0
"""A second caller that asks for more than there is, for a time: choices for all seats, long answers, large prompts."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pontil.launcher.options.worker_roles import GENERATING_ROLES
from pontil.launcher.tools.bench.http_client import HttpClient
from pontil.launcher.tools.bench.stream_client import RequestFailed
from pontil.launcher.tools.chaos.prompts import COMPLETIONS

# The most choices that a request may have.
MOST_CHOICES = 128
ANSWER_TOKENS, PROMPT_TOKENS = 3_000, 6_000
# Requests of a burst: choices for all seats so many times, and large prompts.
TIMES_SEATS, LARGE_PROMPTS = 2, 4
# Token ids that every vocabulary has and that are no special tokens.
ORDINARY_IDS = range(40, 240)
# The prompt of long answers, in tokens.
OPENING_TOKENS = 8
# Seconds from one request of a burst to the next, so that they come in their order, and after one that was refused or
# broke.
APART, PAUSE = 0.1, 0.5


@dataclass(frozen=True, slots=True)
class GreedLimits:
    """The most that one request can ask for, `choices` and tokens of `context`, and how many `seats` there are."""

    choices: int
    seats: int
    context: int


def limits_of(rows: Sequence[Mapping[str, Any]], models: Sequence[Mapping[str, Any]], model: str) -> GreedLimits:
    """Return the limits by the rows of /admin/topology and the models of /v1/models. No request may have more choices
    than the smallest worker has seats."""
    seats = [row["load"]["seats"] for row in rows if row["role"] in GENERATING_ROLES and row.get("load")]
    context = next((card["max_model_len"] for card in models if card["id"] == model), models[0]["max_model_len"])
    return GreedLimits(min([MOST_CHOICES, *seats]), sum(seats), context)


def burst(limits: GreedLimits, model: str) -> Iterator[dict[str, Any]]:
    """Yield the requests: a large prompt, choices for all seats more than once, and more large prompts. A second one
    before the choices would hold them up, as it is the same caller's."""
    common_fields = {"model": model, "stream": True, "temperature": 0.9, "ignore_eos": True}
    answer = max(1, min(ANSWER_TOKENS, limits.context - OPENING_TOKENS))
    large = {"prompt": ids(min(PROMPT_TOKENS, limits.context // 2)), "max_tokens": OPENING_TOKENS}
    many = {"prompt": ids(OPENING_TOKENS), "n": limits.choices, "max_tokens": answer}
    times = -(-TIMES_SEATS * limits.seats // limits.choices)
    yield from (common_fields | fields for fields in (large, *[many] * times, *[large] * (LARGE_PROMPTS - 1)))


def ids(count: int) -> list[int]:
    return [ORDINARY_IDS[place % len(ORDINARY_IDS)] for place in range(count)]


@dataclass(slots=True)
class GreedRecord:
    """The requests of one burst: how many were sent, and how many were refused or broke, the last one by `failure`."""

    sent: int = 0
    failed: int = 0
    failure: str = ""

    @property
    def problem(self) -> str | None:
        return f"greed was refused: {self.failure}" if self.failed == self.sent else None


class GreedyCaller:
    """The caller of a key. Its answers are read and thrown away."""

    def __init__(self, client: HttpClient, model: str, limits: GreedLimits, salt: str) -> None:
        self.client, self.model, self.limits, self.salt = client, model, limits, salt

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[GreedRecord]:
        """Send all requests, each again when it has ended, up to the end of the block, which cancels them."""
        record, salt = GreedRecord(), f"{self.salt} greed {secrets.token_hex(4)}"
        streams = [
            asyncio.create_task(self.stream(body, record, f"{salt} {number}", number * APART))
            for number, body in enumerate(burst(self.limits, self.model))
        ]
        try:
            yield record
        finally:
            for stream in streams:
                stream.cancel()
            outcomes = await asyncio.gather(*streams, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    async def stream(self, body: Mapping[str, Any], record: GreedRecord, salt: str, delay: float) -> None:
        """Send a request again and again. No prompt is found cached."""
        await asyncio.sleep(delay)
        while True:
            record.sent += 1
            try:
                async with self.client.post(COMPLETIONS, {**body, "cache_salt": f"{salt} {record.sent}"}) as response:
                    async for _ in response.content.iter_any():
                        continue
            except RequestFailed as error:
                record.failed, record.failure = record.failed + 1, str(error)
                await asyncio.sleep(PAUSE)
