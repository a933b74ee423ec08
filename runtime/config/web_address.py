# SPDX-License-Identifier: Apache-2.0
"""Addresses of files on the network, and the hosts from which files may be fetched. Pure; nothing is resolved here."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urljoin, urlsplit

from pontil.runtime.foundation.loopback import LOCALHOST

IPAddress = IPv4Address | IPv6Address
PORTS = {"http": 80, "https": 443}
LIKE = "must be an address like https://host.example/picture.png"
MOST_CHARACTERS = 4096
# Visible ASCII: nothing that could end a line of a request, and no backslash, which some readers take for a slash.
WRITTEN = re.compile(r"[!-\[\]-~]+", re.ASCII)
NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9_-]{1,63}(?<!-))*", re.ASCII)
ENTRY = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:]+)(?::(\d{1,5}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class WebAddress:
    """The address of a file: a host's name in small letters, or an IP address without brackets, and the `target`, path
    and query as they are asked for. The target may hold a secret, so that no text form shows it."""

    scheme: str
    host: str
    port: int
    target: str = field(repr=False)

    @property
    def authority(self) -> str:
        """The host as it is named in requests, with a port that is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    def joined(self, location: str) -> "WebAddress":
        """Return the address to which this one is redirected. Raises ValueError as `web_address` does."""
        if not WRITTEN.fullmatch(location):
            raise ValueError(f"must be of visible ASCII characters, at most {MOST_CHARACTERS}")
        try:
            url = urljoin(f"{self.scheme}://{self.authority}{self.target}", location)
        except ValueError:
            raise ValueError(LIKE) from None
        return web_address(url)


def web_address(url: str) -> WebAddress:
    """Read an address. Raises ValueError with words that follow its name."""
    if len(url) > MOST_CHARACTERS or not WRITTEN.fullmatch(url):
        raise ValueError(f"must be of visible ASCII characters, at most {MOST_CHARACTERS}: percent-encode others")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(LIKE) from None
    if parts.scheme not in PORTS:
        raise ValueError("must begin with https:// or http://")
    if "@" in parts.netloc:
        raise ValueError("must have no user or password")
    host = host_name(parts.hostname or "")
    if host is None or port == 0:
        raise ValueError(LIKE)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return WebAddress(parts.scheme, host, port or PORTS[parts.scheme], target)


def host_name(text: str) -> str | None:
    """Return the one form of a host's name or IP address, None for what is neither."""
    text = text.lower().removesuffix(".")
    if (address := literal(text)) is not None:
        return str(address)
    return text if len(text) <= 253 and NAME.fullmatch(text) else None


def literal(text: str) -> IPAddress | None:
    """Return the IP address that a text is, None for any other text, and for one with a zone."""
    try:
        return None if "%" in text else ip_address(text)
    except ValueError:
        return None


def host_entry(text: str) -> tuple[str, tuple[int, ...]]:
    """Read an entry of a list of hosts, with its port or those of http and https. Raises ValueError with words that
    follow the list's name."""
    parts = ENTRY.fullmatch(text.strip().lower())
    host = None if parts is None else host_name(parts[1].strip("[]"))
    if parts is None or host is None or (parts[2] is not None and not 0 < int(parts[2]) < 65536):
        raise ValueError("must be hosts like images.example or 10.0.0.5:9000, with commas between them")
    address = literal(host)
    if address is not None and (address.is_unspecified or address.is_multicast):
        raise ValueError(f"must be addresses of single hosts, which {host} is not")
    if host == LOCALHOST and parts[2] is None:
        raise ValueError(f"must have {host} with its port, like {host}:9000")
    return host, tuple(PORTS.values()) if parts[2] is None else (int(parts[2]),)


class MediaHosts:
    """The hosts, by name or by address, with the ports at which files may be fetched from them."""

    def __init__(self, entries: Iterable[str]) -> None:
        self.ports: dict[str, set[int]] = {}
        for host, ports in map(host_entry, entries):
            self.ports.setdefault(host, set()).update(ports)

    def __bool__(self) -> bool:
        return bool(self.ports)

    def allow(self, address: WebAddress) -> bool:
        return address.port in self.ports.get(address.host, ())

    def mean(self, address: IPAddress, port: int) -> bool:
        """Return whether the operator wrote this very address, with this port, so that it may be one that only the
        server reaches."""
        is_written = port in self.ports.get(str(address), ())
        return is_written or (address.is_loopback and port in self.ports.get(LOCALHOST, ()))
