# SPDX-License-Identifier: Apache-2.0
"""Reports of the prefix cache to the proxies, which send prompts where their beginning is cached."""

from collections.abc import Sequence

from pontil.runtime.cache.prefix import NOTHING_BELOW, PrefixIndex
from pontil.runtime.cache.prefix_journal import PrefixJournal
from pontil.runtime.wire.messages import PrefixDelta
from pontil.runtime.worker.links.proxy_link import ProxyLink

# Changes in one message: 32 KiB.
MOST_TOLD = 4096


class PrefixReporter:
    """The sender of PrefixDelta messages to one proxy: none if it does not want them, and none while it takes no
    messages, when the changes wait in a journal of its own. It tells everything anew in each `registration`."""

    def __init__(self, link: ProxyLink, index: PrefixIndex) -> None:
        self.link, self.index = link, index
        self.journal: PrefixJournal | None = None
        self.registration: tuple[str, int] | None = None
        self.number = 0

    def begin(self) -> None:
        """Tell the current proxy everything anew, if it wants to know."""
        self.number, self.registration = 0, self.link.registration
        self.end()
        if self.link.takes_prefixes:
            self.journal = self.index.open_journal()

    def end(self) -> None:
        if self.journal is not None:
            self.index.journals.remove(self.journal)
            self.journal = None

    def tell(self) -> None:
        """Send what has changed, at most MOST_TOLD changes."""
        if self.link.proxy is None:
            self.end()
        elif self.link.registration != self.registration:
            self.begin()
        if self.journal is None or not (self.journal.changes or self.journal.is_void or not self.number):
            return
        if self.link.congested:
            return
        if self.journal.is_void:
            self.begin()
        journal = self.journal
        if journal is not None and (journal.changes or not self.number):
            added, removed = journal.take(MOST_TOLD)
            self.link.send(PrefixDelta(self.link.hello.sender, self.link.proxy or "", self.number, added, removed))
            self.number += 1


class PrefixReporters:
    """The reporters of one prefix cache, one for each proxy."""

    def __init__(self, links: Sequence[ProxyLink], index: PrefixIndex) -> None:
        self.index = index
        self.reporters = [PrefixReporter(link, index) for link in links]

    def begin(self, proxy: str) -> None:
        """Tell this proxy everything anew."""
        for reporter in self.reporters:
            if reporter.link.proxy == proxy:
                reporter.begin()

    def tell(self) -> None:
        if self.index.below is not NOTHING_BELOW:
            self.index.catch_up()
        for reporter in self.reporters:
            reporter.tell()
