# SPDX-License-Identifier: Apache-2.0
"""The RDMA devices of this host, as the kernel shows them, and those that are near a GPU: between two devices below one
PCI switch nothing passes through the processor.

Documentation/ABI/stable/sysfs-class-infiniband of Linux describes the files.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
ACTIVE = "4: ACTIVE"
# Controllers of displays, of 3D without one, and processing accelerators; a host's management controller is one of
# the first, by another maker than NVIDIA and AMD.
GPU_CLASSES = ("0x0300", "0x0302", "0x1200")
GPU_MAKERS = ("0x10de", "0x1002")

Place = tuple[str, ...]
"""The bridges above a PCI device, from the root complex on, and itself."""


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """A port that is active, and that this process can open. `interfaces` are the network interfaces of its device."""

    name: str
    port: int
    place: Place
    node: str
    interfaces: tuple[str, ...]

    def __str__(self) -> str:
        """The name by which UCX takes it."""
        return f"{self.name}:{self.port}"


def rdma_devices(root: Path = ROOT) -> list[RdmaDevice]:
    """Return the active ports that this process can open, in the order of their names. A container sees those of its
    host in /sys, with or without their files in /dev."""
    ports = []
    for device in sorted(root.glob("sys/class/infiniband/*")):
        if not can_open(device, root):
            continue
        place, node = place_of(device / "device"), word_of(device / "device" / "numa_node")
        interfaces = tuple(sorted(path.name for path in device.glob("device/net/*")))
        for port in sorted(device.glob("ports/*")):
            if word_of(port / "state") == ACTIVE:
                ports.append(RdmaDevice(device.name, int(port.name), place, node, interfaces))
    return ports


def can_open(device: Path, root: Path) -> bool:
    """Return whether this process can open the file of a device: rights alone do not say so in a container."""
    for path in device.glob("device/infiniband_verbs/*"):
        try:
            os.close(os.open(root / "dev" / "infiniband" / path.name, os.O_RDWR | os.O_CLOEXEC))
        except OSError:
            continue
        return True
    return False


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


def shared_bridges(first: Place, second: Place) -> int:
    count = 0
    while count < min(len(first), len(second)) and first[count] == second[count]:
        count += 1
    return count


def nearest(devices: Sequence[RdmaDevice], gpu: str, root: Path = ROOT) -> list[RdmaDevice]:
    """Return the ports that are nearest to the GPU with this PCI address, such as 0000:17:00.0: those with most bridges
    in common, and of these those of its processor."""
    path = root / "sys" / "bus" / "pci" / "devices" / gpu
    place, node = place_of(path), word_of(path / "numa_node")
    near = [(shared_bridges(device.place, place), device.node == node) for device in devices]
    return [device for device, measure in zip(devices, near, strict=True) if measure == max(near)]


def gpus(root: Path = ROOT) -> list[str]:
    """Return the PCI addresses of all GPUs."""
    devices = sorted((root / "sys" / "bus" / "pci" / "devices").glob("*"))
    return [
        device.name
        for device in devices
        if word_of(device / "class")[:6] in GPU_CLASSES and word_of(device / "vendor") in GPU_MAKERS
    ]


def net_device(interface: str, gpu: str | None, root: Path = ROOT) -> str:
    """Return the only device that NIXL lets UCX have: the port nearest to a GPU, or for memory of the host that of the
    interface's own device; without RDMA the interface. GPUs that are equally near to several ports take turns."""
    devices = rdma_devices(root)
    if gpu is None:
        return next((str(device) for device in devices if interface in device.interfaces), interface)
    if not devices:
        return interface
    near = nearest(devices, gpu, root)
    alike = [address for address in gpus(root) if nearest(devices, address, root) == near]
    return str(near[(alike.index(gpu) if gpu in alike else 0) % len(near)])
