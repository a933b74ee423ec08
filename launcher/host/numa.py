# SPDX-License-Identifier: Apache-2.0
"""The cores that are near each GPU, as Linux shows them: those of its PCI device's NUMA node.

Documentation/ABI/testing/sysfs-bus-pci of Linux describes the files.
"""

from collections.abc import Sequence
from pathlib import Path

DEVICES = Path("/sys/bus/pci/devices")


def cores_near(addresses: Sequence[str | None], devices: Path = DEVICES) -> tuple[frozenset[int], ...]:
    """Return for each GPU, by its PCI address such as 00000000:17:00.0, the cores of its NUMA node: none where that is
    not known."""
    return tuple(frozenset() if address is None else local_cores(devices / short(address)) for address in addresses)


def short(address: str) -> str:
    """Return an address as Linux spells it: with four digits of the domain, where NVIDIA's tool has eight."""
    domain, _, rest = address.strip().lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if rest and all(digit in "0123456789abcdef" for digit in domain) else ""


def local_cores(device: Path) -> frozenset[int]:
    """Return the cores of a device's node; none for a host without such nodes, whose list would name all cores."""
    try:
        node, listed = (device / "numa_node").read_text(), (device / "local_cpulist").read_text()
        return frozenset() if int(node) < 0 else cores_of(listed)
    except (OSError, ValueError):
        return frozenset()


def cores_of(listed: str) -> frozenset[int]:
    """Parse a list such as 0-3,8. Raises ValueError."""
    ranges = (part.partition("-") for part in listed.strip().split(",") if part)
    return frozenset(core for first, _, last in ranges for core in range(int(first), int(last or first) + 1))
