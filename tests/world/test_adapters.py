# SPDX-License-Identifier: Apache-2.0
"""Adapters come and go amid faults, and invariants find planted faults of that, each in a seed that is known to show
it.

In each run 15 of the seeds of test_seeds.py have adapters that come and go; in seven of these a worker has memory for
one or two."""

from pathlib import Path

import past_faults
import pytest
from simulation import simulated

FEW = ("--adapters", "1", "--requests", "15")
PLANTED = {
    "adapter-enters-keys-a-block-late": (1, "no_wrong_block_is_read"),
    "adapter-in-use-leaves-memory": (21, "every_row_has_its_adapter"),
    "adapter-is-not-in-the-prefix-key": (1, "no_wrong_block_is_read"),
    "adapters-share-a-number": (26, "every_row_has_its_adapter"),
    "adapters-wait-for-each-other": (28, "adapters_are_answered"),
    "new-proxy-goes-by-names-of-the-launch": (78, "no_answer_is_of_another_adapter"),
    "pullers-keep-their-adapters": (7, "adapters_are_answered"),
    "restarted-worker-is-not-told-adapters": (1, "all_know_the_same_adapters"),
    "unloaded-adapter-stays-in-memory": (1, "unloaded_adapters_are_in_no_memory"),
}

# Options that it takes besides.
SWAPS = (
    "--swaps", "6", "--changes", "0", "--faults", "0",
    "--prefill", "1", "--decode", "1", "--mixed", "0", "--proxies", "1",
)  # fmt: skip
MORE = {"new-proxy-goes-by-names-of-the-launch": ("--faults", "6"), "pullers-keep-their-adapters": SWAPS}


@pytest.mark.long
@pytest.mark.parametrize("more", [(), ("--kept-kv", "1", "--tiers", "2"), ("--mixed", "3", "--proxies", "2"), SWAPS])
def test_seeds_in_which_all_have_adapters_hold(more: tuple[str, ...]) -> None:
    code, said = simulated("--seeds", "1-24", *FEW, *more, seeds=24)
    assert code == 0, "\n".join(said)


@pytest.mark.long
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_of_adapters_is_found(name: str, tmp_path: Path) -> None:
    seed, check = PLANTED[name]
    code, said = past_faults.run_past(name, tmp_path, range(seed, seed + 1), [*FEW, *MORE.get(name, ()), "--first"])
    assert code == 1 and f": {check}: " in said, said
