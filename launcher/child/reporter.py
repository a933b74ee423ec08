# SPDX-License-Identifier: Apache-2.0
"""The child's end of the report pipe, with the thread that sends its heartbeats."""

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from pontil.launcher.child.reports import (
    ChangeReport,
    FailureReport,
    HeartbeatReport,
    OrderReport,
    ProgressReport,
    ReadyReport,
    Report,
    SelfTestReport,
    UseReport,
    encode,
)

BEAT = 0.5
EXIT_ORPHANED = 71


class PipeReporter:
    """A Reporter (runtime/reporting.py) that writes to an inherited pipe.

    A broken pipe means that the supervisor is gone: the process then ends at once, whatever it is doing.
    """

    def __init__(self, pipe: int, beat: float = BEAT) -> None:
        self.pipe = pipe
        self.beat = beat
        # One tuple, replaced whole, so that the heartbeat thread never sees half of a step.
        self.last_step = (0, time.monotonic(), False)
        self.writing = threading.Lock()
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.send_beats, name="heartbeat", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join(timeout=2 * self.beat)

    def progress(self, text: str, *, waits: bool = False) -> None:
        self.send(ProgressReport(text, waits))

    def ready(self, **facts: Any) -> None:
        self.send(ReadyReport(facts))

    def tested(self, number: int, routes: Sequence[dict[str, Any]]) -> None:
        self.send(SelfTestReport(number, list(routes)))

    def failed(self, reason: str) -> None:
        self.send(FailureReport(reason))

    def settled(self, order: int, drained: bool) -> None:
        self.send(OrderReport(order, drained))

    def asked(self, number: int, request: dict[str, Any]) -> None:
        self.send(ChangeReport(number, request))

    def used(self, models: dict[str, list[int]]) -> None:
        self.send(UseReport(models))

    def stepped(self, number: int, working: bool) -> None:
        self.last_step = (number, time.monotonic(), working)

    def send_beats(self) -> None:
        while not self.stopping.wait(self.beat):
            self.send_beat()

    def send_beat(self) -> None:
        number, at, working = self.last_step
        self.send(HeartbeatReport(number, round(time.monotonic() - at, 3), working))

    def send(self, report: Report) -> None:
        message = encode(report)
        try:
            with self.writing:
                while message:
                    message = message[os.write(self.pipe, message) :]
        except OSError:
            os._exit(EXIT_ORPHANED)
