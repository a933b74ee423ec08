# SPDX-License-Identifier: Apache-2.0
"""Probes of /ready: a usage log that cannot be written to is said there, as long as that is so."""

import json
from collections.abc import Callable, Sequence

from disks import USAGE
from http_reader import HttpReader
from request_connections import AnswerTaker, RequestConnection
from served_proxy import ProxyProcess
from virtual_time import SeededWorld

ASKED = b"GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
# Clients of this number ask.
NUMBER = 9000
# When a proxy is asked, in parts of the seconds for which the disk is full: within them, and well after.
PARTS = (0.3, 0.6, 0.95, 2.0)


class ReadyProbe(AnswerTaker):
    """One probe of one proxy. What the disk did to the log before and after it is what the answer is to say."""

    def __init__(self, world: SeededWorld, process: ProxyProcess) -> None:
        self.world, self.process = world, process
        self.before = self.is_refused
        RequestConnection(world, process, NUMBER).ask(self, ASKED)

    @property
    def is_refused(self) -> bool:
        return (self.process, USAGE) in self.world.disks.refused

    @property
    def rows_wait(self) -> bool:
        log = None if self.process.proxy is None else self.process.proxy.books.log
        return log is not None and log.waiting > 0

    # The parts of an AnswerTaker.

    def answered(self, reader: HttpReader) -> None:
        if reader.status == 200 and self.before == self.is_refused:
            said = json.loads(reader.body).get("usage_log")
            self.world.note("ready", self.process, said)
            # After a slow failure the rows rest for a while, though the disk would take them.
            if bool(said) != self.before and not (said and self.rows_wait):
                is_so = "refuses a row" if self.before else "takes all"
                self.world.violate(f"a_full_disk_is_said: {self.process} says {said!r}, and its disk {is_so}")


def probe(world: SeededWorld, seconds: float, find: Callable[[], Sequence[ProxyProcess]]) -> None:
    """Ask every proxy that runs a few times about a disk that is full from now on for so long."""

    def ask() -> None:
        for process in find():
            if process.stopped_at is None:
                ReadyProbe(world, process)

    for part in PARTS:
        world.after(part * seconds, ask)
