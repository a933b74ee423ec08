# SPDX-License-Identifier: Apache-2.0
"""Removal of old requests from a usage log. What is removed is added to sums in the same transaction, so that bills by
key, model and day and the audit stay as they were (docs/decisions/079)."""

import json
import sqlite3
from dataclasses import fields

from pontil.runtime.accounting.usage_tables import (
    BILLED,
    CLOSED,
    OPEN,
    SUM_TABLES,
    RemovedLeases,
    RemovedRequests,
    RemovedShares,
    SumRow,
)

DAY = 86400.0
# Requests that are looked at in one transaction, and seconds from one search to the next.
PORTION = 200
PAUSE = 600.0

# A request that is not balanced stays, so that an audit finds it.
OLD = f"""
SELECT rowid, id, arrived < :since AS old, arrived < :since AND state <> '{OPEN}' AND (state <> '{CLOSED}' OR
       generated = delivered + discarded AND completion_tokens = delivered
       AND ifnull(prompt_tokens = cached_tokens + computed_tokens, 1)
       AND generated = (SELECT ifnull(sum(generated), 0) FROM shares WHERE request = requests.id)) AS removable
FROM requests WHERE rowid > :place ORDER BY rowid LIMIT :most
"""
CHOSEN = "IN (SELECT value FROM json_each(?))"
REQUESTS = f"""
SELECT proxy, api_key, model, date(arrived, 'unixepoch') AS day, state, count(*), sum(stage IS NULL),
       sum(iif({BILLED}, prompt_tokens, 0)), sum(iif({BILLED}, cached_tokens, 0)),
       sum(iif({BILLED}, completion_tokens, 0)), sum(generated), sum(delivered), sum(discarded),
       sum(iif({BILLED}, image_tokens, 0))
FROM requests WHERE id {CHOSEN} GROUP BY proxy, api_key, model, day, state
"""
SHARES = f"""
SELECT worker, ifnull(shares.proxy, requests.proxy) AS whose, sum(shares.generated), sum(computed)
FROM shares JOIN requests ON requests.id = request WHERE request {CHOSEN} GROUP BY worker, whose
"""

# A lease that is not balanced stays, too.
OLD_LEASES = f"""
SELECT id FROM leases WHERE began < :since AND state <> '{OPEN}' AND granted = held + released + refunded LIMIT :most
"""
LEASES = f"""
SELECT proxy, api_key, model, date(began, 'unixepoch') AS day, state, count(*), sum(granted), sum(held), sum(released),
       sum(refunded)
FROM leases WHERE id {CHOSEN} GROUP BY proxy, api_key, model, day, state
"""


def add_to(kind: type[SumRow], rows: str) -> str:
    """Return SQL that adds the selected rows to those of the same key."""
    name, key = SUM_TABLES[kind]
    columns = [field.name for field in fields(kind)]
    sums = ", ".join(f"{column} = {column} + excluded.{column}" for column in columns if column not in key)
    return f"INSERT INTO {name} ({', '.join(columns)}) {rows} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {sums}"


STEPS = (
    add_to(RemovedRequests, REQUESTS),
    add_to(RemovedShares, SHARES),
    f"DELETE FROM shares WHERE request {CHOSEN}",
    f"DELETE FROM requests WHERE id {CHOSEN}",
)

LEASE_STEPS = (add_to(RemovedLeases, LEASES), f"DELETE FROM leases WHERE id {CHOSEN}")


class Removal:
    """Removes the requests and leases of a file that began more than so many `days` ago and have ended, in portions:
    `place` is the last request that was looked at. Rows lie about in the order of their arrival."""

    def __init__(self, days: float) -> None:
        self.days = days
        self.place = 0
        self.due = 0.0

    def work(self, database: sqlite3.Connection, now: float) -> int:
        """Look at one portion, if it is time to; return the number of removed requests. `now` is in seconds since 1970.
        Raises sqlite3.Error, and tries again after the pause."""
        if now < self.due:
            return 0
        self.due = now + PAUSE
        with database:
            database.execute("BEGIN IMMEDIATE")
            parameters = {"since": now - self.days * DAY, "place": self.place, "most": PORTION}
            rows = database.execute(OLD, parameters).fetchall()
            request_names = [name for _, name, _, removable in rows if removable]
            for step in STEPS if request_names else ():
                database.execute(step, (json.dumps(request_names),))
            lease_names = [name for (name,) in database.execute(OLD_LEASES, parameters)]
            for step in LEASE_STEPS if lease_names else ():
                database.execute(step, (json.dumps(lease_names),))
        has_more = any(old for _, _, old, _ in rows) or len(lease_names) == PORTION
        self.place, self.due = (rows[-1][0] if rows else 0, now) if has_more else (0, self.due)
        return len(request_names)
