# SPDX-License-Identifier: Apache-2.0
"""Every kernel for GPUs beside torch's counterpart, by Triton's interpreter, and compiled for real processors."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import CASES, FAULTS, FAULTY, OVER_BUDGET
from effort import by_default

ROOT = Path(__file__).parents[3]
SUPPORT = ROOT / "tests" / "support"
# By default each kernel is compiled once for the first target, in the case that takes the most of a processor, and one
# for the second, which must have instructions that only that one has; all cases for all targets with --long. A compile
# takes seconds, unless Triton's cache has it.
TARGETS = ("sm_90a", "gfx942", "sm_80", "sm_100a")
LARGEST = {
    "rms_norm-1x4096-bfloat16", "add_rms_norm-2x4096-bfloat16-bfloat16", "rotary-normed-part", "rotary-stored-normed",
    "gated-silu-1100-bfloat16", "product-real-fours-64-rows", "adapters-real-bfloat16", "experts-real-float4",
    "adapters-experts-real", "recurrent-real-mamba2", "routing-one-group-best",
    "blocks-real", "rows-rounded-4x4096-bfloat16", "decode-deepseek-v3", "prompt-deepseek-v3", "draw-vocabulary-151936",
}  # fmt: skip
DEFAULT = {("sm_90a", name) for name in LARGEST} | {("gfx942", "decode-deepseek-v3")}
INTERPRETED = [name for name, case in CASES.items() if case.interpreted]
# Other cases of the same kernels are interpreted in a fraction of their time.
SLOWEST = {
    "draw-odd-rows",
    "draw-300",
    "draw-chunks-few",
    "draw-chunks-all",
    "draw-chunks-odd-rows",
    "draw-chunks-ties",
}
SLOWEST |= {"prompt-float32", "decode-float32"}
SLOWEST |= {"decode-int8-bfloat16", "prompt-fp8-bfloat16", "prompt-int8-float16-window-sinks"}
SLOWEST |= {"adapters-mixed-136-float16", "recurrent-state-space-cut"}
# Bytes of shared memory that a workgroup can have.
SHARED = {"sm_80": 163 << 10, "sm_90a": 227 << 10, "sm_100a": 227 << 10, "gfx942": 64 << 10}


class Tries:
    """A process that tries cases, and another one after it ended."""

    def __init__(self, **variables: str) -> None:
        self.variables = variables
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> "subprocess.Popen[str]":
        more = {"PYTHONPATH": f"{ROOT}:{SUPPORT / 'gpu'}", "OMP_NUM_THREADS": "1", **self.variables}
        return subprocess.Popen(
            [sys.executable, SUPPORT / "gpu" / "rung_child.py"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | more,
        )  # fmt: skip

    def ask(self, rung: str, case: str) -> dict[str, Any]:
        if self.process is None:
            self.process = self.start()
        assert self.process.stdin is not None and self.process.stdout is not None
        print(rung, case, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            code, self.process = self.process.wait(), None
            raise AssertionError(f"{case} ended its process with {code}: what it wrote last is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        if self.process is not None:
            self.process.communicate()


@dataclass(frozen=True)
class Rung:
    """A target, the interpreter or the device, and the process in which its cases are tried."""

    name: str
    tries: Tries

    def ask(self, case: str) -> dict[str, Any]:
        return self.tries.ask(self.name, case)


@pytest.fixture(scope="module")
def rungs() -> Iterator[dict[str, Rung]]:
    """The interpreter and a device have a process each, and all targets share one."""
    compiled, run, interpreted = Tries(), Tries(), Tries(TRITON_INTERPRET="1")
    made = {name: Rung(name, compiled) for name in TARGETS}
    yield made | {"device": Rung("device", run), "interpreter": Rung("interpreter", interpreted)}
    for tries in (compiled, run, interpreted):
        tries.close()


@pytest.mark.parametrize("name", by_default(set(INTERPRETED) - SLOWEST, INTERPRETED))
def test_the_interpreter_agrees_with_torch(name: str, rungs: dict[str, Rung]) -> None:
    error = rungs["interpreter"].ask(name)["error"]
    assert error <= CASES[name].tolerance, error


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: kernels are interpreted and compiled")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.interpreted])
def test_a_device_agrees_with_torch(name: str, rungs: dict[str, Rung]) -> None:
    error = rungs["device"].ask(name)["error"]
    assert error <= CASES[name].tolerance, error


# Faults in the cases that take longest to interpret: by default others of the same kernels are planted.
SLOW = {
    "hides-its-own-key", "sees-the-next-key", "leaves-out-a-strip", "stores-padding", "highest-id-of-equal-logits",
    "draws-an-id-without-mass", "forgets-earlier-chunks", "forgets-earlier-ties", "leaves-out-a-piece", "begins-anew",
}  # fmt: skip


def test_faults_are_planted_where_they_were() -> None:
    """Those too that are planted with `--long` alone."""
    faults = [fault for module in FAULTY for fault in module.FAULTS]
    assert {fault.name for fault in faults if fault.source()} <= FAULTS.keys() and len(faults) >= len(SLOW)


@pytest.mark.parametrize("name", by_default(FAULTS.keys() - SLOW, FAULTS))
def test_the_interpreter_shows_a_fault(name: str, rungs: dict[str, Rung]) -> None:
    error = rungs["interpreter"].ask(name)["error"]
    assert error > 2 * FAULTS[name].tolerance, error


def test_the_compiler_shows_a_spill(rungs: dict[str, Rung]) -> None:
    (kernel,) = rungs["sm_90a"].ask(OVER_BUDGET.name)["kernels"]
    assert kernel["spills"] > OVER_BUDGET.budget.spills


@pytest.mark.parametrize(
    ("target", "name"),
    [
        pytest.param(target, name, marks=[] if (target, name) in DEFAULT else pytest.mark.long)
        for target in TARGETS
        for name, case in CASES.items()
        if case.compiled
    ],
)
def test_it_compiles_within_its_budget(target: str, name: str, rungs: dict[str, Rung]) -> None:
    budget, family = CASES[name].budget, "amd" if target.startswith("gfx") else "nvidia"
    kernels = rungs[target].ask(name)["kernels"]
    assert kernels
    for one in kernels:
        assert one["registers"] <= budget.registers and one["spills"] <= budget.spills, one
        assert one.get("scalar_spills", 0) <= budget.scalar_spills, one
        assert one["shared"] <= min(budget.shared, SHARED[target]), one
    seen = {instruction for one in kernels for instruction in one["instructions"]}
    for wanted in (*budget.must_have.get(family, ()), *budget.must_have.get(target, ())):
        assert any(instruction.startswith(wanted) for instruction in seen), (wanted, sorted(seen))
