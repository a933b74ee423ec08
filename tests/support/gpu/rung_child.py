# SPDX-License-Identifier: Apache-2.0
"""Tries cases in a process of its own, since a kernel that reads outside its memory ends the process, and since
Triton's interpreter is chosen for a process. Reads the name of a target, "interpreter" or "device" and that of a case
from each line of standard input, and writes a JSON object for it to standard output."""

# Binds the package: another folder's may be installed.
import app  # noqa: F401

# isort: split

import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import triton
import triton.language as tl
from cases import CASES, FAULTS, OVER_BUDGET
from ladder import KernelCase, largest_error
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import interpreter

from pontil.gpu_ops.triton import launch

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90a": GPUTarget("cuda", 90, 32),
    "sm_100a": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
CPU = torch.device("cpu")


def rows_alone(left: Any, right: Any, dtype: Any) -> Any:
    """Multiply row by row: the sums of OpenBLAS depend on a row's place in its matrix on some processors, which no
    kernel's do."""
    if left.ndim != 2:
        return np.matmul(left, right, dtype=dtype)
    return np.concatenate([np.matmul(row[None].copy(), right, dtype=dtype) for row in left])


@cache
def builtins_of(package: Any) -> list[str]:
    """Return the names of Triton's functions in a module or class. What stands for them does not look like one."""
    return [name for name, member in inspect.getmembers(package) if tl.core.is_builtin(member)]


def patch_builtins(package: Any, builder: Any, scope: Any) -> None:
    for name in builtins_of(package):
        if tl.core.is_builtin(member := getattr(package, name)):
            interpreter._patch_attr(package, name, member, builder, scope)


def make_interpreter_fast() -> None:
    """Keep what takes half of the interpreter's time, since it is found out anew at every call of a function and at
    every operation: the functions that it replaces, which stay replaced here, and numpy's names of types. And leave out
    the sums in 64 bits beside each one of whole numbers: their verdict is an assertion of a device, which the
    interpreter does not look at."""
    numpy_types, find = dict[str, Any](), interpreter._get_np_dtype
    patch_language, patched = interpreter._patch_lang, set[int]()

    def numpy_type(triton_type: Any) -> Any:
        name = triton_type.scalar.name
        if name not in numpy_types:
            numpy_types[name] = find(triton_type)
        return numpy_types[name]

    def patch_once(function: Any) -> Any:
        """Return nothing to restore."""
        if id(function.__globals__) not in patched:
            patched.add(id(function.__globals__))
            patch_language(function)
        return interpreter._LangPatchScope()

    interpreter._get_np_dtype = numpy_type
    interpreter._patch_builtin, interpreter._patch_lang = patch_builtins, patch_once
    builder = interpreter.interpreter_builder
    assert not builder.options.debug, "assertions of a device are looked at"
    builder.options = replace(builder.options, sanitize_overflow=False)


class NamedTarget(DriverBase):  # type: ignore[misc]
    """A driver without a device, which only says for which one to compile. By its number Triton tells kernels of
    several targets apart."""

    def __init__(self, target: GPUTarget, number: int) -> None:
        super().__init__()
        self.target, self.number = target, number

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return self.number

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return CPU

    def get_benchmarker(self) -> Any:
        raise AssertionError("kernels are not tuned here")


def interpret(case: KernelCase) -> dict[str, Any]:
    return {"error": error_of(case, CPU)}


def run_on_device(case: KernelCase) -> dict[str, Any]:
    return {"error": error_of(case, torch.device("cuda", torch.cuda.current_device()))}


def error_of(case: KernelCase, device: torch.device) -> float:
    """Return the largest error of a case's results."""
    made = case.call(device)
    if case.whole is not None:
        return largest_error(made, case.whole(device))
    assert case.expected is not None
    # Beside a real device nothing interprets kernels: torch alone computes on a CPU.
    with patch.object(launch, "starter", None):
        return largest_error(made, case.expected())


class Compiler:
    """Compiles each kernel that a case would start, for one target."""

    def __init__(self, name: str) -> None:
        self.name, self.target = name, TARGETS[name]
        self.driver = NamedTarget(self.target, list(TARGETS).index(name))
        self.kernels: list[dict[str, Any]] = []

    def __call__(self, case: KernelCase) -> dict[str, Any]:
        triton.runtime.driver.set_active(self.driver)
        launch.starter = self.compile
        self.kernels = []
        case.call(CPU)
        return {"kernels": self.kernels}

    def compile(self, kernel: Any, grid: launch.Grid, arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
        made = kernel.warmup(*arguments, grid=grid, **constants)
        facts = {"kernel": kernel.fn.__name__, "shared": made.metadata.shared}
        if self.target.backend == "hip":
            facts |= amd_facts(made.asm["amdgcn"])
        else:
            facts |= nvidia_facts(made.asm["ptx"])
        self.kernels.append(facts)


def nvidia_facts(ptx: str) -> dict[str, Any]:
    """Registers and spills as the assembler that comes with Triton counts them, and the assembly's instructions."""
    (architecture,) = re.findall(r"^\.target (sm_\w+)", ptx, re.MULTILINE)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    assembler = tool / ("ptxas-blackwell" if architecture.startswith(("sm_10", "sm_12")) else "ptxas")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        done = subprocess.run(
            [assembler, "-v", f"--gpu-name={architecture}", source, "-o", source.with_suffix(".cubin")],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    said = done.stderr + done.stdout
    (registers,) = re.findall(r"Used (\d+) registers", said)
    spills = sum(int(count) for count in re.findall(r"(\d+) bytes spill stores", said))
    names = sorted(set(re.findall(r"^\s+(?:@!?%\w+ )?([a-z][\w.:]*)", ptx, re.MULTILINE)))
    return {"registers": int(registers), "spills": spills, "instructions": names}


def amd_facts(assembly: str) -> dict[str, Any]:
    def number(name: str) -> int:
        return int(re.findall(rf"\.{name}:\s+(\d+)", assembly)[0])

    names = sorted(set(re.findall(r"^\s+([a-z]\w+)", assembly, re.MULTILINE)))
    return {
        "registers": number("vgpr_count"),
        "spills": number("vgpr_spill_count"),
        "scalar_spills": number("sgpr_spill_count"),
        "instructions": names,
    }


def main() -> None:
    rungs = {"interpreter": interpret, "device": run_on_device} | {name: Compiler(name) for name in TARGETS}
    interpreter.np = SimpleNamespace(**vars(np) | {"matmul": rows_alone})
    make_interpreter_fast()
    cases = CASES | FAULTS | {OVER_BUDGET.name: OVER_BUDGET}
    for line in sys.stdin:
        rung, case = line.split()
        print(json.dumps(rungs[rung](cases[case])), flush=True)


if __name__ == "__main__":
    main()
    # Without the half second that freeing torch would take.
    os._exit(0)
