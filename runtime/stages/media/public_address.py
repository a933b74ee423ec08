# SPDX-License-Identifier: Apache-2.0
"""The addresses behind a host's name, and which of them anybody may be led to. A name is resolved once, and the
connection is made to an address that was checked: what the name means a moment later changes nothing."""

import asyncio
import socket
import ssl
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from pontil.runtime.config.web_address import IPAddress

# Lookups at once: fewer than the threads of the event loop, of which other work has the rest.
LOOKUPS = 2
# Networks of special use that Python's tables call global, or did in an older version.
SPECIAL_V4 = tuple(map(IPv4Network, ("100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24")))
SPECIAL_V6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")))
GLOBAL_UNICAST = IPv6Network("2000::/3")
# The well-known prefix of NAT64 (RFC 6052), whose last four bytes are an address of IPv4.
NAT64 = IPv6Network("64:ff9b::/96")


def is_public(address: IPAddress) -> bool:
    """Return whether an address, and one of IPv4 that is written in it, belongs to a host of the public network: none
    of private, loopback, link-local, multicast, unspecified, shared, documentation or reserved ones."""
    if isinstance(address, IPv4Address):
        is_special = address.is_multicast or address.is_reserved or any(address in one for one in SPECIAL_V4)
        return address.is_global and not is_special
    if (inner := address.ipv4_mapped or of_nat64(address)) is not None:
        return is_public(inner)
    if address not in GLOBAL_UNICAST or any(address in one for one in SPECIAL_V6):
        return False
    return address.is_global if address.sixtofour is None else is_public(address.sixtofour)


def of_nat64(address: IPv6Address) -> IPv4Address | None:
    return IPv4Address(int(address) & 0xFFFFFFFF) if address in NAT64 else None


class SystemNetwork:
    """The system's resolver and its store of certificates, asked in threads: neither holds up the event loop. A lookup
    that hangs keeps its thread for as long as the resolver does, and others wait for it rather than take more
    threads."""

    def __init__(self) -> None:
        self.lookups = asyncio.Semaphore(LOOKUPS)
        self.context: ssl.SSLContext | None = None

    async def resolve(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host, in the order of the system. Raises OSError."""
        await self.lookups.acquire()
        future = asyncio.get_running_loop().run_in_executor(None, addresses_of, host, port)
        future.add_done_callback(self.ended)
        return await asyncio.shield(future)

    def ended(self, future: "asyncio.Future[list[str]]") -> None:
        self.lookups.release()
        if not future.cancelled():
            # Marks the exception as retrieved, also where nobody waits any more.
            future.exception()

    async def trusted(self) -> ssl.SSLContext:
        """Return the context in which certificates are verified."""
        if self.context is None:
            self.context = await asyncio.to_thread(ssl.create_default_context)
        return self.context


def addresses_of(host: str, port: int) -> list[str]:
    """Return each address once. Raises OSError, also for a name that cannot be asked for."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(str(error)) from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def read_addresses(texts: list[str]) -> list[IPAddress]:
    return [ip_address(text) for text in texts]
