# SPDX-License-Identifier: Apache-2.0
"""What a worker says of a proxy that does not answer, or not to it."""

import pytest

from pontil.runtime.errors import IncompatiblePeer, PontilError
from pontil.runtime.wire.connection import HANDSHAKE_TIMEOUT, Reach
from pontil.runtime.worker.obstacle import Obstacle


class Scripted:
    """A connection whose state the test sets."""

    def __init__(self) -> None:
        self.state, self.since = Reach.AWAY, 0.0

    def look(self, now: float) -> None: ...

    def lasts(self, state: Reach, now: float) -> bool:
        return self.state is state and now - self.since > HANDSHAKE_TIMEOUT


def watched() -> tuple[Obstacle, Scripted]:
    connection = Scripted()
    return Obstacle(connection, "tcp://10.0.0.1:7000"), connection  # type: ignore[arg-type]


def test_an_absent_proxy_is_said_once_and_waited_for() -> None:
    obstacle, connection = watched()
    assert not obstacle.look(HANDSHAKE_TIMEOUT)
    assert obstacle.look(HANDSHAKE_TIMEOUT + 1) and "tcp://10.0.0.1:7000 cannot be reached" in obstacle.told
    assert not obstacle.look(HANDSHAKE_TIMEOUT + 2)
    connection.state = Reach.OPEN
    assert not obstacle.look(20.0)
    connection.state, connection.since = Reach.AWAY, 20.0
    assert obstacle.look(30.0), "gone again"


def test_other_keys_from_the_start_are_a_mistake() -> None:
    obstacle, connection = watched()
    connection.state = Reach.REFUSED
    assert not obstacle.look(HANDSHAKE_TIMEOUT)
    with pytest.raises(IncompatiblePeer, match="does not accept this worker's keys.*--keys"):
        obstacle.look(HANDSHAKE_TIMEOUT + 1)


def test_a_proxy_with_new_keys_ends_the_worker_for_another_to_start() -> None:
    obstacle, connection = watched()
    connection.state = Reach.OPEN
    obstacle.look(1.0)
    connection.state, connection.since = Reach.REFUSED, 2.0
    with pytest.raises(PontilError) as ended:
        obstacle.look(3.0 + HANDSHAKE_TIMEOUT)
    assert not isinstance(ended.value, IncompatiblePeer), "that would not be started again"


def test_on_one_host_there_is_nothing_to_watch() -> None:
    assert not Obstacle(None, "ipc:///run/control").look(1e9)
