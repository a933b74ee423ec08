# SPDX-License-Identifier: Apache-2.0
"""The memory that a plan says a worker takes, against what the kernel counts for a real one.

By default tests/runtime/probe holds the parts of a plan to what files and shapes say."""

from pathlib import Path

import pytest
from served import launched, wait_for

from pontil.runtime.loaders.builtin import resolve_model
from pontil.runtime.loaders.config import read_config
from pontil.runtime.probe.footprint import MemoryDemand, footprint
from pontil.runtime.worker.start.packed_files import SUFFIX

KV_BYTES = 32 << 20
# The estimate is below the truth by at most this part, and at most twice the truth.
MARGIN, MOST = 0.15, 2.0


def counted(file: Path, *names: str) -> int:
    """Return the sum of these lines of a file of /proc, in bytes."""
    found = {line.split(":")[0]: line.split()[1] for line in file.read_text().splitlines() if line.endswith("kB")}
    return sum(int(found[name]) << 10 for name in names)


def packed_pages(process: Path) -> int:
    """Return the bytes of packed weights that a process has in memory: of a file that others may map too."""
    name, found = "", 0
    for line in (process / "smaps").read_text().splitlines():
        if "-" in line.split(maxsplit=1)[0]:
            name = line
        elif line.startswith("Rss:") and name.endswith(SUFFIX):
            found += int(line.split()[1]) << 10
    return found


@pytest.mark.long
@pytest.mark.parametrize("quantization", ["gguf", "none"])
def test_a_real_worker_takes_what_its_plan_says(tmp_path: Path, quantization: str) -> None:
    """SmolLM2-135M, about ten seconds each. Pages of files are not counted, but for those of packed weights: they are
    given back when memory is needed. The prompt needs more than half of the KV memory, which is little here, so that an
    idle worker maps all of it."""
    kv = ("--kv-cache-memory", str(KV_BYTES))
    with launched(tmp_path, "--role", "mixed", "--quantization", quantization, *kv, by_exec=True) as served:
        served.complete("The sea is" + " blue" * 800, max_tokens=8)
        process = Path("/proc") / str(served.topology()["mixed:0"]["pid"])
        wait_for(lambda: counted(process / "status", "RssShmem") > KV_BYTES * 0.95, 30, "the mapping of KV memory")
        packed = packed_pages(process)
        held = counted(process / "smaps_rollup", "Pss_Anon", "Pss_Shmem") + packed
        most = counted(process / "status", "VmHWM") - counted(process / "status", "RssFile") + packed
    cache = Path("~/.cache/pontil").expanduser()
    demand = MemoryDemand("auto", "auto", quantization, None, KV_BYTES, 16, [["cpu"]], {})
    path = resolve_model("smollm2-135m-instruct", cache)
    said = footprint(path, read_config(path), demand)
    print(f"{quantization}: serving {said.serving >> 20} MiB said, {held >> 20} MiB taken; "
          f"at worst {said.total >> 20} MiB said, {most >> 20} MiB taken")  # fmt: skip
    for estimate, truth in ((said.serving, held), (said.total, most)):
        assert truth * (1 - MARGIN) <= estimate <= truth * MOST
