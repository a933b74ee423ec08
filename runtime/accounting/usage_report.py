# SPDX-License-Identifier: Apache-2.0
"""The sums that a bill is made of, and the bills of single requests, read from a usage log."""

import sqlite3
from dataclasses import dataclass

from pontil.runtime.accounting.usage_tables import BILLED, LOST, OPEN

# A request of which nothing was delivered is counted as a request and billed nothing. The stages of a request are one
# request together. Days are UTC.
SUMS = f"""
SELECT api_key, model, date(arrived, 'unixepoch') AS day, sum(stage IS NULL),
       sum(state = '{LOST}' AND stage IS NULL), sum(state = '{OPEN}' AND stage IS NULL),
       sum(iif({BILLED}, prompt_tokens, 0)), sum(iif({BILLED}, cached_tokens, 0)),
       sum(iif({BILLED}, completion_tokens, 0))
FROM requests GROUP BY api_key, model, day ORDER BY day, api_key, model
"""

BILLS = "SELECT name, state, prompt_tokens, completion_tokens FROM requests WHERE stage IS NULL AND instr(name, ?) = 1"


@dataclass(frozen=True, slots=True)
class UsageSum:
    """The use of one model with one key on one day. `lost` of the `requests` ended with their proxy, `open` ones still
    run."""

    api_key: str
    model: str
    day: str
    requests: int
    lost: int
    open: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class RequestBill:
    """The row of one request, by its X-Request-Id."""

    name: str
    state: str
    prompt_tokens: int
    completion_tokens: int


def bills_of(database: sqlite3.Connection, names: str) -> list[RequestBill]:
    """Return the rows of the requests whose names begin so."""
    return [RequestBill(*row) for row in database.execute(BILLS, (names,))]


def usage_sums(database: sqlite3.Connection) -> list[UsageSum]:
    return [UsageSum(*row) for row in database.execute(SUMS)]
