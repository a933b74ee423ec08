# SPDX-License-Identifier: Apache-2.0
"""The usage log's tables: their rows, and the SQL that writes them. Only this module and its readers' queries know
them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from pontil.runtime.accounting.counts import EMBEDDED, LEASED, SCORED
from pontil.runtime.foundation.value import value

OPEN, CLOSED, LOST, VOID = "open", "closed", "lost(proxy)", "void"
# SQL: what was delivered, or answered by a vector, a score or a lease, is billed.
BILLED = f"(delivered > 0 OR finish IN ('{EMBEDDED}', '{SCORED}', '{LEASED}'))"


@value(frozen=True, slots=True)
class RequestRow:
    """One request. `arrived` is in seconds since 1970; the other times count from there, None while unknown.
    `generated` is what the workers state, else what came from them. `name` is the X-Request-Id, `finish` has a reason
    for each choice. `queue_seconds` and `computed_tokens` are stated by the worker that computed the prompt.
    `stage` is set for what a further stage of a model did for a request, whose id this one begins with.
    `image_tokens` are those of the `prompt_tokens` that stand for images."""

    id: str
    proxy: str
    name: str
    api_key: str
    model: str
    route: str
    state: str
    finish: str | None
    choices: int
    attempts: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    generated: int
    delivered: int
    discarded: int
    arrived: float
    queue_seconds: float | None
    first_token_seconds: float | None
    total_seconds: float | None
    computed_tokens: int | None
    stage: str | None = None
    image_tokens: int = 0


@value(frozen=True, slots=True)
class ShareRow:
    """The work of one worker for one request: ids generated, and prompt tokens computed. `proxy` is set where another
    proxy than the request's own had them computed."""

    request: str
    worker: str
    attempt: int
    phase: str
    generated: int
    computed: int
    proxy: str | None = None


@value(frozen=True, slots=True)
class WorkerRow:
    """A worker's Book with one proxy; `stated` is its count since it first registered there, as stated last, or None.
    The `prompt_` fields are the same for prompt tokens."""

    worker: str
    proxy: str
    name: str
    before: int | None
    stated: int | None
    heard_then: int
    missing: int
    heard: int
    booked: int
    late: int
    unheard: int
    prompt_stated: int | None
    prompt_heard_then: int
    prompt_missing: int
    prompt_heard: int
    prompt_booked: int
    prompt_late: int


@dataclass(frozen=True, slots=True)
class ProxyRow:
    """One run of a proxy, and its ledger's sums over closed requests and over leases that ended. Proxies of one `name`
    follow each other; those of one `fleet` write to the file together."""

    incarnation: str
    started: float
    state: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    generated: int
    delivered: int
    discarded: int
    name: str | None = None
    fleet: str | None = None
    leases: int = 0
    lease_granted: int = 0
    lease_held: int = 0
    lease_released: int = 0
    lease_refunded: int = 0


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A lease on a prefix: `size` bytes of KV, `seconds` long as granted, by the worker of this name. Of the
    byte-seconds `granted`, those `held` are billed. While it is open, they are as they were when it was written. Where
    two proxies billed it, since its worker had lost the first one, the row that was closed first counts; that of the
    other one is void, and has its name in its id.
    `began` is in seconds since 1970; `outcome` is the state of a lease (runtime/cache/leases/lease.py)."""

    id: str
    proxy: str
    api_key: str
    model: str
    worker: str
    state: str
    outcome: str
    reason: str | None
    tokens: int
    size: int
    seconds: int
    granted: int
    held: int
    released: int
    refunded: int
    began: float


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """The outcome of one line of a batch, which is written together with the rows of its requests and never changes. It
    is told up to the `place`, in bytes, of the batch's file of this `kind` (docs/decisions/106)."""

    batch: str
    line: int
    outcome: str
    kind: str
    place: int


@dataclass(frozen=True, slots=True)
class ForgottenBatch:
    """The end of what is known of a batch's lines. Their bills stay."""

    batch: str


@dataclass(frozen=True, slots=True)
class LostProxy:
    """The end of a proxy without a last word. Its open requests are lost, but for those `kept`: a JSON list of ids."""

    incarnation: str
    kept: str


@dataclass(frozen=True, slots=True)
class LostRequest:
    """The end of an open request that nobody continues any more."""

    id: str


@dataclass(frozen=True, slots=True)
class LostLeases:
    """The end of the open leases of proxies that are gone, but for those `kept`, a JSON list of ids: no worker has
    them. What their rows do not say was held is refunded. A proxy that is there closes its own."""

    kept: str


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The beginning of what a proxy knows of a request that another one had begun. The shares that are there are
    removed before any are written: of attempts that its record had no room for this proxy knows nothing."""

    id: str


@dataclass(frozen=True, slots=True)
class RemovedRequests:
    """The sums over requests that were removed: as `pontil usage` and the audit sum them. `clients` are those that are
    no further stage of another."""

    proxy: str
    api_key: str
    model: str
    day: str
    state: str
    requests: int
    clients: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    generated: int
    delivered: int
    discarded: int
    image_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RemovedLeases:
    """The sums over leases that were removed."""

    proxy: str
    api_key: str
    model: str
    day: str
    state: str
    leases: int
    granted: int
    held: int
    released: int
    refunded: int


@dataclass(frozen=True, slots=True)
class RemovedShares:
    """The sums over what one worker did for one proxy's requests that were removed."""

    worker: str
    proxy: str
    generated: int
    computed: int


UsageRow = RequestRow | ShareRow | WorkerRow | ProxyRow | BatchOutcome | LeaseRow
SumRow = RemovedRequests | RemovedShares | RemovedLeases
# Rows that a proxy posts about others.
LostRow = LostProxy | LostRequest | TakenOver | ForgottenBatch | LostLeases
Posted = UsageRow | LostRow

