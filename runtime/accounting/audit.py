# SPDX-License-Identifier: Apache-2.0
"""Audit of a usage log: the workers' counts, the ledger's sums and the rows must be equal (A11). Needs only the file.

When a proxy was killed, the last counts of its workers were never written down: there the rows may have less than the
workers made, and the audit says how much. Everything else must be equal to the token.
"""

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pontil.runtime.accounting.usage_tables import BILLED, CLOSED, LOST, VOID

# SQLite's integers are signed, of 64 bits: what is larger was cut.
LARGEST = (1 << 63) - 1
SUMMED = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "generated", "delivered", "discarded")
# Rows and the sums over those that were removed, together.
ROWS = f"""
SELECT {", ".join(f"ifnull(sum({name}), 0) AS {name}" for name in SUMMED)} FROM (
    SELECT count(*) AS requests, sum(iif({BILLED}, prompt_tokens, 0)) AS prompt_tokens,
           sum(iif({BILLED}, cached_tokens, 0)) AS cached_tokens,
           sum(iif({BILLED}, completion_tokens, 0)) AS completion_tokens,
           sum(generated) AS generated, sum(delivered) AS delivered, sum(discarded) AS discarded
    FROM requests WHERE proxy = ?1 AND state = '{CLOSED}'
    UNION ALL SELECT {", ".join(SUMMED)} FROM removed_requests WHERE proxy = ?1 AND state = '{CLOSED}'
)
"""
SHARES = """
SELECT ifnull(sum(generated), 0), ifnull(sum(computed), 0) FROM (
    SELECT shares.generated, shares.computed FROM shares JOIN requests ON requests.id = shares.request
    WHERE shares.worker = ?1 AND ifnull(shares.proxy, requests.proxy) = ?2
    UNION ALL SELECT generated, computed FROM removed_shares WHERE worker = ?1 AND proxy = ?2
)
"""
REMOVED = "SELECT sum(requests), sum(delivered), max(day) FROM removed_requests"
UNBALANCED = f"""
SELECT requests.id, requests.generated, delivered + discarded, completion_tokens, delivered,
       (SELECT ifnull(sum(shares.generated), 0) FROM shares WHERE shares.request = requests.id)
FROM requests WHERE state = '{CLOSED}' ORDER BY arrived
"""
# Closed requests whose prompt tokens are not the sum of cached and computed ones. computed_tokens is NULL, and the
# request skipped, where the worker's count did not come in time.
PROMPTS = f"""
SELECT id, prompt_tokens, cached_tokens, computed_tokens FROM requests
WHERE state = '{CLOSED}' AND prompt_tokens <> cached_tokens + computed_tokens ORDER BY arrived
"""
# Leases that are over, and those that were removed, as the ledger sums them.
LEASE_SUMS = ("leases", "lease_granted", "lease_held", "lease_released", "lease_refunded")
LEASES = f"""
SELECT 1, granted, held, released, refunded FROM leases WHERE proxy = ?1 AND state IN ('{CLOSED}', '{VOID}')
UNION ALL SELECT leases, granted, held, released, refunded FROM removed_leases
WHERE proxy = ?1 AND state IN ('{CLOSED}', '{VOID}')
"""
UNBALANCED_LEASES = """
SELECT id, granted, held, released, refunded FROM leases
WHERE granted < held + released + refunded OR state <> 'open' AND granted <> held + released + refunded ORDER BY began
"""
# A worker's rows under this proxy and the later ones in its place, in order: to others it states other counts. They are
# later whose rows were written first after this one's: a clock may have been set back between their starts.
LATER = """
SELECT workers.before, workers.proxy, late - unheard + missing AS apart FROM workers
JOIN proxies ON proxies.incarnation = workers.proxy
JOIN proxies AS this ON this.incarnation = ?
WHERE workers.worker = ? AND proxies.rowid >= this.rowid AND proxies.name IS this.name ORDER BY proxies.rowid
"""


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """The result of one comparison. If `equal`, the sums agree; else `text` says what differs."""

    equal: bool
    text: str


