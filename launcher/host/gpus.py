# SPDX-License-Identifier: Apache-2.0
"""GPUs as NVIDIA's own tool lists them, or AMD's driver: the launcher never loads a library that could query a driver
itself."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

NODES = Path("/sys/class/kfd/kfd/topology/nodes")
CARDS = Path("/sys/class/drm")


@dataclass(frozen=True, slots=True)
class HostGpu:
    """A GPU: its free memory in bytes, and its PCI address; None where that is not known."""

    free: int | None = None
    address: str | None = None


def find_amd_gpus(nodes: Path = NODES, cards: Path = CARDS) -> tuple[HostGpu, ...]:
    """Return the GPUs in the order in which ROCm numbers them: that of the driver's nodes, of which those without
    compute units are processors."""
    try:
        pairs = sorted((int(node.name), properties_of(node)) for node in nodes.iterdir() if node.name.isdecimal())
    except OSError:
        return ()
    gpus = [props for _, props in pairs if props.get("simd_count", 0) > 0]
    devices = (cards / f"renderD{props.get('drm_render_minor', 0)}" / "device" for props in gpus)
    return tuple(HostGpu(free_bytes(device), device.resolve().name) for device in devices)


def properties_of(node: Path) -> dict[str, int]:
    """Return the whole numbers in a node's list of properties; none if it cannot be read, as without permission."""
    try:
        lines = (node / "properties").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition(" ") for line in lines)
    return {name: int(value) for name, _, value in pairs if value.strip().isdecimal()}


def free_bytes(device: Path) -> int | None:
    try:
        total_bytes, used_bytes = (int((device / f"mem_info_vram_{name}").read_text()) for name in ("total", "used"))
    except (OSError, ValueError):
        return None
    return max(0, total_bytes - used_bytes)


TOOL = "nvidia-smi"
TOOL_TIMEOUT = 20.0
QUERY = ("--query-gpu=index,memory.free,pci.bus_id", "--format=csv,noheader,nounits")


def find_gpus(visible: str | None) -> tuple[HostGpu, ...]:
    """Return each GPU that torch will see, in torch's order. `visible` is CUDA_VISIBLE_DEVICES, which renumbers them,
    AMD's too. A broken driver and a slow one count as no GPUs. torch serves
    one vendor's: AMD's are looked for where there are none of NVIDIA's."""
    gpus = find_nvidia_gpus() or list(find_amd_gpus())
    if visible is None:
        return tuple(gpus)
    return tuple(gpus[int(name)] if is_one_of(name, gpus) else HostGpu() for name in named_gpus(visible)[: len(gpus)])


def named_gpus(visible: str) -> list[str]:
    return [name.strip() for name in visible.split(",") if name.strip()]


def find_nvidia_gpus() -> list[HostGpu]:
    tool = shutil.which(TOOL)
    if tool is None:
        return []
    try:
        query = subprocess.run([tool, *QUERY], capture_output=True, text=True, timeout=TOOL_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [gpu_of(line) for line in query.stdout.splitlines() if line.strip()] if query.returncode == 0 else []


def is_one_of(name: str, gpus: list[HostGpu]) -> bool:
    """Return whether the name is a GPU found. Names may be numbers; others, such as UUIDs, are left to torch."""
    return name.isdecimal() and int(name) < len(gpus)


def gpu_of(line: str) -> HostGpu:
    """Parse `index, mebibytes, address`."""
    _, free, address, *_ = (*(part.strip() for part in line.split(",")), "", "")
    return HostGpu(int(free) << 20 if free.isdecimal() else None, address or None)
