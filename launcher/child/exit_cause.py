# SPDX-License-Identifier: Apache-2.0
"""The cause of a child's exit, judged from its exit code and last output, and described in words that follow its
name."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath

from pontil.launcher.foundation.errors import LaunchError, RefusedError

# A child's exit code after an error of its GPU: a CUDA context that failed once answers nothing more.
EXIT_GPU_FAULT = 72
# A rank's exit code after another rank of its worker was lost: the cause of the worker's end is there.
EXIT_RANK_LOST = 73
# Lines of a child's output that are kept, and how many of them are shown: a fatal error lists the frames of every
# thread.
KEPT_LINES = 400
SHOWN_LINES = 20
# Shown lines that come before a fatal error: a library says there why it aborts.
SHOWN_BEFORE = 5

GPU_FAULT = re.compile(
    r"CUDA (?:driver )?error:.*|CUDA out of memory.*|CUBLAS_STATUS_(?!SUCCESS)\w+|CUDNN_STATUS_(?!SUCCESS)\w+"
)
# Texts that Python's fault handler writes. The innermost frame comes first.
FATAL, CURRENT_THREAD = "Fatal Python error", "Current thread"
FRAME = re.compile(r'\s*File "(.+)", line (\d+) in (.+)')
CRASHES = {
    signal.SIGSEGV: "a bad memory access",
    signal.SIGBUS: "memory that is not there",
    signal.SIGILL: "an instruction that this processor lacks",
    signal.SIGFPE: "impossible arithmetic",
    signal.SIGABRT: "an abort of its own",
    signal.SIGSYS: "a system call that is forbidden here",
}


class ExitKind(Enum):
    """Kinds of exit, as an operator would sort them."""

    FAILED = "failed"
    SICK = "sick"
    OUT_OF_MEMORY = "out of memory"
    GPU_FAULT = "gpu fault"
    CRASH = "crash"
    SIGNAL = "signal"
    EXIT = "exit"


@dataclass(frozen=True, slots=True)
class ExitCause:
    """The facts about one exit. `code` is as subprocess gives it; `failure` is the reason that the child itself
    reported; `complaint` is why the supervisor killed it; `starved` is set when the kernel's OOM killer did; `lines` is
    its last output; `follower` names the rank that this is about, if that is not its driver. Fields are None or empty
    where they do not apply."""

    at: float
    code: int
    failure: str | None = None
    complaint: str | None = None
    starved: bool = False
    lines: tuple[str, ...] = ()
    follower: str | None = None

    @property
    def is_consequence(self) -> bool:
        """Return whether a rank ended because another one did, or as that one told it to."""
        return self.code in (0, EXIT_RANK_LOST)

    @property
    def refused(self) -> bool:
        """Return whether the child was refused, by the proxy or for its options: restarted unchanged, it would be
        refused again."""
        return self.failure is not None and self.code == RefusedError.exit_code

    @property
    def error(self) -> type[LaunchError]:
        """The error that a launch raises when it ends because of this exit."""
        return RefusedError if self.refused else LaunchError

    @property
    def cause(self) -> ExitKind:
        if self.failure is not None:
            return ExitKind.FAILED
        if self.complaint is not None:
            return ExitKind.SICK
        if self.starved:
            return ExitKind.OUT_OF_MEMORY
        is_crash = -self.code in CRASHES
        if self.code == EXIT_GPU_FAULT or (is_crash and gpu_fault(self.lines)):
            return ExitKind.GPU_FAULT
        return ExitKind.CRASH if is_crash else ExitKind.SIGNAL if self.code < 0 else ExitKind.EXIT

    @property
    def violent(self) -> bool:
        """Return whether the child's last output may explain what its exit code does not."""
        return self.cause in (ExitKind.OUT_OF_MEMORY, ExitKind.GPU_FAULT, ExitKind.CRASH)

    def describe(self) -> str:
        """Describe the exit in words that follow the worker's name."""
        return self.words if self.follower is None else f"lost {self.follower}, which {self.words}"

    @property
    def words(self) -> str:
        """The same in words that follow the name of the process."""
        match self.cause:
            case ExitKind.FAILED:
                return f"failed: {self.failure}"
            case ExitKind.SICK:
                return f"was killed: it {self.complaint}"
            case ExitKind.OUT_OF_MEMORY:
                return "was killed by the kernel because memory ran out (OOM): a smaller --kv-cache-memory takes less"
            case ExitKind.GPU_FAULT:
                return f"had a GPU fault: {gpu_fault(self.lines) or 'what it was stands in its log'}"
            case ExitKind.CRASH:
                number = signal.Signals(-self.code)
                return f"crashed with {number.name} ({CRASHES[number]}){place(self.lines)}"
            case ExitKind.SIGNAL:
                return f"was killed by {signal_name(-self.code)}"
            case ExitKind.EXIT:
                return f"exited with code {self.code}"


def gpu_fault(lines: Sequence[str]) -> str | None:
    """Return the GPU error in the last of these lines that has one."""
    errors = (match[0].strip() for line in reversed(lines) if (match := GPU_FAULT.search(line)))
    return next(errors, None)


def last_words(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the lines worth showing: a fatal error with the lines before it and the stack of the thread that raised
    it, else the last lines."""
    fatal = fatal_error(lines)
    if fatal is None:
        return tuple(lines[-SHOWN_LINES:])
    before, (error, *stack_lines) = lines[max(0, fatal - SHOWN_BEFORE) : fatal], lines[fatal:]
    current = next((number for number, line in enumerate(stack_lines) if line.startswith(CURRENT_THREAD)), 0)
    return (*before, error, *stack_lines[current:])[:SHOWN_LINES]


def fatal_error(lines: Sequence[str]) -> int | None:
    """Return the index of the last fatal error."""
    return next((number for number in reversed(range(len(lines))) if lines[number].startswith(FATAL)), None)


def place(lines: Sequence[str]) -> str:
    """Return where a fatal error happened, as the end of a sentence; empty if no frame tells."""
    fatal = fatal_error(lines)
    after = () if fatal is None else lines[fatal:]
    frame = next((match for line in after if (match := FRAME.match(line))), None)
    return f" in {frame[3]} ({PurePath(frame[1]).name}:{frame[2]})" if frame else ""


def signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
