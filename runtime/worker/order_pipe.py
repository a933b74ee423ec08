# SPDX-License-Identifier: Apache-2.0
"""What the supervisor tells a worker: JSON objects, one a line, over an inherited pipe that is read without waiting."""

import json
import logging
import os
from typing import Any

CHUNK_BYTES = 1 << 16
logger = logging.getLogger("pontil.worker")


class OrderPipe:
    """`closed` once the supervisor's end is gone; nothing comes any more then."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.partial = b""
        self.closed = False

    def take(self) -> list[dict[str, Any]]:
        """The orders that have come, in order."""
        try:
            chunk = b"" if self.closed else os.read(self.descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return []
        self.closed = not chunk
        *lines, self.partial = (self.partial + chunk).split(b"\n")
        return [order for line in lines if (order := parsed(line)) is not None]


def parsed(line: bytes) -> dict[str, Any] | None:
    """The order in a line; None, logged, for a line that is none."""
    try:
        order = json.loads(line)
    except ValueError:
        order = None
    if isinstance(order, dict):
        return order
    logger.error("the supervisor sent a line that is no order: %r", line[:100])
    return None
