# SPDX-License-Identifier: Apache-2.0
"""The world's stand-ins beside zmq and Linux: each scenario is played on both, and shows the same facts but for those
that its row of the table in docs/internals/world.md names."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from all_rows import SCENARIOS
from scenario import Scenario

ROOT = Path(__file__).resolve().parents[2]
WITHIN = 300.0
NAMED = re.compile(r"`([a-z-]+)`")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Any]]:
    """The facts of both sides by scenario."""
    folder = tmp_path_factory.mktemp("sides")
    done = subprocess.run(
        [sys.executable, "tests/world/sides/two_sides.py", str(folder)], cwd=ROOT, capture_output=True, text=True,
        timeout=WITHIN, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {side: json.loads((folder / f"{side}.json").read_text()) for side in ("real", "world")}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario.name for scenario in SCENARIOS])
def test_both_sides_show_the_facts_of_the_row(scenario: Scenario, played: Mapping[str, Mapping[str, Any]]) -> None:
    assert played["real"][scenario.name] == scenario.facts
    assert played["world"][scenario.name] == {**scenario.facts, **scenario.differs}


def test_a_difference_is_one() -> None:
    for scenario in SCENARIOS:
        for fact, other in scenario.differs.items():
            assert scenario.facts[fact] != other, f"{scenario.name}: {fact}"


def test_the_table_has_each_scenario_where_it_belongs() -> None:
    page = (ROOT / "docs/internals/world.md").read_text()
    differ, same = page.split("## Where the stand-ins differ")[1].split("## ")[0].split("The same on both sides")
    firsts = [line.split("|")[1] for line in differ.splitlines() if line.startswith("| `")]
    assert sorted(NAMED.findall(" ".join(firsts))) == sorted(one.name for one in SCENARIOS if one.differs)
    assert sorted(NAMED.findall(same)) == sorted(one.name for one in SCENARIOS if not one.differs)
