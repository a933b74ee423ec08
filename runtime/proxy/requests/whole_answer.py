# SPDX-License-Identifier: Apache-2.0
"""An answer that its reader is given whole or not at all."""

from collections.abc import Callable


class WholeAnswer:
    """The answer to so many requests, `running` until they end. What closes the accounts of those that have ended is
    `held` until it is known whether there is an answer: nobody is billed for a part of one that failed."""

    def __init__(self, requests: int) -> None:
        self.running, self.failed = requests, False
        self.held: list[Callable[[], None]] = []

    def end(self, close: Callable[[], None], *, failed: bool) -> None:
        """Note the end of a request. `close` is called once none runs, or one has failed."""
        self.running -= 1
        self.held.append(close)
        if failed:
            self.fail()
        elif self.failed or not self.running:
            self.close()

    def fail(self) -> None:
        self.failed = True
        self.close()

    def close(self) -> None:
        held, self.held = self.held, []
        for close in held:
            close()
