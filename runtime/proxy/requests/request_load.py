# SPDX-License-Identifier: Apache-2.0
"""The part of workers' loads that one request is."""

from collections.abc import Sequence
from dataclasses import dataclass

from pontil.runtime.foundation.fair_share import FairShare
from pontil.runtime.proxy.fleet.registered_worker import RegisteredWorker


@dataclass(slots=True)
class RequestLoad:
    """The load of its `workers`, as they were registered when the request was sent to them: it is in flight at each,
    with so many `choices`, and `prompt_worker` has yet to compute `uncomputed` tokens of its prompt.

    Conservation: what was added to a worker is taken off when it is let go of."""

    workers: tuple[RegisteredWorker, ...] = ()
    choices: int = 0
    prompt_worker: str | None = None
    uncomputed: int = 0

    def take(self, workers: Sequence[RegisteredWorker]) -> None:
        self.workers = tuple(workers)
        for worker in self.workers:
            worker.in_flight += 1

    def let_go(self, share: FairShare) -> None:
        for worker in self.workers:
            worker.in_flight -= 1
        self.seat(share, 0)
        self.prompt_done(share)
        self.workers = ()

    def seat(self, share: FairShare, choices: int) -> None:
        """Count so many of its choices at its workers: those that have not ended."""
        for worker in self.workers if choices != self.choices else ():
            worker.seat(share, choices - self.choices)
        self.choices = choices

    def owe(self, share: FairShare, prompt_worker: str, tokens: int) -> None:
        """Add the part of the prompt that is to be computed to the load of the worker that does it."""
        self.prompt_worker = prompt_worker
        self.set_uncomputed(share, tokens)

    def advance(self, share: FairShare, left: int) -> int:
        """Note that at most so many tokens of the prompt are left; return how many are computed since."""
        if self.prompt_worker is None:
            return 0
        new = max(0, self.uncomputed - left)
        self.set_uncomputed(share, self.uncomputed - new)
        return new

    def prompt_done(self, share: FairShare) -> None:
        """Take the prompt off its worker's load: it is computed, or no longer wanted."""
        self.advance(share, 0)
        self.prompt_worker = None

    def set_uncomputed(self, share: FairShare, tokens: int) -> None:
        before, self.uncomputed = self.uncomputed, tokens
        for worker in self.workers:
            if worker.hello.sender == self.prompt_worker:
                worker.owe(share, tokens - before, (tokens > 0) - (before > 0))
