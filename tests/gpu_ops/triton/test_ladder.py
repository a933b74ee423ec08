# SPDX-License-Identifier: Apache-2.0
"""Every kernel for GPUs beside torch's counterpart, by Triton's interpreter, and compiled for real processors."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import CASES, FAULTS, OVER_BUDGET

ROOT = Path(__file__).parents[3]
SUPPORT = ROOT / "tests" / "support"
# Compiled for by default; all others with --long.
FIRST = ("sm_90a", "gfx942")
LATER = ("sm_80", "sm_100a")
# Bytes of shared memory that a workgroup can have.
SHARED = {"sm_80": 163 << 10, "sm_90a": 227 << 10, "sm_100a": 227 << 10, "gfx942": 64 << 10}


class Rung:
    """A process that tries cases, and another one after it ended."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> "subprocess.Popen[str]":
        more = {"PYTHONPATH": f"{ROOT}:{SUPPORT / 'gpu'}", "OMP_NUM_THREADS": "1"}
        if self.name == "interpreter":
            more["TRITON_INTERPRET"] = "1"
        return subprocess.Popen(
            [sys.executable, SUPPORT / "gpu" / "rung_child.py", self.name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | more,
        )  # fmt: skip

    def ask(self, case: str) -> dict[str, Any]:
        if self.process is None:
            self.process = self.start()
        assert self.process.stdin is not None and self.process.stdout is not None
        print(case, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            code, self.process = self.process.wait(), None
            raise AssertionError(f"{case} ended its process with {code}: what it wrote last is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        if self.process is not None:
            self.process.communicate()


@pytest.fixture(scope="module")
def rungs() -> Iterator[dict[str, Rung]]:
    made = {name: Rung(name) for name in ("interpreter", "device", *FIRST, *LATER)}
    yield made
    for rung in made.values():
        rung.close()


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.interpreted])
def test_the_interpreter_agrees_with_torch(name: str, rungs: dict[str, Rung]) -> None:
    error = rungs["interpreter"].ask(name)["error"]
    assert error <= CASES[name].tolerance, error


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: kernels are interpreted and compiled")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.interpreted])
def test_a_device_agrees_with_torch(name: str, rungs: dict[str, Rung]) -> None:
    error = rungs["device"].ask(name)["error"]
    assert error <= CASES[name].tolerance, error


@pytest.mark.parametrize("name", FAULTS)
def test_the_interpreter_shows_a_fault(name: str, rungs: dict[str, Rung]) -> None:
    error = rungs["interpreter"].ask(name)["error"]
    assert error > 2 * FAULTS[name].tolerance, error


def test_the_compiler_shows_a_spill(rungs: dict[str, Rung]) -> None:
    (kernel,) = rungs["sm_90a"].ask(OVER_BUDGET.name)["kernels"]
    assert kernel["spills"] > OVER_BUDGET.budget.spills


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.compiled])
@pytest.mark.parametrize("target", [*FIRST, *(pytest.param(name, marks=pytest.mark.long) for name in LATER)])
def test_it_compiles_within_its_budget(name: str, target: str, rungs: dict[str, Rung]) -> None:
    budget, family = CASES[name].budget, "amd" if target.startswith("gfx") else "nvidia"
    kernels = rungs[target].ask(name)["kernels"]
    assert kernels
    for one in kernels:
        assert one["registers"] <= budget.registers and one["spills"] <= budget.spills, one
        assert one["shared"] <= min(budget.shared, SHARED[target]), one
    seen = {instruction for one in kernels for instruction in one["instructions"]}
    for wanted in (*budget.must_have.get(family, ()), *budget.must_have.get(target, ())):
        assert any(instruction.startswith(wanted) for instruction in seen), (wanted, sorted(seen))
