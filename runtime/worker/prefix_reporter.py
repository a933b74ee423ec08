# SPDX-License-Identifier: Apache-2.0
"""Reports of the prefix cache to the proxy, which sends prompts where their beginning is cached."""

from pontil.runtime.cache.prefix import PrefixIndex
from pontil.runtime.wire.messages import PrefixDelta
from pontil.runtime.worker.proxy_link import ProxyLink

# Changes in one message: 32 KiB.
MOST_TOLD = 4096


class PrefixReporter:
    """The sender of PrefixDelta messages: none to a proxy that does not want them, and none while the proxy takes no
    messages, when the changes wait in the journal."""

    def __init__(self, link: ProxyLink, index: PrefixIndex) -> None:
        self.link, self.index = link, index
        self.number = 0

    def begin(self) -> None:
        """Tell the current proxy everything anew, if it wants to know."""
        self.number = 0
        self.index.journal = None
        if self.link.takes_prefixes:
            self.index.open_journal()

    def tell(self) -> None:
        """Send what has changed, at most MOST_TOLD changes."""
        journal = self.index.journal
        if journal is None or self.link.congested:
            return
        if self.link.proxy is None:
            self.index.journal = None
            return
        if journal.is_void:
            self.number = 0
            journal = self.index.open_journal()
        if journal.changes or not self.number:
            added, removed = journal.take(MOST_TOLD)
            self.link.send(PrefixDelta(self.link.hello.sender, self.link.proxy, self.number, added, removed))
            self.number += 1
