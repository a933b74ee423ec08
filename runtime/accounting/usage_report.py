# SPDX-License-Identifier: Apache-2.0
"""The sums that a bill is made of, and the bills of single requests, read from a usage log."""

import sqlite3
from dataclasses import dataclass, replace

from pontil.runtime.accounting.usage_tables import BILLED, LOST, OPEN, VOID

# A request of which nothing was delivered is counted as a request and billed nothing. The stages of a request are one
# request together. Days are UTC. Requests that were removed are in sums.
SUMS = f"""
SELECT api_key, model, day, sum(clients), sum(iif(state = '{LOST}', clients, 0)),
       sum(iif(state = '{OPEN}', clients, 0)), sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens)
FROM (
    SELECT api_key, model, date(arrived, 'unixepoch') AS day, state, stage IS NULL AS clients,
           iif({BILLED}, prompt_tokens, 0) AS prompt_tokens, iif({BILLED}, cached_tokens, 0) AS cached_tokens,
           iif({BILLED}, completion_tokens, 0) AS completion_tokens
    FROM requests
    UNION ALL SELECT api_key, model, day, state, clients, prompt_tokens, cached_tokens, completion_tokens
    FROM removed_requests
) GROUP BY api_key, model, day ORDER BY day, api_key, model
"""

# Of a lease that is open its row has what was held when it was written.
LEASES = f"""
SELECT api_key, model, date(began, 'unixepoch') AS day, 1, held, refunded FROM leases WHERE state <> '{VOID}'
UNION ALL SELECT api_key, model, day, leases, held, refunded FROM removed_leases WHERE state <> '{VOID}'
"""
BILLS = "SELECT name, state, prompt_tokens, completion_tokens FROM requests WHERE stage IS NULL AND instr(name, ?) = 1"


@dataclass(frozen=True, slots=True)
class UsageSum:
    """The use of one model with one key on one day. `lost` of the `requests` ended with their proxy, `open` ones still
    run. Of the leases on prefixes that began then, the byte-seconds held are billed, those refunded could not be
    kept."""

    api_key: str
    model: str
    day: str
    requests: int
    lost: int
    open: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    leases: int = 0
    lease_byte_seconds: int = 0
    lease_refunded: int = 0


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
    """Return the sums, in the order of days. Those of leases are added here: SQLite's integers have no room for what a
    large system keeps."""
    sums = {(row[2], row[0], row[1]): UsageSum(*row) for row in database.execute(SUMS)}
    for key, model, day, leases, held, refunded in database.execute(LEASES):
        before = sums.get((day, key, model), UsageSum(key, model, day, 0, 0, 0, 0, 0, 0))
        sums[day, key, model] = replace(
            before,
            leases=before.leases + leases,
            lease_byte_seconds=before.lease_byte_seconds + held,
            lease_refunded=before.lease_refunded + refunded,
        )
    return [sums[name] for name in sorted(sums)]
