# SPDX-License-Identifier: Apache-2.0
"""The adapters of the workers that generate: those of the launch, and those that came and went while it runs.

Each process knows all changes, and tells them to those that lack some (runtime/wire/adapter_book.py): a proxy that
begins anew hears of them from its workers, and a worker from its proxies.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pontil.runtime.errors import RequestError, Unavailable
from pontil.runtime.proxy.fleet.registered_worker import RegisteredWorker
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.wire.adapter_book import MOST_NAMES, AdapterBook, AdapterChange
from pontil.runtime.wire.messages import AdapterState, AdapterTable, Hello, Message

LOG = logging.getLogger("pontil.proxy")
# Seconds from the first worker that a proxy meets within which it meets those that were there before.
MEETS_WITHIN = 2.0


class FleetAdapters:
    """The view of one proxy. `configured` are the names of the launch, until a worker tells of them; operators
    `may_load` others. `states` has what each worker told last, `has_news` whether that was ever new here; `served`
    has the digests of names that all workers had loaded."""

    def __init__(
        self, incarnation: str, registry: Registry, send: Callable[[Message], bool], configured: Sequence[str],
        may_load: bool,
    ) -> None:  # fmt: skip
        self.incarnation, self.registry, self.send, self.configured = incarnation, registry, send, configured
        self.may_load, self.waits_until = may_load, math.inf
        self.has_news = self.has_heard = False
        self.book = AdapterBook()
        self.states: dict[str, AdapterState] = {}
        self.served: dict[str, str] = {}

    @property
    def before(self) -> Mapping[str, str]:
        """The digests of the launch's adapters."""
        hello = self.registry.generating.any_hello
        return {} if hello is None else hello.adapters

    @property
    def workers(self) -> Sequence[RegisteredWorker]:
        return self.registry.generating.available

    @property
    def names(self) -> list[str]:
        """The names of the adapters that are served, or will be once a worker is here."""
        if self.registry.generating.any_hello is None:
            return list(self.configured)
        return [name for name, digest in self.book.named(self.before).items() if self.is_served(name, digest)]

    def check_known(self, name: str) -> None:
        """Raise Unavailable for a name of which only workers know for what it stands, while none is here."""
        if name not in self.book.changes:
            is_known = self.is_told and (self.registry.generating.any_hello or name not in self.configured)
            if not is_known and (name in self.configured or self.may_load):
                raise Unavailable("no worker is ready yet: try again in a moment")

    def check_served(self, name: str, digest: str) -> None:
        """Raise Unavailable for an adapter that is not loaded yet."""
        if not self.is_served(name, digest):
            raise Unavailable(
                self.failure(name, digest) or f"the adapter {name} is being loaded: try again in a moment"
            )

    @property
    def is_told(self) -> bool:
        """Return whether workers have told what was loaded and unloaded: a name may stand for another adapter until
        then. Each one that is here tells what it knows, which may be less than another one does. Those that have just
        begun know nothing, so that the others are waited for, for a while."""
        if not self.has_heard and self.workers:
            tellers = [one.hello.sender for one in self.workers if one.hello.loads_adapters]
            waits = bool(tellers) and time.monotonic() < self.waits_until
            self.has_heard = self.states.keys() >= {*tellers} and (self.has_news or not waits)
        return self.has_heard

    def is_served(self, name: str, digest: str) -> bool:
        """Return whether each worker that takes requests had it loaded when it was, and none has failed since."""
        if name not in self.book.changes:
            return True
        if self.failure(name, digest) is not None:
            return False
        if self.served.get(name) != digest and self.is_loaded(name, digest):
            self.served[name] = digest
        return self.served.get(name) == digest

    def is_loaded(self, name: str, digest: str) -> bool:
        states = [self.states.get(worker.hello.sender) for worker in self.workers]
        return bool(states) and all(one is not None and one.loaded.get(name) == digest for one in states)

    def stands(self, name: str, change: AdapterChange) -> bool:
        """Return whether a change counts. One that was made elsewhere and not heard of here may have its number, or a
        higher one: then that one does, everywhere."""
        return self.book.changes.get(name) == change

    def is_gone(self, name: str, change: AdapterChange) -> bool:
        """Return whether all workers know of a change by which a name was unloaded."""
        states = [self.states.get(worker.hello.sender) for worker in self.workers]
        return all(one is not None and one.changes.get(name, 0) >= change.number for one in states)

    def lacking(self, digest: str) -> set[str]:
        """Return the workers that do not have an adapter in memory, where another one has."""
        workers = {worker.hello.sender for worker in self.workers}
        lacking = {one for one in workers & self.states.keys() if digest not in self.states[one].memory}
        return lacking if lacking != workers else set()

    def failure(self, name: str, digest: str) -> str | None:
        """Return why a worker cannot load an adapter."""
        for worker in self.workers:
            state = self.states.get(worker.hello.sender)
            if state is not None and state.digests.get(name) == digest and (reason := state.failed.get(name)):
                return f"{worker.hello.name} cannot load it: {reason:.500}"
        return None

    def check_workers(self) -> None:
        """Raise an error unless all workers load adapters while they run."""
        if not self.workers:
            raise Unavailable("no worker is ready: try again in a moment")
        for worker in self.workers:
            if not worker.hello.loads_adapters:
                says = f"{worker.hello.name} loads no adapters while it runs"
                raise RequestError(f"{says}: start all workers on cpu, and with --adapter-directory", status=409)

    def load(self, name: str, digest: str, directory: str, invocation: tuple[int, ...] = ()) -> AdapterChange:
        """Have a name stand for an adapter from now on, and all workers load it. Raises RequestError for too many."""
        if name not in self.book.changes and len(self.book.changes) >= MOST_NAMES:
            raise RequestError(f"there are {MOST_NAMES} adapters already: unload one first", status=409)
        LOG.info("the adapter %s is loaded from %s", name, directory)
        return self.change(name, AdapterChange(self.book.next_number, digest, directory, invocation=invocation))

    def unload(self, name: str) -> AdapterChange:
        """Have a name stand for nothing from now on. Requests that use its adapter go on."""
        LOG.info("the adapter %s is unloaded", name)
        return self.change(name, AdapterChange(self.book.next_number, "", ""))

    def retract(self, name: str, change: AdapterChange) -> None:
        """Unload what a change was to load, and nothing else that was loaded meanwhile, whether or not it was heard of
        here."""
        LOG.info("the adapter %s is not loaded", name)
        self.change(name, replace(change, retracted=True))

    def change(self, name: str, change: AdapterChange) -> AdapterChange:
        self.book.merge({name: change})
        self.served.pop(name, None)
        self.tell()
        return change

    def tell(self) -> None:
        for worker in self.registry.generating.workers:
            self.tell_worker(worker.hello)

    def tell_worker(self, hello: Hello) -> None:
        self.waits_until = min(self.waits_until, time.monotonic() + MEETS_WITHIN)
        if hello.loads_adapters and self.book.changes and self.registry.group_at(hello.sender) is None:
            self.send(AdapterTable(self.incarnation, hello.sender, **self.book.fields))

    def on_state(self, message: AdapterState) -> None:
        """Take what a worker knows, and what became of it there."""
        worker = self.registry.workers.get(message.sender)
        if worker is None or worker.group is not None:
            return
        self.states = {one: state for one, state in self.states.items() if one in self.registry.workers}
        self.states[message.sender] = message
        if changed := self.book.take(message):
            self.has_news = True
            for name in changed:
                self.served.pop(name, None)
            self.tell()
        elif self.book.lacks(message):
            self.tell_worker(worker.hello)
