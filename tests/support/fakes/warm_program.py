# SPDX-License-Identifier: Apache-2.0
"""A Python program without its imports, for tests: a fork of a process that has done most of what pontil's programs
import, and so are the processes that a launch starts. They are like those that exec makes, with the same files, signals
and environment."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[0] = str(ROOT)
import app  # noqa: E402, F401

# isort: split
import ctypes  # noqa: E402
import gc  # noqa: E402
import json  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
import runpy  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
import traceback  # noqa: E402
from collections.abc import Callable, Mapping, Sequence  # noqa: E402
from contextlib import suppress  # noqa: E402
from itertools import pairwise  # noqa: E402
from typing import NoReturn  # noqa: E402

from pontil.launcher.child.fork.forked import serve_forks, show_as  # noqa: E402
from pontil.launcher.child.parent_death import parent_death_signal  # noqa: E402
from pontil.launcher.child.starter import ExecStarter, ProcessStart  # noqa: E402
from pontil.launcher.child.system_process import GroupLeader, SystemProcess  # noqa: E402
from pontil.launcher.commands import launch  # noqa: E402, F401
from pontil.launcher.roles import import_for_workers  # noqa: E402

# The word for a process from which proxies and workers are forked, and not only what is as light as the launcher.
COMPUTING = "computing"
STANDARD = (0, 1, 2)
# Fields of /proc/self/stat after the name: the addresses where the environment begins and ends.
ENVIRONMENT = (47, 48)
CLONE_NEWNET = 0x40000000


def main() -> None:
    """Fork a program for each request, whose words are the numbers of descriptors: of its working directory, of a file
    that says what it is, of its input, and of where its errors go."""
    parent, requests = (int(word.partition("=")[2]) for word in sys.argv[-3:-1])
    if sys.argv[1] == COMPUTING:
        import_all()
    gc.freeze()
    setattr(ExecStarter, ExecStarter.start.__name__, start_by_fork)
    words = serve_forks(parent, requests)
    if words is None:
        return
    folder, told, given, errors = map(int, words)
    with open(told) as file:
        asked = json.load(file)
    os.fchdir(folder)
    os.close(folder)
    for one, number in ((given, STANDARD[0]), (errors, STANDARD[2])):
        os.dup2(one, number)
    for one in {given, errors}:
        os.close(one)
    os.sched_setaffinity(0, asked["cores"])
    if asked["network"] is not None:
        enter_network(asked["network"])
    show_as([sys.executable, *asked["line"]])
    take_environment(asked["environment"])
    run(asked["line"])


def import_all() -> None:
    """Import what proxies and workers need. A process that has is much larger, and slower to fork."""
    import_for_workers()
    from pontil.http.server import service  # noqa: F401
    from pontil.runtime.loaders import builtin  # noqa: F401
    from pontil.runtime.probe import footprint  # noqa: F401


def start_by_fork(starter: ExecStarter, asked: ProcessStart) -> SystemProcess:
    """Start a process of a launch. It leads its group before this returns, as after exec: signals find it."""
    leads, told = os.pipe()
    pid = os.fork()
    if pid:
        os.close(told)
        os.read(leads, 1)
        os.close(leads)
        return GroupLeader(pid)
    os._exit(exit_code(lambda: become(starter, asked)))


def become(starter: ExecStarter, asked: ProcessStart) -> None:
    parent_death_signal(signal.SIGKILL)()
    forget_the_launcher()
    os.setsid()
    show_as([*starter.command, *asked.words])
    environment = starter.environment(asked.threads)
    take_files(asked)
    take_environment(environment)
    run([*starter.command[1:], *asked.words])


def enter_network(path: str) -> None:
    """Be in this network namespace."""
    with open(path) as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"{path} cannot be entered")


def take_environment(environment: Mapping[str, str]) -> None:
    """Have this environment, and show it: the kernel shows the memory that exec filled. Nothing reads that any more
    once every variable was set anew."""
    os.environ.clear()
    os.environ.update(environment)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = (int(fields[number]) for number in ENVIRONMENT)
    shown = "".join(f"{name}={value}\0" for name, value in environment.items()).encode()
    assert len(shown) <= end - begin, "the warm process has too little room for what its forks show"
    ctypes.memmove(begin, shown.ljust(end - begin, b"\0"), end - begin)


def forget_the_launcher() -> None:
    """Have signals and logging as a new process has them, and free now what would close files of others later."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    logging.root.handlers.clear()
    gc.collect()


def take_files(asked: ProcessStart) -> None:
    """Keep the standard files and those that are inherited, and close all others."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, STANDARD[0])
    if asked.output is not None:
        for number in STANDARD[1:]:
            os.dup2(nothing if asked.output == subprocess.DEVNULL else asked.output, number)
    kept = sorted({*STANDARD, *asked.inherited})
    for one, other in pairwise([*kept, os.sysconf("SC_OPEN_MAX")]):
        os.closerange(one + 1, other)


def run(line: Sequence[str]) -> NoReturn:
    """Be the program of this file with these words, and end without the second that freeing torch would take."""
    sys.argv = list(line)
    sys.path[0] = str(Path(line[0]).parent)
    os._exit(exit_code(lambda: runpy.run_path(line[0], run_name="__main__")))


def exit_code(program: Callable[[], object]) -> int:
    """Run a program to its end, whichever that is: nothing may come back to the code that forked."""
    try:
        program()
        code: object = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    main()