def audit(database: sqlite3.Connection, live: Mapping[str, Any] | None = None) -> list[AuditFinding]:
    """Make every possible comparison; `live` has the sums of a running proxy's ledger. Reads one snapshot of the
    file."""
    database.row_factory = sqlite3.Row
    database.execute("BEGIN")
    try:
        findings = list(requests_balance(database))
        for proxy in database.execute("SELECT * FROM proxies ORDER BY rowid").fetchall():
            findings += proxy_balances(database, proxy)
            if live is not None and live["incarnation"] == proxy["incarnation"]:
                live_sums = {name: live[name] for name in SUMMED}
                findings.append(compared(f"proxy {live['incarnation']}: the running ledger", live_sums, proxy, "file"))
        if live is not None and not any(live["incarnation"] in finding.text for finding in findings):
            findings.append(AuditFinding(False, f"the running proxy {live['incarnation']} does not write to this file"))
        return findings
    finally:
        database.rollback()


def requests_balance(database: sqlite3.Connection) -> Iterator[AuditFinding]:
    count = 0
    for name, generated_tokens, settled_tokens, billed_tokens, delivered_tokens, shares in database.execute(UNBALANCED):
        count += 1
        if not generated_tokens == settled_tokens == shares or billed_tokens != delivered_tokens:
            yield AuditFinding(
                False,
                f"request {name}: workers state {generated_tokens} and sent {shares}, {settled_tokens} are delivered "
                f"or discarded; {delivered_tokens} delivered and {billed_tokens} billed",
            )
    for name, prompt, cached_tokens, computed_tokens in database.execute(PROMPTS):
        yield AuditFinding(
            False,
            f"request {name}: of {prompt} prompt tokens {cached_tokens} were cached and {computed_tokens} computed",
        )
    for name, granted, held, released, refunded in database.execute(UNBALANCED_LEASES):
        yield AuditFinding(
            False,
            f"lease {name}: of {granted} byte-seconds {held} were held, {released} released and {refunded} refunded",
        )
    yield AuditFinding(True, f"{count} closed requests were looked at one by one")
    removed_requests, delivered_tokens, day = database.execute(REMOVED).fetchone()
    if removed_requests:
        yield AuditFinding(
            True,
            f"{removed_requests} requests of up to {day} were removed; "
            f"their {delivered_tokens} tokens delivered are in the sums",
        )


def proxy_balances(database: sqlite3.Connection, proxy: sqlite3.Row) -> Iterator[AuditFinding]:
    rows = database.execute(ROWS, (proxy["incarnation"],)).fetchone()
    name = f"proxy {proxy['incarnation']} ({proxy['state']})"
    yield compared(f"{name}: the ledger", {column: proxy[column] for column in SUMMED}, rows, "rows")
    yield from leases_balance(database, proxy, name)
    for worker in database.execute("SELECT * FROM workers WHERE proxy = ? ORDER BY name", (proxy["incarnation"],)):
        yield worker_balances(database, proxy, worker)


def leases_balance(database: sqlite3.Connection, proxy: sqlite3.Row, name: str) -> Iterator[AuditFinding]:
    """Compare the ledger's byte-seconds with the rows of leases that are over, if there are any of either. They are
    added here: SQLite has no such large sums."""
    columns = zip((0,) * len(LEASE_SUMS), *database.execute(LEASES, (proxy["incarnation"],)), strict=True)
    rows = [sum(column) for column in columns]
    sums = [proxy[column] for column in LEASE_SUMS]
    if any(rows) or any(sums):
        wrong = [
            f"{column} {said} but {found} in the rows"
            for column, said, found in zip(LEASE_SUMS, sums, rows, strict=True)
            if said != min(found, LARGEST)
        ]
        agreement = f"{sums[0]} leases are over, {sums[2]} byte-seconds held and {sums[4]} refunded"
        yield AuditFinding(not wrong, f"{name}: {'; '.join(wrong) or agreement}")


