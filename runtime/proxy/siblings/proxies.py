# SPDX-License-Identifier: Apache-2.0
"""One proxy among those that share its port: what it knows of the others, and what it settles for one that is gone
(docs/decisions/061)."""

import asyncio
import logging
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.proxy.metrics.pages import MetricsPages
from pontil.runtime.proxy.siblings.leases import Siblings
from pontil.runtime.proxy.siblings.recordings import RecordingExchange
from pontil.runtime.proxy.siblings.stream_record import StreamRecords
from pontil.runtime.proxy.siblings.timeline_exchange import TimelineExchange
from pontil.runtime.proxy.siblings.usage_table import UsageTable

# Seconds between two looks at the others.
LOOK = 0.5
USAGE_TABLE = "usage-of-keys"
LOG = logging.getLogger("pontil.proxy")

# Closes the open requests of a proxy that is gone, but for some, and does something once that is on the disk.
Lose = Callable[[str, Collection[str], Callable[[], None]], None]


class Fleet:
    """The other proxies, as this one sees them. A proxy alone has none. `render` makes its page of metrics, `known` the
    timeline of a request. Raises PontilError where the launch's folder cannot be used."""

    def __init__(
        self,
        config: ProxyConfig,
        incarnation: str,
        render: Callable[[], bytes],
        known: Callable[[str], dict[str, Any] | None],
    ) -> None:
        path = None if config.shared_folder is None else Path(config.shared_folder)
        self.siblings = None if path is None else Siblings(path, incarnation)
        self.table = (
            None if path is None else UsageTable(path / USAGE_TABLE, config.number, config.proxies, incarnation)
        )
        self.records = None if config.resume_folder is None else StreamRecords(Path(config.resume_folder))
        self.pages = None if path is None else MetricsPages(path, config.name, render)
        self.exchange = None if path is None else TimelineExchange(path, config.name, known)
        self.recordings = None if path is None else RecordingExchange(path, config.name)
        self.mourned: set[str] = set()

    def kept(self) -> list[str]:
        """Return the requests whose streams may be continued. Reads files."""
        return [] if self.records is None else self.records.requests()

    def lives(self, incarnation: str) -> bool:
        """Return whether another proxy serves. Reads files."""
        return self.siblings is not None and self.siblings.lives(incarnation)

    async def watch(self, lose: Lose) -> None:
        """Look after the others for as long as this proxy serves."""
        while self.siblings is not None:
            for incarnation in await asyncio.to_thread(self.siblings.gone):
                self.bury(incarnation, await asyncio.to_thread(self.kept), lose)
            if self.exchange is not None:
                self.exchange.look()
            if self.recordings is not None:
                await self.recordings.look()
            if self.pages is not None:
                await self.pages.look()
            await asyncio.sleep(LOOK)

    def bury(self, incarnation: str, kept: Collection[str], lose: Lose) -> None:
        """Settle the requests of a proxy that is gone, once, but for those `kept`. Its lease stays until that is
        written, so that another one does it if this proxy dies too."""
        if incarnation in self.mourned:
            return
        self.mourned.add(incarnation)
        LOG.warning("the proxy %s is gone: its open requests are settled here", incarnation)
        if self.table is not None:
            self.table.forget(incarnation)
        lose(incarnation, kept, partial(self.forget, incarnation))

    def forget(self, incarnation: str) -> None:
        if self.siblings is not None:
            self.siblings.forget(incarnation)

    def close(self, owes: bool = False) -> None:
        """Leave the others. They settle what is open of this proxy if it `owes` rows to the usage log."""
        if self.recordings is not None:
            self.recordings.close()
        if self.pages is not None:
            self.pages.close()
        if self.siblings is not None:
            self.siblings.close(owes)
