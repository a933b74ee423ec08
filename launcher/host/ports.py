# SPDX-License-Identifier: Apache-2.0
"""TCP ports, tried before any process is spawned."""

import errno
import re
import socket
from ipaddress import ip_address
from typing import Any

from pontil.launcher.foundation.errors import LaunchError, OptionError

# Family, kind, protocol, canonical name and address, as getaddrinfo gives them.
ResolvedAddress = tuple[int, int, int, str, Any]
# A part of a name, with the underscores that some networks have.
LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)", re.ASCII)
MOST_OF_NAME = 253


def usable_port(flag: str, host: str, port: int) -> int:
    """Return the port, or for 0 a free one, after listening there for a moment. Raises LaunchError and OptionError if a
    server could not."""
    with bound_socket(flag, host, port) as probe:
        try:
            # A server that has bound the port with the same option is detected only by listening.
            probe.listen(1)
        except OSError as error:
            raise refusal(flag, host, port, error) from error
        bound_port: int = probe.getsockname()[1]
    return bound_port


def bound_socket(flag: str, host: str, port: int) -> socket.socket:
    """Return a socket that is bound there, for port 0 to a free one, and does not listen. Raises OptionError for a
    malformed host, and LaunchError for what may be possible in a moment."""
    family, kind, protocol, _, address = resolved(flag, host, port, socket.SOCK_STREAM)
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise refusal(flag, host, port, error) from error
    return sock


def refusal(flag: str, host: str, port: int, error: OSError) -> LaunchError:
    if error.errno == errno.EADDRINUSE:
        return LaunchError(f"Port {port} on {host} is in use: stop what listens there or choose another {flag}.")
    if error.errno == errno.EACCES:
        return LaunchError(f"Port {port} needs more rights than this user has: choose a port above 1023.")
    # An address may be this machine's later than the launch: an interface comes up, a shared address moves here.
    return LaunchError(f"{host} cannot be bound ({error.strerror}): try again, or 127.0.0.1 or 0.0.0.0.")


def resolved(flag: str, host: str, port: int, kind: socket.SocketKind) -> ResolvedAddress:
    """Return the first address of a host. Raises OptionError for what is no address and no name of a host, and
    LaunchError for a name that nobody knows now: at boot the network may not be there yet."""
    if not is_host(host):
        raise OptionError(f"{flag} {host!r} is no address and no name of a host: try 127.0.0.1 or 0.0.0.0.")
    try:
        return socket.getaddrinfo(host, port, type=kind, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError) as error:
        says = error.strerror if isinstance(error, socket.gaierror) else str(error)
        raise LaunchError(f"{flag} {host} is not known ({says}): check the name and the network.") from error


def is_host(host: str) -> bool:
    """Return whether a host is well-formed: an address, or a name whose last label is no number (RFC 1123)."""
    try:
        ip_address(host.partition("%")[0])
        return True
    except ValueError:
        pass
    try:
        name = host.encode("idna").decode().removesuffix(".")
    except UnicodeError:
        return False
    *_, last = labels = name.split(".")
    return len(name) <= MOST_OF_NAME and not last.isdigit() and all(map(LABEL.fullmatch, labels))


def address_towards(host: str, flag: str = "--join") -> str:
    """Return the address of this machine that packets to `host`, which a `flag` has named, leave from. Sends
    nothing."""
    try:
        family, kind, protocol, _, address = resolved(flag, host, 9, socket.SOCK_DGRAM)
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            own_address: str = probe.getsockname()[0]
    except OSError as error:
        raise LaunchError(f"{flag} {host} cannot be reached from here: check the address and the network.") from error
    return own_address
