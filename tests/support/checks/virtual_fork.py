# SPDX-License-Identifier: Apache-2.0
"""A fork of this process that has a virtual world: what a test imported is not imported again."""

import json
import logging
import os
import traceback
from collections.abc import Callable
from typing import Any


def in_virtual_time(work: Callable[[], Any]) -> Any:
    """Return the JSON value that `work` makes in a fork whose clock, sockets and threads are virtual."""
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        run_and_end(work, reading, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        told = file.read()
    os.waitpid(pid, 0)
    assert told, "the fork ended by an exception"
    return json.loads(told)


def run_and_end(work: Callable[[], Any], reading: int, writing: int) -> None:
    from pontil.runtime.wire.simulated import install, thread_events

    try:
        os.close(reading)
        install.install()
        thread_events.use_events_for_threads()
        logging.disable(logging.CRITICAL)
        with os.fdopen(writing, "wb") as file:
            file.write(json.dumps(work()).encode())
    except BaseException:  # a fork must end here: what comes next is the parent's
        traceback.print_exc()
    os._exit(0)
