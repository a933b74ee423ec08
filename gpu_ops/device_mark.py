# SPDX-License-Identifier: Apache-2.0
"""Moments of a device's stream, and the one way in which the host waits for a device: with a deadline.

A device may wait for others: a rank that does not come to an exchange keeps all of them there, and a library's own
deadline does not count for what was recorded.
"""

import time
from typing import Any

import torch

# Seconds, longer than all steps that may be queued.
DEVICE_WITHIN = 60.0
# Between two looks at a device. CUDA knows no wait with a deadline, and its driver's own keeps a core busy.
PAUSE = 20e-6


class DeviceLate(Exception):
    """A device that has not done in time what was started on it. It may go on at any time and write to memory of then:
    the process cannot go on."""


class DeviceMark:
    """The moment behind all that was started on a stream of a device, by default its current one."""

    def __init__(self, device: torch.device, stream: Any = None) -> None:
        self.device, self.event = device, torch.cuda.Event()
        self.event.record(stream or torch.cuda.current_stream(device))

    def wait(self) -> None:
        """Wait until the device has come there. Raises DeviceLate."""
        deadline = time.monotonic() + DEVICE_WITHIN
        while not self.event.query():
            if time.monotonic() > deadline:
                raise DeviceLate(
                    f"{self.device} has not done within {DEVICE_WITHIN:g} s what was started there: it hangs, or waits "
                    "for the device of a rank that has not come"
                )
            # Nothing tells that an event has come: no descriptor, and no call that ends in time.
            time.sleep(PAUSE)
