# SPDX-License-Identifier: Apache-2.0
"""The compiled kernels of one process: found, built, checked, and closed again."""

import ctypes
import hashlib
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

from pontil.gpu_ops.kernels.check import fault
from pontil.gpu_ops.kernels.compile.build import KernelError, build, source_digest
from pontil.gpu_ops.kernels.compile.instruction_sets import CPUINFO, INSTRUCTION_SETS, InstructionSet, usable_sets
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.passed_checks import PassedChecks, state_of_file

logger = logging.getLogger("pontil.kernels")
AUTO, TORCH = "auto", "torch"
CHOICES = (AUTO, TORCH, *(instruction_set.name for instruction_set in INSTRUCTION_SETS))
FOLDER, CHECKED = "kernels", "checked"
# The code of the check is in files beside this one.
CODE = Path(__file__).parent
# The start of a line about the first processor that changes while it runs.
CLOCK = "cpu MHz"


def open_kernels(
    choice: str, threads: int, cache_dir: Path | None, report: Callable[[str], None] = lambda text: None
) -> KernelLibrary | None:
    """Open the kernels of that name (`auto`: the fastest that this processor has and that compute rightly); None stands
    for torch's operations. They are cached in `cache_dir`; None caches nothing.

    `auto` warns once when there are none. Raises KernelError when a named set is not available.
    """
    if choice == TORCH:
        return None
    passed = PassedChecks(None if cache_dir is None else cache_dir / FOLDER / CHECKED)
    if choice != AUTO:
        return open_set(named(choice), threads, cache_dir, report, passed)
    for instruction_set in usable_sets():
        try:
            return open_set(instruction_set, threads, cache_dir, report, passed)
        except KernelError as error:
            logger.warning("computing without the %s kernels: %s", instruction_set.name, error)
            if not error.is_about_one_set:
                break
    return None


def named(choice: str) -> InstructionSet:
    for instruction_set in usable_sets():
        if instruction_set.name == choice:
            return instruction_set
    raise KernelError(f"this processor does not have {choice}")


def open_set(
    instruction_set: InstructionSet,
    threads: int,
    cache_dir: Path | None,
    report: Callable[[str], None],
    passed: PassedChecks | None = None,
) -> KernelLibrary:
    """Open the kernels for an instruction set, which are checked unless the same have `passed`. Raises KernelError."""
    passed = passed or PassedChecks(None)
    with tempfile.TemporaryDirectory(prefix="pontil-kernels-") as nowhere:
        path = build(instruction_set, Path(nowhere) if cache_dir is None else cache_dir / FOLDER, report)
        state = checked_state(path)
        library = load(path, f"{instruction_set.title}-{source_digest()[:8]}", threads)
    name = f"{path.name} with {threads} threads"
    if passed.has(name, state):
        return library
    if reason := fault(library):
        library.close()
        raise KernelError(f"their results are wrong here: {reason}", is_about_one_set=True)
    passed.add(name, state)
    return library


def checked_state(path: Path) -> str:
    """Return what the outcome of a check of this library depends on: its file, the processor, and the check's code."""
    digest = hashlib.sha256(check_digest())
    first, _, _ = CPUINFO.read_text().partition("\n\n")
    digest.update("\n".join(line for line in first.splitlines() if not line.startswith(CLOCK)).encode())
    try:
        with path.open("rb") as file:
            return f"{state_of_file(file)}-{digest.hexdigest()}"
    except OSError as error:
        raise KernelError(f"{path} cannot be read ({error.strerror or error})") from error


def check_digest() -> bytes:
    digest = hashlib.sha256()
    for code in sorted(CODE.rglob("*.py")):
        digest.update(code.read_bytes())
    return digest.digest()


def load(path: Path, name: str, threads: int) -> KernelLibrary:
    try:
        return KernelLibrary(ctypes.CDLL(str(path)), name, threads)
    except OSError as error:
        raise KernelError(f"{path} cannot be loaded ({error}): remove it") from error
