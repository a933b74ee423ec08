# SPDX-License-Identifier: Apache-2.0
"""GPUs as NVIDIA's own tool lists them, or AMD's driver: the launcher never loads a library that could query a driver
itself."""

import shutil
import subprocess

from pontil.launcher.host.amd_gpus import find_amd_gpus

TOOL = "nvidia-smi"
TOOL_TIMEOUT = 20.0
QUERY = ("--query-gpu=index,memory.free", "--format=csv,noheader,nounits")


def find_gpus(visible: str | None) -> tuple[int | None, ...]:
    """Return the free memory in bytes (None: unknown) of each GPU that torch will see, in torch's order. `visible` is
    CUDA_VISIBLE_DEVICES, which renumbers them, AMD's too. A broken driver and a slow one count as no GPUs. torch serves
    one vendor's: AMD's are looked for where there are none of NVIDIA's."""
    found = find_nvidia_gpus() or list(find_amd_gpus())
    if visible is None:
        return tuple(found)
    return tuple(found[int(name)] if is_one_of(name, found) else None for name in named_gpus(visible)[: len(found)])


def named_gpus(visible: str) -> list[str]:
    return [name.strip() for name in visible.split(",") if name.strip()]


def find_nvidia_gpus() -> list[int | None]:
    tool = shutil.which(TOOL)
    if tool is None:
        return []
    try:
        asked = subprocess.run([tool, *QUERY], capture_output=True, text=True, timeout=TOOL_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [free_memory(line) for line in asked.stdout.splitlines() if line.strip()] if asked.returncode == 0 else []


def is_one_of(name: str, found: list[int | None]) -> bool:
    """Return whether the name is a GPU found. Names may be numbers; others, such as UUIDs, are left to torch."""
    return name.isdecimal() and int(name) < len(found)


def free_memory(line: str) -> int | None:
    """Parse the free memory from `index, mebibytes`."""
    _, _, free = line.partition(",")
    return int(free) << 20 if free.strip().isdecimal() else None
