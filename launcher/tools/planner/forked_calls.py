# SPDX-License-Identifier: Apache-2.0
"""Calls at a time, in forks of this process: a virtual world is that of a whole process."""

import json
import os
import select
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from pontil.launcher.child.parent_death import die_with_parent
from pontil.launcher.foundation.errors import LaunchError, OptionError

# Bytes of a call's number in the pipe from which forks take the next one: all fit into it before anybody reads.
TICKET, MOST_CALLS = 2, 1 << 14
# Errors of users, by their names.
ERRORS = {kind.__name__: kind for kind in (LaunchError, OptionError)}


class ForkedCalls:
    """Makes calls in up to `jobs` forks at a time; in a fork of the process that made it, one after the other."""

    def __init__(self, jobs: int) -> None:
        self.jobs, self.owner = jobs, os.getpid()

    def results(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return the JSON values that functions return, in their order. Raises the LaunchError or OptionError of one of
        them, and LaunchError for what has no result."""
        if min(self.jobs, len(calls)) < 2 or len(calls) > MOST_CALLS or os.getpid() != self.owner:
            return [call() for call in calls]
        tickets, numbers = os.pipe()
        os.write(numbers, b"".join(number.to_bytes(TICKET, "big") for number in range(len(calls))))
        os.close(numbers)
        forks, made = list[CallingFork](), dict[str, Any]()
        try:
            for _ in range(min(self.jobs, len(calls))):
                forks.append(CallingFork(calls, tickets))
            for fork in as_they_end(forks):
                made |= fork.results()
        finally:
            os.close(tickets)
            for fork in forks:
                fork.end()
        if len(made) < len(calls):
            raise LaunchError("a simulation ended without a result.")
        return [made[str(number)] for number in range(len(calls))]


class CallingFork:
    """A fork of this process that makes calls as long as there are some which nobody has begun."""

    def __init__(self, calls: Sequence[Callable[[], Any]], tickets: int) -> None:
        ours = os.getpid()
        self.told, tell = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self.told)
            make_calls(calls, tickets, tell, ours)
        os.close(tell)

    def results(self) -> dict[str, Any]:
        """Wait for its answer; return what its calls returned, by their numbers. Raises what one of them raised."""
        with os.fdopen(os.dup(self.told), "rb") as file:
            told: dict[str, Any] = json.loads(file.read() or "{}")
        if "error" in told:
            raise ERRORS[told["error"]](told["says"])
        return told

    def end(self) -> None:
        os.close(self.told)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def as_they_end(forks: Sequence[CallingFork]) -> Iterator[CallingFork]:
    """Yield each when it has something to say: an error of the last is heard before the first is done."""
    poll, left = select.poll(), {fork.told: fork for fork in forks}
    for told in left:
        poll.register(told, select.POLLIN)
    while left:
        for told, _ in poll.poll():
            poll.unregister(told)
            yield left.pop(told)


def make_calls(calls: Sequence[Callable[[], Any]], tickets: int, tell: int, parent: int) -> NoReturn:
    """Be a fork. It ends at once with its parent, and when a terminal interrupts both."""
    made = dict[str, Any]()
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        die_with_parent(parent)
        while ticket := os.read(tickets, TICKET):
            number = int.from_bytes(ticket, "big")
            made[str(number)] = calls[number]()
    except (LaunchError, OptionError) as error:
        made = {"error": type(error).__name__, "says": str(error)}
    except BaseException:  # a fork must end here: what comes next is its parent's
        traceback.print_exc()
    with os.fdopen(tell, "wb") as file:
        file.write(json.dumps(made).encode())
    os._exit(0)
