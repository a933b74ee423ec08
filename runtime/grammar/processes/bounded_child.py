# SPDX-License-Identifier: Apache-2.0
"""A child process that does work on a client's text within limits of the kernel, so that a crash hits nothing else.

`BoundedProcess` starts such a program by exec and talks to it over a socket that is its standard input, in frames of
four bytes of length and a text: a question in, an answer out. The first frame out is empty: the child is ready.
"""

import ctypes
import math
import os
import resource
import signal
import socket
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import BinaryIO

from pontil.runtime.grammar.grammar import COMPILE_STACK_BYTES

PR_SET_PDEATHSIG = 1
LENGTH_BYTES = 4
EXIT_ORPHANED = 3
EXIT_BROKEN = 70
OUTPUT, ERRORS = 1, 2


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """`memory` is allowed beyond what the process has when it is ready, `cpu_seconds` for each question; both in whole
    units."""

    stack: int = COMPILE_STACK_BYTES
    memory: int = 96 << 20
    cpu_seconds: int = 5

    @property
    def words(self) -> list[str]:
        return [str(value) for value in astuple(self)]


def run_child(arguments: list[str], prepare: Callable[[], Callable[[str], str]]) -> None:
    """Answer questions until the other end closes. `arguments` are the pid to end with and ChildLimits, as words;
    `prepare` returns what answers."""
    parent, *limits = map(int, arguments)
    end_with(parent)
    # The whole process group gets the signals of a drain; this process must live on until its socket closes.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        serve(ChildLimits(*limits), prepare())
    except BaseException:
        # The outermost frame: a panic of a library derives from nothing narrower than this. The exit code reports it.
        os._exit(EXIT_BROKEN)


def end_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends, and end now if it has."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(EXIT_ORPHANED)


def serve(limits: ChildLimits, answer: Callable[[str], str]) -> None:
    with socket.socket(fileno=0) as link, link.makefile("rb") as reader:
        link.sendall(framed(""))
        silence()
        limit_space(limits)
        while (text := read_frame(reader)) is not None:
            limit_time(limits)
            link.sendall(framed(answer(text)))


def silence() -> None:
    """Silence the libraries, whose output about a client's text must not enter our logs."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (OUTPUT, ERRORS):
        os.dup2(nothing, descriptor)
    os.close(nothing)


def limit_space(limits: ChildLimits) -> None:
    """Limit the memory. The kernel reads the limit of the main thread's stack whenever that grows, so it holds at
    once."""
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    for kind, limit in (
        (resource.RLIMIT_STACK, limits.stack),
        (resource.RLIMIT_AS, size + limits.memory),
        (resource.RLIMIT_CORE, 0),
    ):
        lower(kind, limit)


def limit_time(limits: ChildLimits) -> None:
    """Limit the CPU time of the next question: SIGXCPU, which ends the process, comes when it is used up."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    lower(resource.RLIMIT_CPU, math.ceil(usage.ru_utime + usage.ru_stime) + limits.cpu_seconds)


def lower(kind: int, limit: int) -> None:
    """Set a soft limit, at most the hard one."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def read_frame(stream: BinaryIO) -> str | None:
    """Read one frame; None at the end of the stream."""
    head = stream.read(LENGTH_BYTES)
    return stream.read(int.from_bytes(head, "big")).decode() if len(head) == LENGTH_BYTES else None


def framed(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(LENGTH_BYTES, "big") + data
