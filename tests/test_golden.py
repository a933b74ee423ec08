# SPDX-License-Identifier: Apache-2.0
"""The product shows of itself what was recorded: help, plans, the configuration of processes, the API, metrics."""

from difflib import unified_diff

import pytest
from records import RECORDS, all_records

# Lines of a difference that are shown.
MOST_SHOWN = 60


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return dict(all_records())


def test_every_record_is_compared(made: dict[str, str]) -> None:
    assert sorted(made) == sorted(path.name for path in RECORDS.iterdir())


@pytest.mark.parametrize("name", sorted(path.name for path in RECORDS.iterdir()))
def test_a_record_is_what_the_product_shows(made: dict[str, str], name: str) -> None:
    recorded = (RECORDS / name).read_text()
    if made[name] != recorded:
        differs = list(
            unified_diff(recorded.splitlines(), made[name].splitlines(), "recorded", "made", lineterm="", n=1)
        )
        pytest.fail("\n".join([*differs[:MOST_SHOWN], "meant so? python tests/golden/record.py, and commit its diff"]))