def compared(subject: str, sums: Mapping[str, Any], rows: sqlite3.Row, where: str) -> AuditFinding:
    differing = [
        f"{column} {sums[column]} but {rows[column]} in the {where}"
        for column in SUMMED
        if sums[column] != rows[column]
    ]
    agreement = f"{sums['requests']} closed requests, {sums['delivered']} tokens delivered"
    return AuditFinding(not differing, f"{subject}: {'; '.join(differing) or agreement}")


def worker_balances(database: sqlite3.Connection, proxy: sqlite3.Row, worker: sqlite3.Row) -> AuditFinding:
    """Compare a worker's stated count with what the ledger had heard by then, and what it heard with the rows and late
    ids."""
    name = f"worker {worker['name']} {worker['worker']} under proxy {proxy['incarnation']}"
    shares, computed_tokens = database.execute(SHARES, (worker["worker"], proxy["incarnation"])).fetchone()
    wrong = []
    if worker["stated"] is not None and worker["stated"] != worker["heard_then"] + worker["missing"]:
        wrong.append(f"it stated {worker['stated']} but {worker['heard_then']} were heard by then")
    if worker["heard"] + worker["unheard"] != worker["booked"] + worker["late"]:
        wrong.append(f"{worker['heard']} were heard but {worker['booked']} booked and {worker['late']} late")
    if proxy["state"] != LOST and shares != worker["booked"]:
        wrong.append(f"the ledger booked {worker['booked']} but the rows have {shares}")
    wrong += prompts_apart(worker)
    if proxy["state"] != LOST and computed_tokens != worker["prompt_booked"]:
        wrong.append(
            f"the ledger booked {worker['prompt_booked']} computed prompt tokens but the rows have {computed_tokens}"
        )
    if wrong:
        return AuditFinding(False, f"{name}: {'; '.join(wrong)}")
    statement = "nothing stated" if worker["stated"] is None else f"{worker['stated']} stated last"
    summary = f"{name}: {statement}, {shares} in the rows, {worker['late']} late, {worker['missing']} lost on the way"
    if proxy["state"] == LOST:
        return lost_with(database, proxy, worker, shares, summary)
    return AuditFinding(True, summary)


def prompts_apart(worker: sqlite3.Row) -> list[str]:
    """Return the differences in the prompt tokens that the worker computed for the first time."""
    stated_tokens, heard_then, missing, heard_tokens, booked_tokens, late = (
        worker[f"prompt_{name}"] for name in ("stated", "heard_then", "missing", "heard", "booked", "late")
    )
    wrong = []
    if stated_tokens is not None and stated_tokens != heard_then + missing:
        wrong.append(f"it stated {stated_tokens} computed prompt tokens but {heard_then} were heard by then")
    if heard_tokens != booked_tokens + late:
        wrong.append(f"{heard_tokens} computed prompt tokens were heard but {booked_tokens} booked and {late} late")
    return wrong


def lost_with(
    database: sqlite3.Connection, proxy: sqlite3.Row, worker: sqlite3.Row, shares: int, summary: str
) -> AuditFinding:
    """Return how many tokens were lost with a killed proxy, from what the worker stated to a later proxy. Proxies to
    which it stated nothing, because they were killed too soon, are taken together with the one before them."""
    this, *later = database.execute(LATER, (proxy["incarnation"], worker["worker"])).fetchall()
    if this["before"] is None:
        return AuditFinding(True, f"{summary}; it was killed before the worker told what it had generated")
    known_tokens, together = shares + this["apart"], 1
    for later_proxy in later:
        if later_proxy["before"] is not None:
            lost = later_proxy["before"] - this["before"] - known_tokens
            other_proxies = f" and {together - 1} that followed it" if together > 1 else ""
            return AuditFinding(lost >= 0, f"{summary}; {lost} lost with this proxy{other_proxies}")
        known_tokens += (
            database.execute(SHARES, (worker["worker"], later_proxy["proxy"])).fetchone()[0] + later_proxy["apart"]
        )
        together += 1
    return AuditFinding(True, f"{summary}; the worker ended before it could tell what was lost with the proxy")
