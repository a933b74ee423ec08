# SPDX-License-Identifier: Apache-2.0
"""A limit on log lines about what any client can cause."""

COMPLAIN_SECONDS = 60.0


class LogInterval:
    """One line per interval."""

    def __init__(self) -> None:
        self.complained: float | None = None

    def is_due(self, now: float) -> bool:
        """Return whether a line may be written now, and count it."""
        if self.complained is not None and now - self.complained <= COMPLAIN_SECONDS:
            return False
        self.complained = now
        return True
