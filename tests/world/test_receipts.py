# SPDX-License-Identifier: Apache-2.0
"""The invariant of receipts finds a planted fault, in a seed that is known to show it."""

from pathlib import Path

import past_faults
import pytest


@pytest.mark.long
def test_a_planted_fault_of_receipts_is_found(tmp_path: Path) -> None:
    code, said = past_faults.run_past("first-token-is-not-in-the-chain", tmp_path, range(4, 5), ["--first"])
    assert code == 1 and ": receipts_are_true: " in said, said
