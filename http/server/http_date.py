# SPDX-License-Identifier: Apache-2.0
"""The header Date of answers."""

import time
from collections.abc import Callable
from email.utils import formatdate


class HttpDate:
    """The current date as HTTP writes it (RFC 9110, 5.6.7), made once a second."""

    def __init__(self, clock: Callable[[], float] = lambda: time.time()) -> None:
        self.clock = clock
        self.second, self.text = -1, ""

    @property
    def now(self) -> str:
        second = int(self.clock())
        if second != self.second:
            self.second, self.text = second, formatdate(second, usegmt=True)
        return self.text
