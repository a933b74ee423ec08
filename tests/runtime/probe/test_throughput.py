# SPDX-License-Identifier: Apache-2.0
"""Throughput of connectors between two processes. The measuring process is a separate one, since it forks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pools import need

from pontil.runtime.errors import TransferError
from pontil.runtime.foundation.connectors import CONNECTORS, missing_package, optional, usable
from pontil.runtime.probe import examination
from pontil.runtime.probe.throughput import filled_storage, rate

ROOT = Path(__file__).resolve().parents[3]
MEASURE = "import app, json; from pontil.runtime.probe.throughput import measure; print(json.dumps(measure()))"
LENDER_DIES = """
import app, os
from pontil.runtime.errors import TransferError
from pontil.runtime.probe import throughput
throughput.filled_storage = lambda: os._exit(3)
try:
    throughput.measure()
except TransferError as error:
    print(error)
"""


def run(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_connector_has_a_rate() -> None:
    rates = json.loads(run(MEASURE))
    assert sorted(rates) == sorted([*usable(on_gpu=False), *optional()])
    for kind, found in rates.items():
        assert found == missing_package(CONNECTORS[kind]) or found > 0


@pytest.mark.long
def test_a_lender_that_dies_is_said() -> None:
    assert run(LENDER_DIES) == "the process that lends its memory ended at once\n"


@pytest.mark.parametrize("kind", [*usable(on_gpu=False), *optional()])
def test_a_connector_that_cannot_read_says_why(kind: str) -> None:
    need(kind)
    assert f"offers no {kind} transfer" in str(rate(kind, filled_storage(), {"kind": "other"}))


def test_without_another_process_both_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> dict[str, float | str]:
        raise TransferError("forks are forbidden")

    monkeypatch.setattr(examination, "measure", fail)
    facts = examination.connector_facts()
    assert (facts["shm"], facts["tcp"]) == ("forks are forbidden", "forks are forbidden")
    assert facts["nixl"] == (missing_package(CONNECTORS["nixl"]) or "forks are forbidden")
