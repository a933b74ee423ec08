# SPDX-License-Identifier: Apache-2.0
"""Choice of a connector for each peer: shared memory where the peer's pool can be opened from here, else TCP."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config.worker_config import DEADLINES, Deadlines
from pontil.runtime.errors import TransferError
from pontil.runtime.foundation.connectors import AUTO, usable
from pontil.runtime.threads import ThreadFailures
from pontil.runtime.transfer.connector import ConnectorOptions, Pair, PullResult, SliceConnector
from pontil.runtime.transfer.connector_factory import opener
from pontil.runtime.transfer.grants import Grant
from pontil.runtime.transfer.security import TransferSecurity


class AutoConnector:
    """The connector. It offers every connector to peers and chooses one for each; all of them take their tickets from
    one count."""

    def __init__(
        self, storage: KVStorage, wake: Callable[[], None], host: str = "127.0.0.1",
        guard: TransferSecurity | None = None, deadlines: Deadlines = DEADLINES, failures: ThreadFailures | None = None,
    ) -> None:  # fmt: skip
        options = ConnectorOptions(host, deadlines, guard, failures, count(1))
        self.ways = {name: opener(name)(storage, wake, options) for name in usable(storage.staged)}
        self.chosen: dict[str, SliceConnector] = {}
        self.pulls: dict[int, SliceConnector] = {}

    @classmethod
    def create(cls, storage: KVStorage, wake: Callable[[], None], options: ConnectorOptions) -> "AutoConnector":
        return cls(storage, wake, options.host, options.guard, options.deadlines, options.failures)

    def register(self) -> dict[str, Any]:
        return {"kind": AUTO, **{name: way.register() for name, way in self.ways.items()}}

    def attach(self, peer: str, descriptor: dict[str, Any], heads: range | None = None) -> None:
        """Attach a peer by the first connector that reaches it."""
        if peer in self.chosen:
            return
        faults: list[str] = []
        for name, way in self.ways.items():
            try:
                way.attach(peer, descriptor, heads)
            except TransferError as error:
                faults.append(f"over {name.upper()}: {error}" if faults else str(error))
            else:
                self.chosen[peer] = way
                return
        raise TransferError("; ".join(faults))

    def detach(self, peer: str) -> None:
        connector = self.chosen.pop(peer, None)
        if connector is not None:
            connector.detach(peer)

    def staged(self, peer: str) -> bool:
        connector = self.chosen.get(peer)
        return connector is None or connector.staged(peer)

    def lost(self) -> list[str]:
        return [peer for way in self.ways.values() for peer in way.lost()]

    def pull(
        self, peer: str, pairs: Sequence[Pair], slot: int, shown: Grant | None = None, heads: range | None = None
    ) -> int:
        connector = self.chosen.get(peer, next(iter(self.ways.values())))
        ticket = connector.pull(peer, pairs, slot, shown, heads)
        self.pulls[ticket] = connector
        return ticket

    def poll(self) -> list[PullResult]:
        done = [end for way in self.ways.values() for end in way.poll()]
        for end in done:
            self.pulls.pop(end.ticket, None)
        return done

    def received(self, peer: str) -> int:
        connector = self.chosen.get(peer)
        return 0 if connector is None else connector.received(peer)

    def cancel(self, ticket: int) -> None:
        connector = self.pulls.get(ticket)
        if connector is not None:
            connector.cancel(ticket)

    def close(self) -> None:
        for way in self.ways.values():
            way.close()
