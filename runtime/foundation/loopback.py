# SPDX-License-Identifier: Apache-2.0
"""The addresses by which a machine reaches itself."""

from ipaddress import IPv6Address, ip_address

LOCALHOST = "localhost"


LOOPBACK = "127.0.0.1"


def is_loopback(address: str) -> bool:
    """Return whether an address means, on every machine, that machine itself. A name never does, however it begins."""
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        return ip.ipv4_mapped.is_loopback
    return ip.is_loopback
