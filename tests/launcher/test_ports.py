# SPDX-License-Identifier: Apache-2.0
import socket

import pytest

from pontil.launcher.errors import LaunchError, OptionError
from pontil.launcher.ports import usable_port


def test_a_free_port_is_found_and_a_taken_one_refused() -> None:
    port = usable_port("--port", "127.0.0.1", 0)
    assert usable_port("--port", "127.0.0.1", port) == port
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        with pytest.raises(LaunchError, match="in use"):
            usable_port("--port", "127.0.0.1", server.getsockname()[1])


@pytest.mark.parametrize("host", ["no such host", "203.0.113.7", "x" * 100])
def test_an_address_that_is_not_here_is_refused(host: str) -> None:
    with pytest.raises(OptionError, match="try 127.0.0.1"):
        usable_port("--host", host, 0)
