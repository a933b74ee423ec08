# SPDX-License-Identifier: Apache-2.0
"""Fetches files for clients from hosts that the operator named, and from no other: a request must not lead the server
to what only the server reaches.

A file is asked for with GET, without cookies, credentials or a proxy of the environment. Each hop of a redirect is
checked as the first address is.
"""

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from pontil.runtime.config.web_address import IPAddress, MediaHosts, WebAddress, literal
from pontil.runtime.stages.media.fetch_failed import FetchFailed
from pontil.runtime.stages.media.http_reply import CUT_OFF, GOOD, HttpReply, read_body, read_head
from pontil.runtime.stages.media.public_address import SystemNetwork, is_public, read_addresses
from pontil.runtime.stages.media.web_connection import WebConnection, within

REDIRECTS = (301, 302, 303, 307, 308)
# Addresses of a host that are tried one after the other.
MOST_TRIED = 3
NO_PRIVATE = "leads to an address that is not of the public network, which this server does not connect to"


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits of one file: `total` seconds for all of it, `first_byte` for each host's reply to begin, `step` for each
    name to be resolved and each connection to be made; redirects, and bytes."""

    total: float = 15.0
    first_byte: float = 5.0
    step: float = 5.0
    redirects: int = 3
    size: int = 20 << 20


@dataclass(slots=True)
class WebFetcher:
    """Fetches files from the `allowed` hosts."""

    allowed: MediaHosts
    limits: FetchLimits = FetchLimits()
    network: SystemNetwork = field(default_factory=SystemNetwork)

    def check(self, address: WebAddress) -> None:
        """Raise FetchFailed for an address of another host."""
        if not self.allowed.allow(address):
            says = f"names the host {address.authority!r:.100}, from which this server fetches no images"
            raise FetchFailed(f"{says}: send the image itself in a data URL")

    async def fetch(self, address: WebAddress, take: Callable[[int], None]) -> bytes:
        """Return the bytes of a file. `take` is told how many came, as they come, and what it raises ends this. Raises
        FetchFailed."""
        seconds = self.limits.total
        return await within(seconds, self.followed(address, take), f"took longer than {seconds:g} s to come whole")

    async def followed(self, address: WebAddress, take: Callable[[int], None]) -> bytes:
        self.check(address)
        seconds = self.limits.first_byte
        for _ in range(1 + self.limits.redirects):
            try:
                async with self.connected(address) as connection:
                    connection.write(question(address))
                    reading = read_head(connection.reader)
                    reply = await within(seconds, reading, f"was not answered within {seconds:g} s by its host")
                    if reply.status == GOOD:
                        return await read_body(reply, connection.reader, self.limits.size, take)
            except OSError:
                raise FetchFailed(CUT_OFF) from None
            address = self.next_address(address, reply)
        raise FetchFailed(f"is redirected more than {self.limits.redirects} times: give the last address")

    def next_address(self, address: WebAddress, reply: HttpReply) -> WebAddress:
        """Return the address to which a reply that is not good redirects."""
        location = reply.header("location")
        if reply.status not in REDIRECTS or not location:
            raise FetchFailed(f"was answered with the status {reply.status} by its host")
        try:
            following = address.joined(location)
        except ValueError as error:
            raise FetchFailed(f"is redirected to an address that {error}") from None
        if following.scheme == "http" and address.scheme == "https":
            raise FetchFailed("is redirected from https to http: give an address that stays with https")
        try:
            self.check(following)
        except FetchFailed as failed:
            raise FetchFailed(f"is redirected to one that {failed}") from None
        return following

    async def addresses(self, address: WebAddress) -> list[IPAddress]:
        """Return the addresses of a host, all of which were checked."""
        if (given := literal(address.host)) is not None:
            found = [given]
        else:
            try:
                seconds = self.limits.step
                finding = self.network.resolve(address.host, address.port)
                found = read_addresses(await within(seconds, finding, f"has a host not found within {seconds:g} s"))
            except (OSError, ValueError):
                found = []
        if not found:
            raise FetchFailed(f"names the host {address.host!r:.100}, which is not found")
        # One address that is not public condemns the name: whoever answers for it would choose the moment.
        if not all(is_public(one) or self.allowed.mean(one, address.port) for one in found):
            raise FetchFailed(NO_PRIVATE)
        return found[:MOST_TRIED]

    @asynccontextmanager
    async def connected(self, address: WebAddress) -> AsyncIterator[WebConnection]:
        """Connect to an address that was checked, under the host's name."""
        tried = list[WebConnection]()
        try:
            await self.connect(address, tried)
            yield tried[-1]
        finally:
            for connection in tried:
                connection.abort()

    async def connect(self, address: WebAddress, tried: list[WebConnection]) -> None:
        """Add connections until one is open."""
        failure = f"names the host {address.authority!r:.100}, which takes no connection"
        addresses = await self.addresses(address)
        trusted = await self.network.trusted() if address.scheme == "https" else None
        for one in addresses:
            tried.append(WebConnection())
            opening = tried[-1].open(str(one), address.port, trusted, address.host)
            try:
                await within(self.limits.step, opening, failure)
                return
            except ssl.SSLError:
                raise FetchFailed(f"names the host {address.authority!r:.100}, whose TLS is not trusted") from None
            except (OSError, FetchFailed):
                continue
        raise FetchFailed(failure)


def question(address: WebAddress) -> bytes:
    """Return the request for a file. Its address has neither blanks nor ends of lines."""
    lines = (
        f"GET {address.target} HTTP/1.1",
        f"Host: {address.authority}",
        "User-Agent: pontil",
        "Accept: image/png, image/jpeg",
        "Accept-Encoding: identity",
        "Connection: close",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")
