# SPDX-License-Identifier: Apache-2.0
"""Clients that lease prefixes among others, in a share of the seeds: whatever happens to the processes, each leased
token is hit or refunded, and each byte-second is held, released or refunded, in the books of workers and in the log."""

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from faults import POWER_CUT
from http_reader import HttpReader
from operators import NEW_KEYS, RESTART_PROXIES
from request_connections import AnswerTaker, Dialer, PendingAnswer
from virtual_time import SeededWorld

from pontil.runtime.accounting.usage_tables import OPEN

if TYPE_CHECKING:
    from seed_run import SeedRun
    from watching import SeedWatch

    from pontil.runtime.worker.generate.worker import Worker

# Share of seeds with leases, the most of them, their seconds, and those between two looks.
SHARE, MOST_LEASES, TTL, LOOK = 0.6, 7, (1, 12), 1.0
# Tries of a lease that finds no room, or no proxy.
MOST_TRIES = 8
PATH, KEY, NAME = "/v1/prefixes", "key-of-cleo", "lease-"
# Seconds before the end of a lease in which a request may come too late.
MARGIN = 0.5
# The first token of a leased prompt, which no other client's begins with: what is found is the lease's.
OWN = 250


# A request behind a lease: when it was asked and answered, how many tokens were cached, and by which route.
Hit = tuple[float, float, int, str]


def completion_of(prompt: list[int]) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": 1, "seed": 1}


def request_of(number: int, method: str, path: str, body: Any = None) -> bytes:
    """Return the bytes of a request of the lease of this number."""
    data = b"" if body is None else json.dumps(body).encode()
    lines = f"host: localhost\r\nauthorization: Bearer {KEY}\r\nx-request-id: {NAME}{number}\r\n"
    lines += f"content-length: {len(data)}\r\ncontent-type: application/json\r\n\r\n"
    return f"{method} {path} HTTP/1.1\r\n{lines}".encode() + data


