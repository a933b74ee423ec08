# SPDX-License-Identifier: Apache-2.0
"""Endpoints of both families are bound and reached."""

import socket
from typing import Any

import pytest

from pontil.runtime.wire.links.keys import Keys
from pontil.runtime.wire.links.sockets import PeerClient, PeerServer, Poller, is_ipv6, open_context
from pontil.runtime.wire.messages import Goodbye

V4 = (socket.AF_INET, None, 0, "", ("10.0.0.1", 0))
V6 = (socket.AF_INET6, None, 0, "", ("fd00::1", 0, 0, 0))


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("tcp://[::1]:7000", True), ("tcp://[fd00::1:2]:*", True), ("tcp://127.0.0.1:7000", False),
        ("tcp://*:7000", False), ("ipc:///tmp/a:b", False), ("inproc://x", False),
    ],
)  # fmt: skip
def test_an_address_tells_its_family(endpoint: str, expected: bool) -> None:
    assert is_ipv6(endpoint) is expected


@pytest.mark.parametrize(("found", "expected"), [([V6], True), ([V6, V4], False), ([V4], False)])
def test_a_name_is_ipv6s_if_it_has_no_other_address(
    found: list[Any], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.getaddrinfo", lambda *asked, **more: found)
    assert is_ipv6("tcp://pontil-control:7000") is expected


def test_a_name_that_is_unknown_now_is_left_to_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*asked: Any, **more: Any) -> Any:
        raise socket.gaierror(socket.EAI_AGAIN, "try again")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    assert not is_ipv6("tcp://pontil-control:7000")


@pytest.mark.parametrize("keys", [None, Keys.of("5b" * 32)], ids=["open", "with-keys"])
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_message_arrives_over_both(host: str, keys: Keys | None) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
    there, here = open_context(keys), open_context(keys)
    server = PeerServer(here, f"tcp://{host}:*")
    client = PeerClient(there, "w1", server.endpoint)
    poller = Poller()
    poller.register(server)
    client.send(Goodbye("w1", "p1"))
    assert server.endpoint.startswith(f"tcp://{host}:") and poller.wait(30.0)
    assert server.receive_all() == [Goodbye("w1", "p1")]
    poller.close()
    for context in (there, here):
        context.destroy(linger=0)
