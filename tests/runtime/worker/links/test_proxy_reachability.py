# SPDX-License-Identifier: Apache-2.0
"""A worker's reports on a proxy that does not answer, or refuses its keys."""

import pytest

from pontil.runtime.errors import IncompatiblePeer, PontilError
from pontil.runtime.wire.links.connection_monitor import HANDSHAKE_TIMEOUT, Reachability
from pontil.runtime.worker.links.proxy_links import ProxyReachability


class Scripted:
    """A connection whose state the test sets."""

    def __init__(self) -> None:
        self.state, self.since = Reachability.AWAY, 0.0

    def look(self, now: float) -> None: ...

    def lasts(self, state: Reachability, now: float) -> bool:
        return self.state is state and now - self.since > HANDSHAKE_TIMEOUT


def watched() -> tuple[ProxyReachability, Scripted]:
    connection = Scripted()
    return ProxyReachability(connection, "tcp://10.0.0.1:7000"), connection  # type: ignore[arg-type]


def test_an_absent_proxy_is_said_once_and_waited_for() -> None:
    reachability, connection = watched()
    assert not reachability.look(HANDSHAKE_TIMEOUT)
    assert reachability.look(HANDSHAKE_TIMEOUT + 1) and "tcp://10.0.0.1:7000 cannot be reached" in reachability.told
    assert not reachability.look(HANDSHAKE_TIMEOUT + 2)
    connection.state = Reachability.OPEN
    assert not reachability.look(20.0)
    connection.state, connection.since = Reachability.AWAY, 20.0
    assert reachability.look(30.0), "gone again"


def test_other_keys_from_the_start_are_a_mistake() -> None:
    reachability, connection = watched()
    connection.state = Reachability.REFUSED
    assert not reachability.look(HANDSHAKE_TIMEOUT)
    with pytest.raises(IncompatiblePeer, match="does not accept this worker's keys.*--keys"):
        reachability.look(HANDSHAKE_TIMEOUT + 1)


def test_a_proxy_with_new_keys_ends_the_worker_for_another_to_start() -> None:
    reachability, connection = watched()
    connection.state = Reachability.OPEN
    reachability.look(1.0)
    connection.state, connection.since = Reachability.REFUSED, 2.0
    with pytest.raises(PontilError) as ended:
        reachability.look(3.0 + HANDSHAKE_TIMEOUT)
    assert not isinstance(ended.value, IncompatiblePeer), "that would not be started again"


@pytest.mark.parametrize("state", Reachability)
def test_on_one_host_there_is_nothing_to_report(state: Reachability) -> None:
    connection = Scripted()
    connection.state = state
    assert not ProxyReachability(connection, "ipc:///run/control").look(1e9)  # type: ignore[arg-type]
