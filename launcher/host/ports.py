# SPDX-License-Identifier: Apache-2.0
"""TCP ports, tried before any process is spawned."""

import errno
import socket

from pontil.launcher.errors import LaunchError, OptionError


def usable_port(flag: str, host: str, port: int) -> int:
    """Return the port, or for 0 a free one, after listening there for a moment. Raises LaunchError and OptionError if a
    server could not."""
    with bound_socket(flag, host, port) as probe:
        try:
            # A server that has bound the port with the same option is detected only by listening.
            probe.listen(1)
        except OSError as error:
            raise refusal(flag, host, port, error) from error
        chosen: int = probe.getsockname()[1]
    return chosen


def bound_socket(flag: str, host: str, port: int) -> socket.socket:
    """Return a socket that is bound there, for port 0 to a free one, and does not listen. Raises LaunchError and
    OptionError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise OptionError(f"{flag} {host!r} is no address of this machine: try 127.0.0.1 or 0.0.0.0.") from error
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        raise refusal(flag, host, port, error) from error
    return made


def refusal(flag: str, host: str, port: int, error: OSError) -> LaunchError | OptionError:
    if error.errno == errno.EADDRINUSE:
        return LaunchError(f"Port {port} on {host} is in use: stop what listens there or choose another {flag}.")
    if error.errno == errno.EACCES:
        return LaunchError(f"Port {port} needs more rights than this user has: choose a port above 1023.")
    return OptionError(f"{host} cannot be bound ({error.strerror}): try 127.0.0.1 or 0.0.0.0.")


def address_towards(host: str) -> str:
    """Return the address of this machine that packets to `host` leave from. Sends nothing."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            own: str = probe.getsockname()[0]
    except (OSError, UnicodeError) as error:
        raise OptionError(f"--join {host} cannot be reached from here: check the address and the network.") from error
    return own
