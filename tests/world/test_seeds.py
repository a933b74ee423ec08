# SPDX-License-Identifier: Apache-2.0
"""Seeds of the default size hold: 100, and with --long 2,000. One process imports the product for each hundred."""

import pytest
from effort import examples
from simulation import ROOT, simulated

# Seeds of one run, and how many of them run at a time.
SEEDS, JOBS = 100, 2
# The last words of the first run, recorded while a change may alter nothing that happens (docs/internals/world.md).
RECORDED = ROOT / "tests" / "golden" / "trace.txt"


@pytest.mark.parametrize("first", range(1, examples(1, 20) * SEEDS, SEEDS))
def test_the_seeds_hold(first: int) -> None:
    code, said = simulated("--seeds", f"{first}-{first + SEEDS - 1}", "--jobs", str(JOBS), seeds=SEEDS)
    assert code == 0, "\n".join(said)
    assert said[-1].startswith(f"{SEEDS} seeds, "), said
    if first == 1 and RECORDED.exists():
        assert said[-1].endswith(RECORDED.read_text().strip()), said
