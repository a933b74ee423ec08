# SPDX-License-Identifier: Apache-2.0
"""Build the shared library from C++, once for each state of the sources, compiler and instruction set."""

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pontil.gpu_ops.kernels.compile.instruction_sets import InstructionSet

SOURCES = Path(__file__).resolve().parents[2] / "csrc"
MAIN = "kernels.cpp"
# Libraries that were compiled in advance, for an installation without a compiler (prebuild.py).
PREBUILT = SOURCES.parent / "prebuilt"
PARTIAL = "partial-"
COMPILERS = ("g++", "c++", "clang++")
# Contraction would round differently from one copy of an expression to the next. Scheduling before registers are
# assigned needs more of them than Arm has, so that sums are moved to memory; for x86 compilers leave it out anyway.
# For Arm GCC 12 ends with an internal error in products of adapters where it eliminates partial redundancies.
ARM_FLAGS = ("-fno-tree-pre",)
FLAGS = (
    "-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-schedule-insns", "-fPIC", "-shared", "-pthread",
    "-Wno-psabi", *(ARM_FLAGS if platform.machine() == "aarch64" else ()),
)  # fmt: skip
COMPILE_TIMEOUT = 600.0
LOCK_TIMEOUT = 1200.0
LOCK_POLL = 0.05
# Quoted text of C++, or a comment.
TOKEN = re.compile(r"""(?P<quoted>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|//[^\n]*|/\*.*?\*/""", re.DOTALL)

# Runs a command in a process group of its own, which ends with the process that started it: a compiler starts others.
ATTENDED = """
import ctypes, os, signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
sys.exit(subprocess.call(sys.argv[2:]) if os.getppid() == int(sys.argv[1]) else 1)
"""

TRIAL = """
import ctypes, sys
open_context = ctypes.CDLL(sys.argv[1]).pontil_open
open_context.restype = ctypes.c_void_p
sys.exit(0 if open_context(1) else 1)
"""


class KernelError(Exception):
    """Kernels are not available; the text gives the reason, in words that follow a colon. `is_about_one_set`: another
    instruction set may work."""

    def __init__(self, reason: str, is_about_one_set: bool = False) -> None:
        super().__init__(reason)
        self.is_about_one_set = is_about_one_set


def source_digest() -> str:
    """Hash everything in csrc/ but its comments to 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + code_of(path.read_text()).encode() + b"\0")
    return digest.hexdigest()[:16]


def code_of(text: str) -> str:
    """Leave out comments, blank lines and the ends of lines that are blank; what looks like a comment in quotes
    stays."""
    bare = TOKEN.sub(lambda found: found[0] if found["quoted"] else " ", text)
    return "\n".join(line.rstrip() for line in bare.splitlines() if line.strip())


def prebuilt(target: InstructionSet) -> Path:
    """Return where the library of these sources for an instruction set lies if it was compiled in advance, by whatever
    compiler."""
    key = hashlib.sha256("\0".join([source_digest(), *FLAGS, *target.flags]).encode()).hexdigest()[:16]
    return PREBUILT / f"{target.title}-{key}.so"


def build(target: InstructionSet, cache: Path, report: Callable[[str], None]) -> Path:
    """Return the library for an instruction set, compiled if it was neither compiled in advance nor is in the cache. Of
    several processes that call this at once one compiles and the others wait. Raises KernelError."""
    ready = prebuilt(target)
    if ready.is_file():
        try_out(ready)
        return ready
    compiler = find_compiler()
    command = [compiler, *FLAGS, *target.flags]
    key = hashlib.sha256("\0".join([source_digest(), version_of(compiler), *command]).encode()).hexdigest()[:16]
    library = cache / f"{target.title}-{key}.so"
    if library.is_file():
        return library
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with only_one(cache / "lock"):
            remove_unfinished(cache)
            if not library.is_file():
                report(f"compiling kernels for {target.name}, once")
                compile_to(library, command)
    except OSError as error:
        raise KernelError(f"{cache} cannot be written to ({error.strerror or error})") from error
    return library


def remove_unfinished(cache: Path) -> None:
    """Remove unfinished output of killed processes. Safe because only the holder of the lock compiles."""
    for partial in cache.glob(f"{PARTIAL}*"):
        partial.unlink(missing_ok=True)


def find_compiler() -> str:
    for name in COMPILERS:
        if path := shutil.which(name):
            return path
    raise KernelError(f"no C++ compiler is installed ({', '.join(COMPILERS)})")


def version_of(compiler: str) -> str:
    try:
        return subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=COMPILE_TIMEOUT).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelError(f"{compiler} does not run ({error})") from error


def compile_to(library: Path, command: list[str], runs_here: bool = True) -> None:
    """Compile, then rename: the library gets its name only when it is complete, and tried if it `runs_here`."""
    partial = library.with_name(f"{PARTIAL}{os.getpid()}")
    try:
        process = subprocess.run(
            [sys.executable, "-S", "-c", ATTENDED, str(os.getpid()), *command, str(SOURCES / MAIN), "-o", str(partial)],
            capture_output=True,
            text=True,
            timeout=COMPILE_TIMEOUT,
            start_new_session=True,
        )
        if process.returncode:
            first = next((line for line in process.stderr.splitlines() if "error" in line), process.stderr[-200:])
            raise KernelError(f"{command[0]} refused them ({first.strip()})", is_about_one_set=True)
        if runs_here:
            try_out(partial)
        with partial.open("rb") as whole:
            # A power cut may take the name away, and never the content alone.
            os.fsync(whole.fileno())
        partial.replace(library)
    except subprocess.TimeoutExpired as error:
        raise KernelError(f"{command[0]} did not end within {COMPILE_TIMEOUT:.0f} s") from error
    finally:
        partial.unlink(missing_ok=True)


def try_out(library: Path) -> None:
    """Load the library in a separate process: hypervisors may list instructions that crash their user."""
    process = subprocess.run([sys.executable, "-S", "-c", TRIAL, str(library.resolve())], timeout=COMPILE_TIMEOUT)
    if process.returncode:
        raise KernelError("this system does not let a process use its instructions", is_about_one_set=True)


@contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """Hold a lock that one process at a time can have; the kernel releases it if that process dies. Raises KernelError
    on timeout."""
    deadline = time.monotonic() + LOCK_TIMEOUT
    with lock.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise KernelError(f"another process has held {lock} for {LOCK_TIMEOUT:.0f} s") from None
                time.sleep(LOCK_POLL)  # flock can wait, but not with a deadline
        yield
