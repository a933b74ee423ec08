# SPDX-License-Identifier: Apache-2.0
"""The invariants of leases find planted faults, each in a seed that is known to show it."""

from pathlib import Path

import past_faults
import pytest

PLANTED = {
    "leases-own-no-blocks": (1, "a_leased_block_is_found"),
    "refunds-are-forgotten": (4, "byte_seconds_are_conserved"),
    "lease-says-more-than-it-keeps": (9, "a_leased_token_is_hit_or_refunded"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_of_leases_is_found(name: str, tmp_path: Path) -> None:
    seed, check = PLANTED[name]
    code, said = past_faults.run_past(name, tmp_path, range(seed, seed + 1), ["--first"])
    assert code == 1 and f": {check}: " in said, said
