# SPDX-License-Identifier: Apache-2.0
"""The fork server's own process: it forks when the launcher asks for a process, and each fork is that process."""

import fcntl
import gc
import json
import os
import select
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pontil.launcher.child.parent_death import die_with_parent
from pontil.launcher.child.reporter import EXIT_ORPHANED


@contextmanager
def quick_import() -> Iterator[None]:
    """Import what stays until the process ends. The garbage collector rests meanwhile, which is a seventh of the time
    that torch takes, and never looks at it later."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


READY = b"ready"
LARGEST_REQUEST = 1 << 17
# The most that the kernel lets one message carry.
MOST_DESCRIPTORS = 253
# Fields of /proc/self/stat after the name: the addresses where the command line begins and ends.
BEGIN_OF_WORDS, END_OF_WORDS = 45, 46


def serve_forks(parent: int, requests: int) -> list[str] | None:
    """Fork a process for each request, until the launcher closes its end. Returns None then; in each of the forks it
    returns the words that follow the command in this process's command line.

    The launcher adopts a fork, whose own parent ends at once, so that it is signalled and waited for like its other
    children. Nothing but the calling thread and this socket may exist: a fork would lack other threads."""
    die_with_parent(parent)
    server = socket.socket(fileno=requests)
    if len(os.listdir("/proc/self/task")) > 1:
        return None
    server.send(READY)
    while (message := socket.recv_fds(server, LARGEST_REQUEST, MOST_DESCRIPTORS))[0]:
        middle = os.fork()
        if middle == 0:
            return be_adopted(parent, server, json.loads(message[0]), message[1])
        os.waitpid(middle, 0)
        for descriptor in message[1]:
            os.close(descriptor)
    return None


def be_adopted(parent: int, server: socket.socket, request: Mapping[str, Any], descriptors: Sequence[int]) -> list[str]:
    """Fork again and end, so that the launcher adopts the second fork; return in that one, once it has."""
    middle = os.pidfd_open(os.getpid())
    if os.fork():
        os._exit(0)
    # It can be read from when the process has ended, and its children have their new parent.
    select.select([middle], [], [])
    os.close(middle)
    os.setsid()
    die_with_parent(parent)
    show_as([*request["command"], *request["words"]])
    answers, gate = take_numbers((server.detach(), *descriptors), request["descriptors"])
    os.write(answers, str(os.getpid()).encode())
    if not os.read(gate, 1):
        os._exit(EXIT_ORPHANED)
    os.close(answers)
    os.close(gate)
    words: list[str] = request["words"]
    return words


def take_numbers(fds: Sequence[int], numbers: Sequence[int]) -> list[int]:
    """Give the last files the numbers at which the configuration names them. Return the new numbers of the others,
    which may have had one of those."""
    duplicates = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(numbers) + 1) for fd in fds]
    for descriptor in fds:
        os.close(descriptor)
    other_count = len(duplicates) - len(numbers)
    for descriptor, number in zip(duplicates[other_count:], numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    return duplicates[:other_count]


def show_as(line: Sequence[str]) -> None:
    """Write another command line over that of this process, as far as there is room, so that lists of processes show
    which one it is. The kernel shows one string in the place of words where its last byte was overwritten."""
    import ctypes

    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[BEGIN_OF_WORDS]), int(fields[END_OF_WORDS])
    room = end - begin
    title = " ".join(line).encode()[: room - 2]
    ctypes.memmove(begin, title.ljust(room - 1, b"\0") + b"\1", room)
