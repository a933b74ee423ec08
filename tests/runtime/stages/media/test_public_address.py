# SPDX-License-Identifier: Apache-2.0
"""Addresses that only a server or its network reaches, in whatever form they are written."""

import asyncio
import socket
import threading
from ipaddress import ip_address

import pytest

from pontil.runtime.stages.media.public_address import LOOKUPS, SystemNetwork, addresses_of, is_public

PRIVATE_V4 = (
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.254", "127.0.0.1", "127.255.255.254",
    "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.8", "192.0.0.9", "192.0.2.1", "192.88.99.1",
    "192.168.0.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1",
    "255.255.255.255",
)  # fmt: skip
PRIVATE_V6 = (
    "::", "::1", "fe80::1", "fe80::1%1", "fec0::1", "fc00::1", "fd12:3456::1", "ff02::1", "100::1", "2001::1",
    "2001:2::1", "2001:db8::1", "3fff::1", "64:ff9b:1::808:808", "5f00::1", "4000::1", "::8.8.8.8",
)  # fmt: skip
PUBLIC = ("8.8.8.8", "1.1.1.1", "93.184.216.34", "100.63.255.255", "172.32.0.1", "2606:4700::1111", "2a00:1450::1")


@pytest.mark.parametrize("text", PRIVATE_V4 + PRIVATE_V6)
def test_no_address_but_a_public_one_is_public(text: str) -> None:
    assert not is_public(ip_address(text))


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_are(text: str) -> None:
    assert is_public(ip_address(text))


@pytest.mark.parametrize(("inner", "expected"), [(one, False) for one in PRIVATE_V4] + [("8.8.8.8", True)])
def test_an_address_of_ipv4_stays_what_it_is_inside_one_of_ipv6(inner: str, expected: bool) -> None:
    """Mapped, by NAT64 and by 6to4. Teredo, which nobody has any more, is refused with all addresses."""
    number = int(ip_address(inner))
    groups = f"{number >> 16:x}:{number & 0xFFFF:x}"
    for text in (f"::ffff:{groups}", f"64:ff9b::{groups}", f"2002:{groups}::1"):
        assert is_public(ip_address(text)) is expected, text
    assert not is_public(ip_address(f"2001:0:{groups}::1"))


def test_lookups_that_hang_hold_up_neither_the_loop_nor_its_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    hanging = []

    def hang(host: str, port: int, **named: object) -> list[object]:
        hanging.append(host)
        go_on.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)

    async def script() -> None:
        network = SystemNetwork()
        lookups = [asyncio.ensure_future(network.resolve(f"host{index}", 80)) for index in range(LOOKUPS + 3)]
        try:
            assert await asyncio.wait_for(asyncio.to_thread(lambda: 5), 30) == 5
            done, _ = await asyncio.wait(lookups, timeout=0)
            assert not done and len(hanging) <= LOOKUPS
            for left in (lookups[0], lookups[-1]):
                left.cancel()
                await asyncio.wait([left])
        finally:
            go_on.set()
        await asyncio.wait(lookups)
        assert "host4" not in hanging, "one that nobody waits for any more is not asked"
        assert "host3" in hanging and not network.lookups.locked(), "a thread that nobody waits for frees its place"

    asyncio.run(script())


def test_names_that_no_resolver_takes_are_not_found() -> None:
    with pytest.raises(OSError):
        addresses_of("a" * 64 + ".invalid", 80)
    assert addresses_of("127.0.0.1", 80) == ["127.0.0.1"]