TABLES: dict[type[UsageRow], tuple[str, tuple[str, ...]]] = {
    RequestRow: ("requests", ("id",)),
    ShareRow: ("shares", ("request", "worker", "attempt")),
    WorkerRow: ("workers", ("worker", "proxy")),
    ProxyRow: ("proxies", ("incarnation",)),
    BatchOutcome: ("batch_lines", ("batch", "line")),
    LeaseRow: ("leases", ("id",)),
}
# Tables of sums over rows that were removed (runtime/accounting/removal.py).
SUM_TABLES: dict[type[SumRow], tuple[str, tuple[str, ...]]] = {
    RemovedRequests: ("removed_requests", ("proxy", "api_key", "model", "day", "state")),
    RemovedShares: ("removed_shares", ("worker", "proxy")),
    RemovedLeases: ("removed_leases", ("proxy", "api_key", "model", "day", "state")),
}
ALL_TABLES: dict[type[Any], tuple[str, tuple[str, ...]]] = {**TABLES, **SUM_TABLES}
SQL_TYPES = {"str": "TEXT", "int": "INTEGER", "float": "REAL"}


def create(kind: type[UsageRow | SumRow]) -> str:
    name, key = ALL_TABLES[kind]
    return f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(columns_of(kind).values())}, PRIMARY KEY ({', '.join(key)}))"


def columns_of(kind: type[UsageRow | SumRow]) -> dict[str, str]:
    """Return each column's declaration. A column added later is 0, or unknown, in older rows."""
    columns = {}
    for field in fields(kind):
        plain, _, optional = type_name(field.type).partition(" | ")
        default = " DEFAULT 0" if plain == "int" else ""
        columns[field.name] = f"{field.name} {SQL_TYPES[plain]}{'' if optional else ' NOT NULL' + default}"
    return columns


def type_name(declared_type: Any) -> str:
    return declared_type.__name__ if isinstance(declared_type, type) else str(declared_type)


# SQL: the rows that a later version of theirs may change; all, where there is no such condition.
GUARDS: dict[type[UsageRow], str] = {
    RequestRow: f" WHERE requests.state = '{OPEN}'",
    BatchOutcome: " WHERE FALSE",
    LeaseRow: f" WHERE leases.state = '{OPEN}'",
}


def upsert(kind: type[UsageRow]) -> str:
    name, key = TABLES[kind]
    columns = [field.name for field in fields(kind)]
    changes = ", ".join(f"{column} = excluded.{column}" for column in columns if column not in key)
    guard = GUARDS.get(kind, "")
    return (
        f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}) "
        f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}{guard}"
    )


def void_lease() -> tuple[str, tuple[int, ...]]:
    """Return the SQL that keeps what a proxy closes where another one has closed it, and which fields it takes."""
    columns = [field.name for field in fields(LeaseRow)]
    name, proxy, state = (columns.index(column) for column in ("id", "proxy", "state"))
    values = {name: "? || '@' || ?", state: f"'{VOID}'"}
    taken = [place for place in range(len(columns)) if place != state]
    taken.insert(taken.index(name) + 1, proxy)
    return (
        f"INSERT OR IGNORE INTO leases ({', '.join(columns)}) "
        f"SELECT {', '.join(values.get(place, '?') for place in range(len(columns)))} WHERE ? = '{CLOSED}' "
        f"AND EXISTS (SELECT * FROM leases WHERE id = ? AND state = '{CLOSED}' AND proxy <> ?)",
        (*taken, state, name, proxy),
    )


LOSE = f"UPDATE requests SET state = '{LOST}', finish = '{LOST}' WHERE state = '{OPEN}'"
# SQL: one statement or more for each kind of row, and which of its fields each of them takes.
STATEMENTS: dict[type[Posted], tuple[tuple[str, tuple[int, ...]], ...]] = {
    **{kind: ((upsert(kind), tuple(range(len(fields(kind))))),) for kind in TABLES},
    LeaseRow: ((upsert(LeaseRow), tuple(range(len(fields(LeaseRow))))), void_lease()),
    LostProxy: (
        (f"{LOSE} AND proxy = ? AND id NOT IN (SELECT value FROM json_each(?))", (0, 1)),
        (f"UPDATE proxies SET state = '{LOST}' WHERE state = '{OPEN}' AND incarnation = ?", (0,)),
    ),
    LostRequest: ((f"{LOSE} AND id = ?", (0,)),),
    LostLeases: (
        (
            f"UPDATE leases SET state = '{LOST}', outcome = 'refunded', reason = 'no worker has it any more', "
            f"refunded = granted - held - released WHERE state = '{OPEN}' "
            f"AND proxy NOT IN (SELECT incarnation FROM proxies WHERE state = '{OPEN}') "
            "AND id NOT IN (SELECT value FROM json_each(?))",
            (0,),
        ),
    ),
    ForgottenBatch: (("DELETE FROM batch_lines WHERE batch = ?", (0,)),),
    TakenOver: (
        (f"DELETE FROM shares WHERE request IN (SELECT id FROM requests WHERE id = ? AND state = '{OPEN}')", (0,)),
    ),
}


def getter(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what takes these fields of a row. It copies nothing, as `astuple` would: rows are written all the time."""
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda row: (get(row),)


# Getters of the values of each kind of row, in the order of its fields, and of its key: of a row that a proxy posts
# about others all of it.
VALUES: dict[type[Posted], Callable[[Any], tuple[Any, ...]]] = {
    kind: getter([field.name for field in fields(kind)]) for kind in STATEMENTS
}
KEYS = {kind: getter(TABLES[kind][1]) if kind in TABLES else VALUES[kind] for kind in STATEMENTS}
