# SPDX-License-Identifier: Apache-2.0
"""The processor of this machine."""

import platform
from pathlib import Path


def processor_name() -> str:
    """Return the processor's name, as the system tells it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
