# SPDX-License-Identifier: Apache-2.0
"""The addresses by which a machine reaches itself."""

from ipaddress import IPv6Address, ip_address

LOCALHOST = "localhost"


LOOPBACK = "127.0.0.1"


def is_loopback(address: str) -> bool:
    """Return whether an address means, on every machine, that machine itself. A name never does, however it begins."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        return parsed.ipv4_mapped.is_loopback
    return parsed.is_loopback
