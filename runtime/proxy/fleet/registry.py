# SPDX-License-Identifier: Apache-2.0
"""Registry of workers: added by Hello, kept by Heartbeat, drained by Goodbye, removed when they fall silent or the
supervisor's table shows them as dead."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any

from pontil.runtime.errors import RequestError
from pontil.runtime.foundation.staged_model import StagedModel, group_of
from pontil.runtime.proxy.fleet.group_members import Members
from pontil.runtime.proxy.fleet.known_processes import REMEMBERED, KnownProcesses, ProcessRow
from pontil.runtime.proxy.fleet.registered_worker import (
    FIXED,
    ROLES,
    TEXT_ROLES,
    Contact,
    RegisteredWorker,
    wrong_numbers,
    wrong_stage,
)
from pontil.runtime.proxy.fleet.registry_snapshot import FingerprintCache, RegistrySnapshot, context_length
from pontil.runtime.proxy.fleet.service_rate import Seats
from pontil.runtime.proxy.fleet.worker_release import ReleaseEnds, ReleaseShares, WorkerRelease
from pontil.runtime.proxy.routing.held_prefixes import MovingPrefixes
from pontil.runtime.proxy.routing.policy import OtherLoad, WorkerLoad
from pontil.runtime.wire.compatibility import foreign, objection
from pontil.runtime.wire.messages import SCHEMA, Heartbeat, Hello, RoleChange

# Refused workers that are shown, at most one for each name.
REFUSED = 32
# Age in seconds up to which a table is trusted: the supervisor sends one every second, and none while it is stopped.
FRESH = 3.0
# Silence after which it is seen whether a worker's connection is still there: two heartbeats, and half of one.
QUIET = 1.25
NO_MODELS: Mapping[str, str] = MappingProxyType({})
# Time to live of a worker that a supervisor watches: longer than the supervisor lets it compute silently.
WATCHED_TTL = 45.0


class WorkerGroup:
    """The workers of a registry that serve one model, or one stage of it. Its `key` is None for the first model that
    generates, or its first stage; the name of a further one, or of one that embeds or scores texts; or "node:" and the
    name of another stage. A request stays within one group, and within a release of it, whose workers are all alike."""

    def __init__(self, registry: "Registry", key: str | None) -> None:
        self.registry, self.key = registry, key
        self.fingerprints = FingerprintCache()
        self.shares = ReleaseShares()
        self.ends = ReleaseEnds()
        # By the release whose next process is to have them.
        self.moving: defaultdict[WorkerRelease, MovingPrefixes] = defaultdict(MovingPrefixes)
        self.members = Members(-1)

    @property
    def current(self) -> "Members":
        """The members as they are now."""
        if self.members.version != self.registry.version:
            mine = [worker for worker in self.registry.workers.values() if worker.group == self.key]
            self.members = Members.of(mine, self.registry.version)
        return self.members

    @property
    def workers(self) -> Sequence[RegisteredWorker]:
        return self.current.workers

    @property
    def any_hello(self) -> Hello | None:
        """The Hello of one worker, since all are alike; None without workers."""
        return next((worker.hello for worker in self.workers), None)

    def snapshot(self, begun: WorkerRelease | None = None) -> RegistrySnapshot:
        """Return what a request goes by, of the release that it is to stay with: the one that has `begun` it, if that
        is here, else one for a new request."""
        releases = self.current.releases
        release = begun if begun in releases else self.shares.choose(releases)
        workers = () if release is None else releases[release]
        hello = workers[0].hello if workers else self.any_hello
        return RegistrySnapshot(
            tuple([worker.loads.get(0) or worker.load for worker in workers]), hello, self.fingerprints, release
        )

    def snapshot_of(self, name: str) -> RegistrySnapshot:
        """Return what a request goes by that one worker is to compute, whether it takes requests or not. Raises
        RequestError for one that is not here."""
        for worker in self.workers:
            if worker.hello.name == name and worker.role not in FIXED and worker.contact.reachable:
                return RegistrySnapshot((worker.load,), worker.hello, self.fingerprints, worker.release)
        raise RequestError(f"there is no worker {name!r:.60} that generates", code="worker_not_found")

    def snapshot_of_all(self) -> RegistrySnapshot:
        """Return what a request goes by that stays with no release."""
        return RegistrySnapshot(self.loads, self.any_hello, self.fingerprints)

    def serving(self, release: WorkerRelease | None) -> list[RegisteredWorker]:
        """Return the workers to which a request of this release can be sent now; with None one of any."""
        mine = self.available if release is None else self.current.releases.get(release, ())
        return [worker for worker in mine if worker.contact.reachable]

    @property
    def available(self) -> Sequence[RegisteredWorker]:
        """The workers that take requests."""
        return self.current.available

    @property
    def seats(self) -> Seats:
        """The seats of the workers that generate."""
        worker_seats = self.current.seated
        free = sum([max(0, seats - worker.seat_counts.taken) for worker, seats in worker_seats])
        return Seats(free, sum([seats for _, seats in worker_seats]))

    @property
    def known_context(self) -> int | None:
        """The longest sequence in tokens; None while no worker is registered."""
        return context_length(self.available)

    @property
    def loads(self) -> tuple[WorkerLoad, ...]:
        """The current load of each worker that takes requests."""
        return tuple([worker.load for worker in self.available])

    @property
    def reachable_loads(self) -> tuple[WorkerLoad, ...]:
        """The current load of each worker to which a request can be sent now."""
        return tuple([worker.load for worker in self.serving(None)])

    def is_over(self, release: WorkerRelease | None) -> bool:
        """Return whether no worker of this release is here or will come back, while another release serves."""
        if release is None or not self.current.releases or not self.ends.is_over(release):
            return False
        return all(worker.contact.last for worker in self.workers if worker.release == release)

    @property
    def is_given_up(self) -> bool:
        """True if no worker is registered and the supervisor has given up restarting them."""
        rows = [
            row
            for row in self.registry.processes.rows
            if row.role != "proxy" and self.registry.may_be_of(row, self.key)
        ]
        return not self.workers and bool(rows) and all(row.state == "GIVEN_UP" for row in rows)


class Registry:
    """Workers by incarnation, in the order in which they registered. Those that generate run the first model, one of
    the `further` ones, by these names, or the stages of `graph`; `text_models` are the names of those beside them that
    embed or score texts, by the role of their workers."""

    def __init__(
        self,
        ttl: float,
        text_models: Mapping[str, str] = NO_MODELS,
        graph: StagedModel | None = None,
        further: Sequence[str] = (),
    ) -> None:
        self.ttl, self.text_models, self.graph, self.further = ttl, text_models, graph, further
        self.workers: dict[str, RegisteredWorker] = {}
        # Changed with any worker that comes, goes, or takes another role.
        self.version = 0
        self.processes = KnownProcesses()
        # The counters of removed workers, so that one that registers again does not count its work twice.
        self.remembered: dict[str, dict[str, int]] = {}
        # The last refusal for each name, until a worker of that name fits.
        self.refused: dict[str, ProcessRow] = {}
        stages = [] if graph is None else [group_of(graph, name) for name in graph.node_names]
        keys = dict.fromkeys((None, *further, *text_models.values(), *stages))
        self.groups = {key: WorkerGroup(self, key) for key in keys}
        self.generating = self.groups[None]

    def of(self, group: str | None) -> WorkerGroup:
        return self.groups[group]

    def group_at(self, incarnation: str) -> str | None:
        """Return the key of the group that a worker is in; None also where it is gone."""
        return self.workers[incarnation].group if incarnation in self.workers else None

    @property
    def answering(self) -> tuple[WorkerGroup, ...]:
        """The groups whose models answer clients with tokens, the first model's first."""
        return tuple(self.groups[key] for key in (None, *self.further))

    def key_of(self, message: Hello) -> str | None:
        """Return the key of the group that a worker would belong to."""
        has_own = message.role in TEXT_ROLES or message.model in self.further
        return message.model if has_own else group_of(self.graph, message.node)

    def may_be_of(self, row: ProcessRow, group: str | None) -> bool:
        """Return whether a process of the supervisor's table is a worker of this group."""
        if row.role in TEXT_ROLES:
            return group is not None and self.text_models.get(row.role) == group
        if group in self.further or row.about.get("model") is not None:
            return row.about.get("model") == group
        return group not in self.text_models.values() and group_of(self.graph, row.about.get("node")) == group

    def hello(self, message: Hello, now: float) -> str | None:
        """Register a worker; return the reason if it is refused. A second Hello of one process only renews its time to
        live and its role."""
        registered_worker = self.workers.get(message.sender)
        if registered_worker is not None:
            registered_worker.contact.last_heard, registered_worker.contact.reachable = now, True
            self.turn(registered_worker, message.role, message.draining)
            return None
        if reason := self.objection(message):
            self.refuse(message, reason)
            return reason
        self.refused.pop(message.name, None)
        counters = self.remembered.pop(message.sender, {})
        contact = Contact(now, is_proved=not message.draining)
        worker = RegisteredWorker(message, contact, counters, {}, leaving=message.draining, group=self.key_of(message))
        worker.free_blocks = worker.capacity
        worker.recent = self.even_share(worker)
        worker.contact.confirmed = any(
            row.name == message.name and row.pid == message.pid for row in self.processes.rows
        )
        self.workers[message.sender] = worker
        self.of(worker.group).ends.came(worker.release, worker.hello.name)
        self.version += 1
        return None

    def even_share(self, worker: RegisteredWorker) -> float:
        """Return the mean of the recent work of a new worker's equals: it is to take its part, and not all."""
        equals = [one.recent for one in self.of(worker.group).workers if one.role == worker.role and one is not worker]
        return sum(equals) / len(equals) if equals else 0.0

    def objection(self, message: Hello) -> str | None:
        """Return the reason why a worker is incompatible, or None. All workers of one revision in a group are alike, so
        comparing with one is enough."""
        if version := foreign(message, "the proxy", SCHEMA):
            return version
        if impossible := wrong_numbers(message):
            return impossible
        if message.role in TEXT_ROLES and message.model != self.text_models.get(message.role):
            return f"{message.name} has {message.model}, and {self.told_model(message.role)}: start both alike"
        if message.role not in TEXT_ROLES and (misplacement := wrong_stage(message, self.graph)):
            return misplacement
        hellos = [worker.hello for worker in self.of(self.key_of(message)).workers]
        revision = WorkerRelease.of(message).revision
        first = next((hello for hello in hellos if WorkerRelease.of(hello).revision == revision), None)
        return objection(message, first) if first else None

    def told_model(self, role: str) -> str:
        name = self.text_models.get(role)
        told = f"without {TEXT_ROLES[role]}" if name is None else f"with {TEXT_ROLES[role]} for {name}"
        return f"the proxy was started {told}"

    def refuse(self, message: Hello, reason: str) -> None:
        self.refused.pop(message.name, None)
        self.refused[message.name] = ProcessRow(
            message.name, message.role, message.pid or None, "REFUSED", message.device, reason
        )
        while len(self.refused) > REFUSED:
            del self.refused[next(iter(self.refused))]

    def heartbeat(self, message: Heartbeat) -> dict[str, int] | None:
        """Take a heartbeat; return the growth of each counter since the last, None for an unregistered worker."""
        worker = self.workers.get(message.sender)
        if worker is None:
            return None
        worker.running, worker.waiting = message.running, message.waiting
        worker.free_blocks = min(max(0, message.free_blocks), worker.capacity)
        worker.gauges = message.gauges or {}
        worker.others = OtherLoad.of(message.others)
        worker.lost_peers = frozenset(message.lost_peers)
        if not worker.counters and served_before(message):
            worker.counters = dict(message.counters)
        if message.counters == worker.counters:
            return {}
        grown = {name: value - worker.counters.get(name, 0) for name, value in message.counters.items()}
        grown = {name: difference for name, difference in grown.items() if difference > 0}
        worker.counters |= {name: message.counters[name] for name in grown}
        return grown

    def goodbye(self, incarnation: str, drained: bool = False, for_good: bool = False) -> None:
        """Give a worker no new requests; those that it has may finish. One that was `drained` has none."""
        if (worker := self.workers.get(incarnation)) is not None:
            worker.leaving, worker.contact.drained, worker.contact.last = True, drained, for_good
            self.of(worker.group).ends.leaves(worker.release, for_good)
            self.version += 1

    def change_role(self, message: RoleChange) -> bool:
        """Change a worker's role or drain state; return False if it is not registered."""
        worker = self.workers.get(message.sender)
        if worker is not None:
            self.turn(worker, message.role, message.draining)
        return worker is not None

    def turn(self, worker: RegisteredWorker, role: str, draining: bool) -> None:
        before, worker.hello = worker.role, replace(worker.hello, role=self.kept_role(worker, role), draining=draining)
        if worker.role != before:
            # Its work until now is of another kind, and counts neither for nor against it.
            worker.recent = self.even_share(worker)
        worker.leaving, worker.contact.is_proved = draining, worker.contact.is_proved or not draining
        self.version += 1

    def kept_role(self, worker: RegisteredWorker, role: str) -> str:
        """Return the role that a worker gets: a FIXED one stays so, and no other can turn to it."""
        return worker.role if role in FIXED or worker.role in FIXED or role not in ROLES else role

    def is_leaving(self, incarnation: str) -> bool:
        """Return whether the worker is registered and takes no new requests."""
        return incarnation in self.workers and self.workers[incarnation].leaving

    def let_go(self, message: Hello) -> list[RegisteredWorker]:
        """Remove and return the worker that says Hello, if it has let go of its requests since it registered."""
        worker = self.workers.get(message.sender)
        return self.remove([worker] if worker is not None and worker.hello.registration != message.registration else ())

    def cut_off(self, now: float, reaches: Callable[[str], bool]) -> list[RegisteredWorker]:
        """Remove and return the workers that are silent and have no connection: a message to one of them `reaches`
        nobody."""
        quiet = [worker for worker in self.workers.values() if now - worker.contact.last_heard > QUIET]
        return self.remove([worker for worker in quiet if not reaches(worker.hello.sender)])

    def expire(self, now: float, table_age: float | None = None) -> list[RegisteredWorker]:
        """Remove and return the workers that were silent for their time to live. It is longer for those that a FRESH
        table shows alive: the supervisor distinguishes busy workers from dead ones."""
        is_watched = table_age is not None and table_age <= FRESH
        longer = max(self.ttl, WATCHED_TTL)
        return self.remove(
            worker
            for worker in self.workers.values()
            if now - worker.contact.last_heard > (longer if is_watched and worker.contact.confirmed else self.ttl)
        )

    def show(self, rows: Sequence[Mapping[str, Any]]) -> list[RegisteredWorker]:
        """Take a new table. Remove and return the workers whose row now shows another pid or a dead process.

        Applies only to workers that a table has shown before, alive or ended: one of the same name on another host is
        not the supervisor's. A table may have shown one before its Hello was read, which came earlier.
        """
        self.processes.take(rows)
        by_name = {row.name: row for row in self.processes.rows}
        lost_workers = []
        for worker in self.workers.values():
            row = by_name.get(worker.hello.name)
            alive = row is not None and row.pid == worker.hello.pid and not row.dead
            has_ended = (worker.hello.name, worker.hello.pid) in self.processes.ended
            if (worker.contact.confirmed or has_ended) and not alive:
                lost_workers.append(worker)
            worker.contact.confirmed = worker.contact.confirmed or alive
        return self.remove(lost_workers)

    def remove(self, workers: Any) -> list[RegisteredWorker]:
        removed_workers = list(workers)
        self.version += bool(removed_workers)
        for worker in removed_workers:
            del self.workers[worker.hello.sender]
            who = worker.group, worker.release, worker.hello.name
            has_successor = any((one.group, one.release, one.hello.name) == who for one in self.workers.values())
            self.of(worker.group).ends.went(worker.release, worker.hello.name, worker.contact.last or has_successor)
            self.remembered[worker.hello.sender] = worker.counters
        while len(self.remembered) > REMEMBERED:
            del self.remembered[next(iter(self.remembered))]
        return removed_workers

    def unreachable(self, incarnation: str) -> None:
        """Send a worker no requests until it is heard again: its socket took no message."""
        if incarnation in self.workers:
            self.workers[incarnation].contact.reachable = False

    def topology(self) -> list[dict[str, Any]]:
        """Return rows of the supervisor's processes, of workers that joined from elsewhere, and of refused workers."""
        workers: dict[tuple[str, int | None], RegisteredWorker] = {
            (worker.hello.name, worker.hello.pid): worker for worker in self.workers.values()
        }
        rows = list(self.processes.rows)
        pids = {row.pid for row in rows}
        for worker in self.workers.values():
            hello = worker.hello
            if hello.pid not in pids:
                row = ProcessRow(
                    hello.name, hello.role, hello.pid, "DRAINING" if worker.leaving else "READY", hello.device
                )
                rows.append(row)
        return [shown(row, workers.get((row.name, row.pid))) for row in (*rows, *self.refused.values())]


def shown(row: ProcessRow, worker: RegisteredWorker | None) -> dict[str, Any]:
    """Return a row flattened: the fields of `about` beside the others, the reason if there is one, and what is known of
    the worker that this process is."""
    description = asdict(row)
    description |= description.pop("about")
    del description["ended_pids"]
    if row.reason is None:
        del description["reason"]
    if worker is not None:
        description["load"] = worker.shown_load
        description |= {} if worker.hello.node is None else {"node": worker.hello.node}
        told = {"revision": worker.hello.revision, "tokenizer": worker.hello.tokenizer_digest}
        description |= {name: value for name, value in told.items() if value is not None}
    return description


def served_before(message: Heartbeat) -> bool:
    """Return whether a worker has worked for another proxy: what it counted so far is in that one's metrics."""
    counts = (message.counters.get(name, 0) for name in ("generated_before", "prompt_tokens_computed_before"))
    return any(count > 0 for count in counts) or OtherLoad.of(message.others).proxies > 0
