# SPDX-License-Identifier: Apache-2.0
"""The reason why a worker cannot reach a proxy on another host, reported as soon as it is known."""

from pontil.runtime.errors import IncompatiblePeer, PontilError
from pontil.runtime.wire.links.connection_monitor import HANDSHAKE_TIMEOUT, ConnectionMonitor, Reachability
from pontil.runtime.wire.links.keys import is_network


class ProxyReachability:
    """A watch on the connection to `endpoint`. Of a proxy on the same host nothing is reported: its supervisor does.
    `told` is the last report.

    A worker whose keys differ from the proxy's at the start is misconfigured and ends. If they matched before, the
    proxy has new keys now: the worker ends too, and the supervisor restarts it with the keys that the file has then. A
    worker waits for a proxy that does not answer, since the parts of a system may start in any order.
    """

    def __init__(self, connection: ConnectionMonitor, endpoint: str) -> None:
        self.connection, self.endpoint = connection, endpoint
        self.is_elsewhere = is_network(endpoint)
        self.told = ""
        self.was_open = False

    def look(self, now: float) -> bool:
        """Return whether there is something new to report. Raise PontilError when the proxy does not have the same
        keys."""
        if not self.is_elsewhere:
            return False
        self.connection.look(now)
        self.was_open = self.was_open or self.connection.state is Reachability.OPEN
        if self.connection.lasts(Reachability.REFUSED, now):
            raise (PontilError if self.was_open else IncompatiblePeer)(
                f"the proxy at {self.endpoint} does not accept this worker's keys: start both with the same --keys "
                "file, or both without"
            )
        away = self.connection.lasts(Reachability.AWAY, now)
        before = self.told
        self.told = self.absence if away else ""
        return away and not before

    @property
    def absence(self) -> str:
        return (
            f"the proxy at {self.endpoint} cannot be reached for {HANDSHAKE_TIMEOUT:.0f} s: check that it runs, the "
            "address, and that no firewall is between; still trying"
        )
