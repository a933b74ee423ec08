# SPDX-License-Identifier: Apache-2.0
"""Notifications to the service manager, as sd_notify(3) describes them: datagrams of NAME=VALUE lines."""

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum

# Seconds that a starting or stopping launch requests beyond the unit's own limits, and how often it repeats this:
# systemd must receive each request before the time granted by the last one ends.
EXTENSION = 60.0
EXTEND_EVERY = 10.0
# Variables that the manager sets for this process alone. A child that had them could send notifications or heartbeats
# in its name.
OURS = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class NotifyState(Enum):
    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"


class Notifier:
    """The notifier of the launcher's main process. Without a manager that listens it sends nothing.

    The supervisor calls `tick` from its own loop: a supervisor that hangs sends no WATCHDOG=1 and is killed. The
    supervisor alone judges whether children are healthy; a sick child is no reason for the manager to end all of them.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        """Read the environment. An address that begins with @ is abstract. An address that is neither that nor a path,
        and a watchdog meant for another process, are ignored as sd_notify(3) requires."""
        self.address = address_of(variables.get("NOTIFY_SOCKET", ""))
        self.beat = beat_of(variables) if self.address else None
        self.phase: NotifyState | None = None
        self.status = ""
        self.next_beat = self.next_extension = 0.0
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if self.address else None

    def tick(self, phase: NotifyState, now: float, status: str = "") -> None:
        """Report the launch's phase; `status` is one line for people. Must be called at least every half second."""
        has_changed, self.phase = phase is not self.phase, phase
        if has_changed and phase is NotifyState.SERVING:
            self.say("READY=1", f"MAINPID={os.getpid()}")
        elif has_changed and phase is NotifyState.STOPPING:
            self.say("STOPPING=1")
        if has_changed or status != self.status:
            self.status = status
            self.say(f"STATUS={status or phase.value}")
        self.extend(now, has_changed)
        if self.beat is not None and now >= self.next_beat:
            self.next_beat = now + self.beat
            self.say("WATCHDOG=1")

    def extend(self, now: float, has_changed: bool) -> None:
        """Request more time while starting or stopping. The launch itself limits how long that may take at most."""
        if self.phase is not NotifyState.SERVING and (has_changed or now >= self.next_extension):
            self.next_extension = now + EXTEND_EVERY
            self.say(f"EXTEND_TIMEOUT_USEC={round(EXTENSION * 1e6)}")

    def reloading(self) -> None:
        """Announce that configuration will be read again; `reloaded` must follow."""
        self.say("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        if self.phase is NotifyState.SERVING:
            self.say("READY=1", f"STATUS={self.status or self.phase.value}")

    def say(self, *lines: str) -> None:
        """Send one datagram. Never blocks: a manager that does not read must not delay requests."""
        if self.socket is not None and self.address is not None:
            with suppress(OSError):
                self.socket.sendto("\n".join(lines).encode(), socket.MSG_DONTWAIT, self.address)

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None


def address_of(text: str) -> str | None:
    if text.startswith("/"):
        return text
    return "\0" + text[1:] if text.startswith("@") and len(text) > 1 else None


def beat_of(variables: Mapping[str, str]) -> float | None:
    """Return the seconds between two watchdog heartbeats: half of the manager's timeout."""
    limit, process = variables.get("WATCHDOG_USEC", ""), variables.get("WATCHDOG_PID", "")
    if not limit.isascii() or not limit.isdigit() or int(limit) == 0 or process not in ("", str(os.getpid())):
        return None
    return int(limit) / 2e6
