# SPDX-License-Identifier: Apache-2.0
"""`app.py launch` without its imports, for tests: a fork of a process that has done them all, and so are the processes
that the launch starts. They are processes like those that exec makes, with the same files, signals and environment."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))
import app  # noqa: E402, F401

# isort: split
import gc  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
import traceback  # noqa: E402
from collections.abc import Callable, Sequence  # noqa: E402
from contextlib import suppress  # noqa: E402
from itertools import pairwise  # noqa: E402
from typing import NoReturn  # noqa: E402

from pontil.http.app import service  # noqa: E402, F401
from pontil.launcher import cli  # noqa: E402
from pontil.launcher.child.forked import serve_forks, show_as  # noqa: E402
from pontil.launcher.child.parent_death import parent_death_signal  # noqa: E402
from pontil.launcher.child.starter import ExecStarter, ProcessStart  # noqa: E402
from pontil.launcher.child.system_process import GroupLeader, SystemProcess  # noqa: E402
from pontil.launcher.commands import launch  # noqa: E402, F401
from pontil.launcher.roles import import_for_workers  # noqa: E402
from pontil.runtime.loaders import builtin  # noqa: E402, F401
from pontil.runtime.probe import footprint  # noqa: E402, F401

STANDARD = (0, 1, 2)


def main() -> None:
    """Fork a launch for each request, whose first words are the number of a descriptor of its working directory and the
    cores that it may run on, as a list with commas."""
    parent, requests = (int(word.partition("=")[2]) for word in sys.argv[1:3])
    import_for_workers()
    gc.freeze()
    setattr(ExecStarter, ExecStarter.start.__name__, start_by_fork)
    words = serve_forks(parent, requests)
    if words is None:
        return
    folder, cores, *rest = words
    os.fchdir(int(folder))
    os.close(int(folder))
    os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    run(rest)


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
    os.environ.clear()
    os.environ.update(environment)
    run([starter.command[-1], *asked.words])


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


def run(words: Sequence[str]) -> NoReturn:
    """Be `app.py` with these words, and end without the second that freeing torch would take."""
    sys.argv = [str(ROOT / "app.py"), *words]
    os._exit(exit_code(cli.main))


def exit_code(program: Callable[[], None]) -> int:
    """Run a program to its end, whichever that is: nothing may come back to the code that forked."""
    try:
        program()
        code: object = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    main()
