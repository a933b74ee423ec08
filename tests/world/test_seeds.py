# SPDX-License-Identifier: Apache-2.0
"""Seeds hold and do the same again: 48 with a third of the requests, and with --long 2,000 of the whole size. One
process imports the product for each hundred."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from effort import examples
from simulation import ROOT, simulated

# Seeds of a run by default, and of one with --long; and how many of them run at a time. These are two rounds of all
# sites: within them every fault of the past was found that shows by default sizes in the first hundred
# (docs/internals/world.md).
FEW, SEEDS, JOBS = 48, 100, 2
# Each request costs as much as any other, and the faults are as many: they lie closer together.
FEWER = ("--requests", "15")
# The last words of the first run, recorded while a change may alter nothing that happens (docs/internals/world.md).
RECORDED = ROOT / "tests" / "golden" / "trace.txt"
LAST_LINE = re.compile(
    r"\d+ seeds, \d+ requests, \d+ tokens, \d+ virtual s, [\d.]+ CPU s, trace [0-9a-f]{16}", re.ASCII
)
# The first of three seeds has workers of several ranks, the last a model of several stages; 24 have all sites.
AGAIN = range(5, examples(8, 29))


class SeedsRun(NamedTuple):
    """The outcome of a run of seeds, and a line with each one's hash."""

    code: int
    said: list[str]
    hashes: list[str]


def run(seeds: range, file: Path, *sizes: str) -> SeedsRun:
    given = ("--seeds", f"{seeds.start}-{seeds.stop - 1}", *sizes, "--jobs", str(JOBS), "--hashes", str(file))
    return SeedsRun(*simulated(*given, seeds=len(seeds)), file.read_text().splitlines())


@pytest.fixture(scope="module")
def first_seeds(tmp_path_factory: pytest.TempPathFactory) -> SeedsRun:
    return run(range(1, FEW + 1), tmp_path_factory.mktemp("seeds") / "hashes", *FEWER)


def hold(ran: SeedsRun) -> None:
    assert ran.code == 0, "\n".join(ran.said)
    assert ran.said[-1].startswith(f"{len(ran.hashes)} seeds, ") and LAST_LINE.fullmatch(ran.said[-1]), ran.said


def test_the_first_seeds_hold(first_seeds: SeedsRun) -> None:
    assert len(first_seeds.hashes) == FEW
    hold(first_seeds)
    if RECORDED.exists():
        assert first_seeds.said[-1].endswith(RECORDED.read_text().strip()), first_seeds.said


def test_seeds_have_the_same_trace_alone_and_under_another_hash_seed(first_seeds: SeedsRun, tmp_path: Path) -> None:
    file = tmp_path / "hashes"
    seeds = f"{AGAIN.start}-{AGAIN.stop - 1}"
    code, said = simulated(
        "--seeds", seeds, *FEWER, "--jobs", "1", "--hashes", str(file), hash_seed=7, seeds=len(AGAIN)
    )
    assert code == 0, said
    again = file.read_text().splitlines()
    assert [line.split()[0] for line in again] == [str(seed) for seed in AGAIN]
    assert again == first_seeds.hashes[AGAIN.start - 1 : AGAIN.stop - 1]


@pytest.mark.long
@pytest.mark.parametrize("first", range(1, 20 * SEEDS, SEEDS))
def test_more_seeds_hold(first: int, tmp_path: Path) -> None:
    ran = run(range(first, first + SEEDS), tmp_path / "hashes")
    hold(ran)
    assert len(ran.hashes) == SEEDS
