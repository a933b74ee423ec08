# SPDX-License-Identifier: Apache-2.0
"""The adapters that come to a worker, and leave it, while it runs, and what proxies are told of them."""

from collections.abc import Callable, Container, Sequence
from pathlib import Path

from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.wire.adapter_book import DIGEST, AdapterBook
from pontil.runtime.wire.messages import AdapterState, AdapterTable, Submit
from pontil.runtime.worker.adapters.adapter_parts import AdapterParts
from pontil.runtime.worker.adapters.adapter_reader import AdapterReader
from pontil.runtime.worker.generate.adapter_loads import AdapterLoads
from pontil.runtime.worker.links.proxy_links import ProxyLinks
from pontil.runtime.worker.links.worker_sockets import WorkerSockets
from pontil.runtime.worker.start.assembly import WorkerResources


def loads_adapters(config: WorkerConfig, machine: WorkerResources) -> bool:
    """Return whether a worker loads adapters while it runs."""
    return bool(config.adapter_directory and machine.model_adapters.shapes)


def open_loads(sockets: WorkerSockets, machine: WorkerResources) -> AdapterLoads:
    """Return the adapters in memory of a worker and its other ranks."""
    reader = AdapterReader(machine.model_adapters, sockets.poller.wake, sockets.failures)
    parts = AdapterParts(machine.model_adapters, reader, machine.driver.orders)
    made = AdapterLoads(machine.adapters, parts, machine.scheduler.answer_recompute.forget)
    sockets.closing.callback(made.close)
    return made


class WorkerAdapters:
    """The knowledge of a worker of adapters that proxies told it to load and unload, over its `loads`. It reads none
    outside of its `directories`."""

    def __init__(
        self, incarnation: str, links: ProxyLinks, loads: AdapterLoads, directories: Sequence[str] = ()
    ) -> None:
        self.incarnation, self.links, self.loads, self.directories = incarnation, links, loads, directories
        self.book = AdapterBook()
        # The last registrations in which all was told, by link.
        self.told: dict[int, tuple[str, int]] = {}

    def take(self, message: AdapterTable) -> None:
        """Merge what a proxy knows. It is answered also where that is no news."""
        for name in self.book.take(message):
            change = self.book.changes[name]
            if change.stands_for and not self.may_read(change.directory):
                self.loads.checks.failed[change.digest] = f"{change.directory} is not in its --adapter-directory"
            elif change.stands_for:
                self.loads.known.learn(name, change.digest, change.directory)
                self.loads.want(change.digest)
            else:
                self.loads.known.unname(name)
        self.loads.changed = True

    def meet(self, submit: Submit) -> None:
        """Know the adapter of a request that was sent with the directory of its files: its name may have been free, or
        another one's, before this worker began."""
        digest, directory, known = submit.adapter, submit.adapter_directory, self.loads.known
        if digest in known.by_digest or not directory:
            return
        if digest and DIGEST.fullmatch(digest) and self.may_read(directory):
            known.know(digest, directory)
            known.use(digest)

    def may_read(self, directory: str) -> bool:
        path = Path(directory).resolve()
        return any(path.is_relative_to(Path(root).resolve()) for root in self.directories)

    def tick(self, asked: Callable[[], Container[str]]) -> None:
        """Free what no request asks for any more, and tell each proxy what changed, and a new one everything."""
        if self.loads.known.by_digest:
            self.loads.retire(asked)
        changed, self.loads.changed = self.loads.changed, False
        for place, link in enumerate(self.links.links):
            registration = link.registration
            if registration is None or link.proxy is None or not link.takes_adapters:
                continue
            if changed or self.told.get(place) != registration:
                link.send(self.state(link.proxy))
            self.told[place] = registration

    def state(self, proxy: str) -> AdapterState:
        checks, named = self.loads.checks, self.book.named({})
        loaded = {name: digest for name, digest in named.items() if digest in checks.loaded}
        failed = {name: checks.failed[digest] for name, digest in named.items() if digest in checks.failed}
        known, memory = self.book.fields, self.loads.memory
        return AdapterState(self.incarnation, proxy, **known, loaded=loaded, failed=failed, memory=memory)
