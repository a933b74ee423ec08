# SPDX-License-Identifier: Apache-2.0
"""The room for lines of batches in flight."""

import asyncio
from collections import deque
from collections.abc import Callable

# Lines in flight beyond the seats, so that a free one is taken at once.
AHEAD = 16


class LineRoom:
    """One place for each seat and a few more, none while `seats` is None. Batches that wait have them in turn, each for
    one line. Conservation: `taken` are those that were given and not given back."""

    def __init__(self, seats: Callable[[], int | None]) -> None:
        self.seats, self.taken = seats, 0
        self.waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_free(self) -> bool:
        seats = self.seats()
        return seats is not None and self.taken < seats + AHEAD

    async def take(self, patience: float) -> bool:
        """Wait for a place for so many seconds; return whether there is one."""
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        self.look()
        try:
            await asyncio.wait([turn], timeout=patience)
        except asyncio.CancelledError:
            if not self.withdraw(turn):
                self.give_back()
            raise
        return not self.withdraw(turn)

    def withdraw(self, turn: "asyncio.Future[None]") -> bool:
        """Wait for a turn no more; return False if it was given."""
        if turn.done():
            return False
        self.waiting.remove(turn)
        return True

    def give_back(self) -> None:
        self.taken -= 1
        self.look()

    def look(self) -> None:
        """Give the places that there are now."""
        while self.waiting and self.is_free:
            self.taken += 1
            self.waiting.popleft().set_result(None)
