# SPDX-License-Identifier: Apache-2.0
"""Rollouts stop by themselves where a worker does not answer as recorded, and the invariants of gates find planted
faults of that, each in a seed that is known to show it."""

from pathlib import Path

import past_faults
import pytest
from simulation import simulated

FEW = ("--gates", "1", "--requests", "15", "--prefill", "1", "--decode", "1", "--mixed", "1", "--proxies", "2")


@pytest.mark.long
@pytest.mark.parametrize("faults", ["0", "4"])
def test_changes_with_a_gate_hold(faults: str) -> None:
    code, said = simulated("--seeds", "1-24", *FEW, "--faults", faults, seeds=24)
    assert code == 0, "\n".join(said)


@pytest.mark.long
@pytest.mark.parametrize("seed", [8, 17])
def test_a_verdict_that_is_not_heard_is_found(seed: int, tmp_path: Path) -> None:
    """One more worker, or one that restarts, has a wrong model."""
    given = [*FEW, "--faults", "0", "--first"]
    code, said = past_faults.run_past("verdict-of-a-gate-is-not-heard", tmp_path, range(seed, seed + 1), given)
    assert code == 1 and ": a_gate_tells_right_from_wrong: " in said and "let in a wrong model" in said, said


ADAPTERS = {
    "replaced-adapter-is-judged": (4, ("--requests", "15"), "of a right model"),
    "untried-worker-passes-its-gate": (46, ("--requests", "1", "--adapters", "1"), "that nothing has tried"),
}


@pytest.mark.long
@pytest.mark.parametrize("fault", ADAPTERS)
def test_a_gate_that_goes_by_adapters_which_were_replaced_is_found(fault: str, tmp_path: Path) -> None:
    """One refuses a right worker, and one that leaves out all there is passes a worker by nothing."""
    seed, more, says = ADAPTERS[fault]
    given = [*FEW, *more, "--faults", "0", "--first"]
    code, said = past_faults.run_past(fault, tmp_path, range(seed, seed + 1), given)
    assert code == 1 and ": a_gate_tells_right_from_wrong: " in said and says in said, said
