# SPDX-License-Identifier: Apache-2.0
"""The processor that tests find. `scripts/test.sh --kernels avx2` hides the faster instruction sets of this one."""

import os
from pathlib import Path

CHOSEN = "TEST_KERNELS"


def hide_faster_sets() -> None:
    """Give engines in this process and launches that tests start the chosen kernels, if some were chosen."""
    name = os.environ.get(CHOSEN)
    if not name:
        return
    from pontil.gpu_ops.kernels.compile import instruction_sets

    (chosen,) = [one for one in instruction_sets.INSTRUCTION_SETS if one.name == name]
    shown = os.memfd_create("cpuinfo")
    os.write(shown, f"flags\t\t: {' '.join(sorted(chosen.needs))}\n".encode())
    instruction_sets.CPUINFO = Path(f"/proc/self/fd/{shown}")
    os.environ["PONTIL_KERNELS"] = name
