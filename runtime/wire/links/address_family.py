# SPDX-License-Identifier: Apache-2.0
"""The address family of a zmq endpoint: libzmq speaks IPv4 alone unless it is told otherwise."""

import socket


def is_ipv6(endpoint: str) -> bool:
    """Return whether an endpoint is an IPv6 address, or a name that has no other. May ask the resolver."""
    host = endpoint.removeprefix("tcp://").rpartition(":")[0]
    if not endpoint.startswith("tcp://") or host in ("", "*"):
        return False
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(family == socket.AF_INET6 for family, *_ in found)
