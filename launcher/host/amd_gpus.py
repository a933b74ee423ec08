# SPDX-License-Identifier: Apache-2.0
"""AMD GPUs as the kernel's driver shows them in /sys: no tool of the vendor's has to be installed."""

from pathlib import Path

NODES = Path("/sys/class/kfd/kfd/topology/nodes")
CARDS = Path("/sys/class/drm")


def find_amd_gpus(nodes: Path = NODES, cards: Path = CARDS) -> tuple[int | None, ...]:
    """Return the free memory in bytes (None: unknown) of each GPU, in the order in which ROCm numbers them: that of the
    driver's nodes, of which those without compute units are processors."""
    try:
        found = sorted((int(node.name), properties_of(node)) for node in nodes.iterdir() if node.name.isdecimal())
    except OSError:
        return ()
    gpus = [known for _, known in found if known.get("simd_count", 0) > 0]
    return tuple(free_memory(cards / f"renderD{known.get('drm_render_minor', 0)}" / "device") for known in gpus)


def properties_of(node: Path) -> dict[str, int]:
    """Return the whole numbers in a node's list of properties; none if it cannot be read, as without permission."""
    try:
        lines = (node / "properties").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition(" ") for line in lines)
    return {name: int(value) for name, _, value in pairs if value.strip().isdecimal()}


def free_memory(device: Path) -> int | None:
    try:
        total, used = (int((device / f"mem_info_vram_{name}").read_text()) for name in ("total", "used"))
    except (OSError, ValueError):
        return None
    return max(0, total - used)
