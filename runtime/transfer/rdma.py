# SPDX-License-Identifier: Apache-2.0
"""The RDMA devices of this host, as the kernel shows them, and those that are near a GPU: between two devices below one
PCI switch nothing passes through the processor.

Documentation/ABI/stable/sysfs-class-infiniband of Linux describes the files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SYSTEM = Path("/sys")
ACTIVE = "4: ACTIVE"
# Controllers of displays, and of 3D without one.
GPU_CLASSES = ("0x0300", "0x0302")

Place = tuple[str, ...]
"""The bridges above a PCI device, from the root complex on, and itself."""


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """A port that is active. `interfaces` are the network interfaces of its device."""

    name: str
    port: int
    place: Place
    node: str
    interfaces: tuple[str, ...]

    def __str__(self) -> str:
        """The name by which UCX takes it."""
        return f"{self.name}:{self.port}"


def rdma_devices(system: Path = SYSTEM) -> list[RdmaDevice]:
    """Return the active ports of this host, in the order of their names."""
    found = []
    for device in sorted(system.glob("class/infiniband/*")):
        place, node = place_of(device / "device"), word_of(device / "device" / "numa_node")
        interfaces = tuple(sorted(path.name for path in device.glob("device/net/*")))
        for port in sorted(device.glob("ports/*")):
            if word_of(port / "state") == ACTIVE:
                found.append(RdmaDevice(device.name, int(port.name), place, node, interfaces))
    return found


def place_of(device: Path) -> Place:
    """Return where a device is, by the folders above what its link names."""
    parts = device.resolve().parts
    return parts[parts.index("devices") + 1 :] if "devices" in parts else ()


def word_of(path: Path) -> str:
    """Return the text of a file; of one that cannot be read, nothing."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def shared_bridges(one: Place, other: Place) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


def nearest(devices: Sequence[RdmaDevice], gpu: str, system: Path = SYSTEM) -> list[RdmaDevice]:
    """Return the ports that are nearest to the GPU with this PCI address, such as 0000:17:00.0: those with most bridges
    in common, and of these those of its processor."""
    path = system / "bus" / "pci" / "devices" / gpu
    place, node = place_of(path), word_of(path / "numa_node")
    near = [(shared_bridges(one.place, place), one.node == node) for one in devices]
    return [one for one, measure in zip(devices, near, strict=True) if measure == max(near)]


def gpus(system: Path = SYSTEM) -> list[str]:
    """Return the PCI addresses of all GPUs: processors of this class have no other use in such hosts."""
    devices = sorted((system / "bus" / "pci" / "devices").glob("*"))
    return [one.name for one in devices if word_of(one / "class")[:6] in GPU_CLASSES]


def net_device(interface: str, gpu: str | None, system: Path = SYSTEM) -> str:
    """Return the only device that NIXL lets UCX have: the port nearest to a GPU, or for memory of the host that of the
    interface's own device; without RDMA the interface. GPUs that are equally near to several ports take turns."""
    devices = rdma_devices(system)
    if gpu is None:
        return next((str(one) for one in devices if interface in one.interfaces), interface)
    if not devices:
        return interface
    near = nearest(devices, gpu, system)
    alike = [one for one in gpus(system) if nearest(devices, one, system) == near]
    return str(near[(alike.index(gpu) if gpu in alike else 0) % len(near)])
