# SPDX-License-Identifier: Apache-2.0
"""The port of a launch: refused until a proxy listens, and kept whatever becomes of the proxies."""

import os
import socket

import pytest

from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.host.service_port import ServicePort


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 10)


def test_a_connection_outlives_the_proxy_that_did_not_accept_it() -> None:
    port = ServicePort(("127.0.0.1", 0))
    port.open()
    (descriptor,) = port.handed["listeners"]
    first, second = (socket.socket(fileno=os.dup(descriptor)) for _ in range(2))
    number = first.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        connect(number)
    first.listen(8)
    with connect(number) as waiting, second:
        first.close()
        waiting.sendall(b"still here")
        with second.accept()[0] as accepted:
            assert accepted.recv(64) == b"still here"
        port.close()
        with connect(number) as last, second.accept()[0]:
            assert last.getpeername()[1] == number, "what runs serves on"
    with pytest.raises(ConnectionRefusedError):
        connect(number)
    assert not port.handed


def test_a_port_in_use_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(LaunchError, match="in use"):
        ServicePort(("127.0.0.1", other.getsockname()[1])).open()


def test_a_launch_without_a_proxy_has_none() -> None:
    port = ServicePort(None)
    port.open()
    port.close()
    assert not port.handed
