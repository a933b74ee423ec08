# SPDX-License-Identifier: Apache-2.0
"""Handling of the messages by which workers register, report their state and leave."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pontil.runtime.accounting.ledger import Ledger
from pontil.runtime.errors import MalformedFrame
from pontil.runtime.proxy.fleet.registered_worker import RegisteredWorker
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.metrics.all_series import Metrics
from pontil.runtime.wire.messages import (
    Goodbye,
    Heartbeat,
    Hello,
    Message,
    PrefixDelta,
    PrefixRequest,
    Refused,
    RoleChange,
    StillHere,
    Welcome,
)

# The sender that a worker hears of if it is not registered, or not any more.
NOBODY = ""
LOG = logging.getLogger("pontil.proxy")


@dataclass(frozen=True, slots=True)
class Registrar:
    """The handler of workers' own messages. `on_change` is called when a worker registered, first told of its load, or
    changed its role or state, or that of its links to others; `lose` with those that have let go of their requests;
    `came` with a Hello that was answered, before its sender gets a request. `send` returns whether a message was sent.
    `wants_prefixes`: workers are to tell what they have cached."""

    incarnation: str
    registry: Registry
    ledger: Ledger
    metrics: Metrics
    clock: Callable[[], float]
    send: Callable[[Message], bool]
    on_change: Callable[[], None]
    lose: Callable[[Sequence[RegisteredWorker]], None]
    came: Callable[[Hello], None]
    wants_prefixes: bool = False

    def on_hello(self, message: Hello) -> None:
        if self.registry.processes.is_late(message):
            return
        self.lose(self.registry.let_go(message))
        reason = self.registry.hello(message, self.clock())
        if reason is None:
            LOG.info("%s (pid %d) registered", message.name, message.pid)
            self.ledger.registered(message.sender, message.name)
            self.welcome(message)
        else:
            LOG.warning("refused a worker: %s", reason)
            self.send(Refused(self.incarnation, message.sender, reason))

    def on_heartbeat(self, message: Heartbeat) -> None:
        """Take a heartbeat. A worker that is not registered is told so, and says Hello again."""
        worker = self.registry.workers.get(message.sender)
        lost = frozenset[str]() if worker is None else worker.lost_peers
        grown = self.registry.heartbeat(message)
        if worker is None or grown is None:
            self.send(StillHere(NOBODY, message.sender))
        else:
            self.metrics.of_workers.add(self.registry.workers[message.sender].hello.name, grown)
            self.ledger.state(message.sender, message.counters)
            self.send(StillHere(self.incarnation, message.sender))
            if worker.lost_peers != lost:
                self.links_changed(worker, lost)
            if not worker.contact.stated:
                worker.contact.stated = True
                self.on_change()

    def links_changed(self, worker: RegisteredWorker, before: frozenset[str]) -> None:
        """Route by the links that a worker has now."""
        for peers, level, phrase in (
            (worker.lost_peers - before, logging.WARNING, "is cut off from"),
            (before - worker.lost_peers, logging.INFO, "hears again, or needs no more,"),
        ):
            for peer in peers & self.registry.workers.keys():
                LOG.log(level, "%s %s %s", worker.hello.name, phrase, self.registry.workers[peer].hello.name)
        self.on_change()

    def on_goodbye(self, message: Goodbye) -> None:
        self.registry.goodbye(message.sender, message.drained, message.for_good)

    def on_role_change(self, message: RoleChange) -> None:
        if self.registry.change_role(message):
            name = self.registry.workers[message.sender].hello.name
            LOG.info("%s %s", name, "drains" if message.draining else f"works as {message.role}")
            self.welcome(message)

    def on_prefix_delta(self, message: PrefixDelta) -> None:
        """Take what changed in a worker's prefix cache. After a gap the worker is asked to begin again."""
        worker = self.registry.workers.get(message.sender)
        if worker is None:
            return
        try:
            is_in_sequence = worker.prefixes.take(message)
        except MalformedFrame as error:
            is_in_sequence = False
            self.metrics.drop_malformed(message, error)
        if not is_in_sequence and worker.prefixes.may_ask(self.clock()):
            self.send(PrefixRequest(self.incarnation, message.sender))

    def welcome(self, message: Hello | RoleChange) -> None:
        """Send the worker its current registration."""
        prefixes = self.wants_prefixes
        about = self.incarnation, message.sender, True, message.role, message.draining
        self.send(Welcome(*about, prefixes, times=True, leases=True, adapters=True, step_logits=True))
        if isinstance(message, Hello):
            self.came(message)
        self.on_change()
