# SPDX-License-Identifier: Apache-2.0
"""A forked child for each seed: no seed sees what another left in modules, and imports are paid once."""

import gc
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import Any

from seed_run import SeedReport

STDERR, REPORT = 2, 1000


class SeedChild:
    """One child, whose report comes over a pipe."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.pipe, end = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            # A seed is short, and what happens in it does not depend on when garbage is found.
            gc.disable()
            # Numbers of descriptors travel in messages: each child begins with the same ones.
            os.dup2(end, REPORT)
            os.closerange(STDERR + 1, REPORT)
            run_and_end(work, REPORT)
        os.close(end)

    def report(self, seed: int) -> SeedReport:
        """Wait for its end. A child that ends without a report has failed."""
        if (told := self.told()) is None:
            return SeedReport(
                seed, "", 0, 0, 0.0, 0.0, 0.0, 0, ["no_thread_failed: the world itself ended by an exception"]
            )
        return SeedReport(**told)

    def told(self) -> "dict[str, Any] | None":
        """Wait for its end; return the fields of what it made, if it has."""
        with os.fdopen(self.pipe, "rb") as file:
            told = file.read()
        os.waitpid(self.pid, 0)
        found: dict[str, Any] | None = json.loads(told) if told else None
        return found

    def kill(self) -> None:
        """End it, whose report nobody wants any more."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.pipe)


def told_by_a_child(work: Callable[[], Any]) -> dict[str, Any]:
    """Return the fields of what a child makes."""
    told = SeedChild(work).told()
    assert told is not None, "the world itself ended by an exception"
    return told


def run_and_end(work: Callable[[], Any], pipe: int) -> None:
    """Do the work of a child and end it, without what the parent would do at its end."""
    code = 1
    try:
        told = json.dumps(asdict(work())).encode()
        with os.fdopen(pipe, "wb") as file:
            file.write(told)
        code = 0
    except BaseException:  # a fork must end here: what the parent would do next is not for it
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def reports(seeds: range, jobs: int, work: Callable[[int], SeedReport]) -> Iterator[SeedReport]:
    """Yield the report of each seed in order. Always `jobs` of them run, as long as there are so many."""
    waiting, running, done = iter(seeds), dict[int, SeedChild](), dict[int, SeedReport]()
    try:
        for seed in seeds:
            while seed not in done:
                for following in islice(waiting, jobs - len(running)):
                    running[following] = SeedChild(partial(work, following))
                telling, _, _ = select.select([child.pipe for child in running.values()], (), ())
                for one in [one for one, child in running.items() if child.pipe in telling]:
                    done[one] = running.pop(one).report(one)
            yield done.pop(seed)
    finally:
        for child in running.values():
            child.kill()