def found_by(reader: HttpReader) -> tuple[int, str]:
    """Return how many tokens of a completion's prompt were cached, and its route."""
    cached = json.loads(reader.body)["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached, reader.headers["x-pontil-route"]


class LeaseClient(AnswerTaker):
    """The client of one lease: it has a prefix kept, asks a request behind it at some moment, may extend or release it,
    and looks until it is over. `granted` is what it was told, `hits` are its requests."""

    def __init__(self, world: SeededWorld, dialer: Dialer, number: int, ended: Callable[[], None]) -> None:
        self.world, self.dialer, self.number, self.ended = world, dialer, number, ended
        self.chance = world.random(f"lease/{number}")
        length = self.chance.randrange(33, 100)
        self.prompt = [OWN, number, *(3 + self.chance.randrange(200) for _ in range(length))]
        self.seconds = self.chance.randrange(*TTL)
        self.granted: dict[str, Any] | None = None
        self.last: dict[str, Any] | None = None
        self.hits: list[Hit] = []
        self.tries = 0
        self.asked_at = self.granted_at = 0.0
        self.then: Callable[[HttpReader], None] = self.kept
        self.pending: PendingAnswer | None = None
        self.is_over = self.has_released = False

    def begin(self) -> None:
        self.tries += 1
        body = {"prompt": self.prompt, "ttl": self.seconds}
        self.ask("POST", PATH, self.kept, body)

    def kept(self, reader: HttpReader) -> None:
        if reader.status == 200:
            self.granted = self.last = json.loads(reader.body)
            self.granted_at = self.world.now()
            self.world.after(self.use_after, self.use)
        elif reader.status in (429, 503) and self.tries < MOST_TRIES:
            self.world.after(LOOK, self.begin)
        else:
            if reader.status not in (409, 429, 503):
                self.world.violate(f"a lease has an answer: {reader.status} {bytes(reader.body)[:200]!r}")
            self.end()

    @property
    def use_after(self) -> float:
        """The seconds from its grant to the first request behind it."""
        return self.chance.random() * self.seconds

    def use(self) -> None:
        self.ask("POST", "/v1/completions", self.used, completion_of([*self.prompt, 7, 8, 9]))

    def used(self, reader: HttpReader) -> None:
        if reader.status == 200:
            self.hits.append((self.asked_at, self.world.now(), *found_by(reader)))
        change = self.chance.random()
        if change < 0.25:
            self.ask("PATCH", self.path, self.looked, {"ttl": self.seconds})
        elif change < 0.5:
            self.has_released = True
            self.ask("DELETE", self.path, self.looked)
        else:
            self.look()

    @property
    def path(self) -> str:
        return f"{PATH}/{(self.granted or {}).get('id')}"

    def look(self) -> None:
        self.ask("GET", self.path, self.looked)

    def looked(self, reader: HttpReader) -> None:
        """Look again until it is over. A proxy that began later may not know one that is."""
        if reader.status == 200:
            self.last = json.loads(reader.body)
        is_held = (self.last or {}).get("state") in ("held", "moving")
        if reader.status == 404 or not is_held or self.world.now() > self.latest:
            self.end()
        else:
            self.world.after(LOOK, self.look)

    @property
    def latest(self) -> float:
        """The time by which it must be over."""
        return self.asked_at + 4 * TTL[1]

    def end(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.ended()

    def ask(self, method: str, path: str, then: Callable[[HttpReader], None], body: Any = None) -> None:
        self.then, self.asked_at = then, self.world.now()
        connection = self.dialer.dial(6000 + self.number)
        if connection is None:
            self.disconnected()
            return
        self.pending = connection.ask(self, request_of(self.number, method, path, body))

    # The parts of an AnswerTaker.

    def disconnected(self) -> None:
        if self.granted is not None:
            self.world.after(LOOK, self.look)
        elif self.tries < MOST_TRIES:
            self.world.after(LOOK, self.begin)
        else:
            self.world.after(0.0, self.end)

    def answered(self, reader: HttpReader) -> None:
        self.then(reader)


class LeaseClients:
    """The clients of a seed's leases."""

    def __init__(
        self, world: SeededWorld, dialer: Dialer, ended: Callable[[], None], others: Sequence[LeaseClient] = ()
    ) -> None:
        chance = world.random("leases")
        count = chance.randrange(1, MOST_LEASES) if chance.random() < SHARE else 0
        self.clients = [*(LeaseClient(world, dialer, number, ended) for number in range(count)), *others]
        self.world, self.chance = world, chance

    def plan(self, begin: float, seconds: float, joins: Callable[[], None]) -> None:
        for client in self.clients:
            joins()
            self.world.at(begin + self.chance.random() * seconds, client.begin)


def of_leases(name: str) -> bool:
    """Return whether a row is one of a client's that leases."""
    return name.startswith(NAME)


def a_leased_block_is_found(watch: "SeedWatch") -> Iterator[str]:
    """All blocks of a lease that is held are found at its worker: in the pool, where they have an owner, or pinned in a
    tier, unless that has just said that it lost one, or has not yet said that it has it."""
    for worker in watch.working:
        book, name, tier = worker.leases.book, worker.sockets.config.name, worker.machine.scheduler.tier
        pins, pool = book.pins, worker.machine.pool
        counts = Counter(key for lease in book.leases.values() for key in lease.keys)
        owned = (key for key, block in pins.owned.items() if pool.owners.get(block) and pool.index.blocks[key] == block)
        found = {*owned, *pins.moving, *pinned_below(worker)}
        if counts != pins.leases:
            yield f"{name} has {len(counts)} blocks in leases, and {len(pins.leases)} pins"
        for lease in book.leases.values():
            watch.holdings.setdefault((lease.id, name), Holding()).seen(watch.world.now(), tier.refused + tier.late)
            missing = sum(key not in found for key in lease.keys)
            if missing:
                yield f"{name} lacks {missing} of {len(lease.keys)} blocks of {lease.id}"


def pinned_below(worker: "Worker") -> set[bytes]:
    """Return the keys of leased blocks in a worker's tiers. What these have just lost is not yet known to be."""
    store, below = worker.machine.scheduler.tier.store, worker.leases.book.pins.below
    if store is None or not store.chain.pins.results.empty():
        return below
    return below & set().union(*store.chain.pins.by_tier.values())


class Holding:
    """The time in which a worker was seen to hold a lease, which may have moved there, and away again, and in which it
    computed no prompt that a tier has: which one is sooner is its tiers' matter."""

    def __init__(self) -> None:
        self.first = self.last = -1.0
        self.computed = 0

    def seen(self, now: float, computed: int) -> None:
        if now - self.last > LOOK or computed != self.computed:
            self.first, self.computed = now, computed
        self.last = now

    def covers(self, since: float, until: float) -> bool:
        return self.first <= since and until - LOOK < self.last


def a_leased_token_is_hit_or_refunded(run: "SeedRun") -> Iterator[str]:
    """A request behind a lease that is not refunded finds all of it, if it came to its worker and nothing was amiss
    meanwhile: proxies prefer that worker, and promise it nobody. A client whose proxy has died may not have heard of a
    refund, which its row and other proxies state."""
    with closing(sqlite3.connect(run.folder / "usage")) as database:
        refunded = {name for (name,) in database.execute("SELECT id FROM leases WHERE refunded > 0")}
    for client in run.leases.clients:
        if client.granted is None or client.last is None:
            continue
        name, tokens = client.granted["id"], client.granted["tokens"]
        views = list(views_of(run, name))
        states = {client.last["state"], *(view.term.state for view in views)}
        is_refunded = "refunded" in states or name in refunded
        for asked, answered, cached, route in client.hits:
            in_time = answered < client.granted_at + client.seconds - MARGIN
            if not in_time or is_refunded or not run.watch.was_calm(asked, answered):
                continue
            holding = run.watch.holdings.get((name, route.split(">")[0]))
            if holding is not None and holding.covers(asked, answered) and cached < tokens:
                yield f"{name} has {tokens} tokens, and {cached} were found"


def views_of(run: "SeedRun", name: str) -> Iterator[Any]:
    """Yield what proxies know of a lease."""
    for process in run.site.proxies:
        if process.proxy is not None:
            leases = process.proxy.leases
            if (view := leases.views.get(name) or leases.over.get(name)) is not None:
                yield view


def byte_seconds_are_conserved(run: "SeedRun") -> Iterator[str]:
    """Granted = held + released + refunded: in the book of each worker, in the ledger of each proxy, and in the row
    that each lease has, which is closed, unless its proxy was killed and no other one has settled its rows yet."""
    for one in run.site.workers:
        if one.worker is not None and one.worker.leases.book.settled.ahead:
            yield f"{one} has {one.worker.leases.book.settled}"
    for process in run.site.proxies:
        if process.proxy is not None and process.proxy.ledger.leases.imbalance:
            yield f"{process} has {process.proxy.ledger.leases}"
    if run.world.disks.lost_rows:
        return
    with closing(sqlite3.connect(run.folder / "usage")) as database:
        rows = {row[0]: row[1:] for row in database.execute(ROWS)}
    restarts = (RESTART_PROXIES, NEW_KEYS, POWER_CUT)
    is_left = any(fault.target in run.plan.proxy_names or fault.kind in restarts for fault in run.faults)
    for client in run.leases.clients:
        if client.granted is None:
            continue
        name, least = client.granted["id"], client.granted["byte_seconds"]["granted"]
        if name not in rows:
            yield f"{name} was granted, and has no row"
            continue
        state, granted, held, released, refunded = rows[name]
        if granted < least or granted < held + released + refunded:
            yield f"{name} was granted {least}, and its row has {rows[name]}"
        if released and not client.has_released:
            yield f"{name} was released by nobody, and its row has {rows[name]}"
        if state == OPEN and not is_left or state != OPEN and granted != held + released + refunded:
            yield f"{name} is over, and its row has {rows[name]}"


ROWS = "SELECT id, state, granted, held, released, refunded FROM leases"
