# SPDX-License-Identifier: Apache-2.0
"""The rounds of workers that share experts (docs/decisions/094): passes through the layers that they make together,
each with rows of its own or with none."""

from collections.abc import Callable, Sequence
from contextlib import suppress

import torch

from pontil.gpu_ops.collectives.communicator import CollectiveError, Communicator, SingleRank
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.errors import GroupLeaves, RankLost
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.reporting import Reporter
from pontil.runtime.wire.links.sockets import Poller
from pontil.runtime.worker.ranks.round_links import FirstRankLink, OtherRankLink, RoundLink


class Rounds:
    """The rounds of a worker that has all experts itself: none."""

    @property
    def are_due(self) -> bool:
        """Return whether the others wait for this rank, or will."""
        return False

    def agree(self, loaded: tuple[str, str, str], num_blocks: int, serve: Callable[[], None]) -> None:
        """Wait until all ranks have loaded the same, and `serve` the others' rows from now on. Raises ModelError."""

    def settle(self) -> None:
        """Make rounds without rows until none is due."""

    def meet(self, poller: Poller) -> None:
        """Wait until all ranks are about to serve. Have this poller wake for their calls."""

    def hear(self) -> None:
        """Take the calls of other ranks."""

    def keep_up(self) -> None:
        """Make the round that is due, unless one was made since the last time."""

    def leave(self) -> None:
        """Have the other ranks leave, too."""

    def close(self) -> None:
        """Close the links. No method may be called after this."""


class ExpertRounds(Rounds):
    """The rounds of one rank of several, which computes plans in them as a runner's `Followers`.

    A round begins with a meeting in which all learn how many rows each brings. After one with rows all come to the next
    unasked; after one without any they rest, until a rank that has some calls the others. So nobody is called between
    the rounds of a busy rank, and nobody waits for one that has nothing to compute. A rank that leaves says so in a
    meeting, and takes the others with it. Not thread-safe: the engine's thread makes every call.
    """

    # A step that is begun anew would leave the others in the middle of a round.
    none = False

    def __init__(self, link: RoundLink) -> None:
        self.link = link
        self.communicator: Communicator = SingleRank()
        self.serve: Callable[[], None] = lambda: None
        # The number of the last round, and of the last one that `keep_up` has seen.
        self.number = self.seen = 0
        self.is_called = self.is_over = False

    @property
    def are_due(self) -> bool:
        return self.is_called and not self.is_over

    def join(self, model: ModelConfig, kernels: KernelLibrary | None, device: torch.device) -> Communicator:
        """Make the communicator over which the ranks of the model's experts exchange rows."""
        self.communicator = self.link.join(model, kernels, device)
        return self.communicator

    def agree(self, loaded: tuple[str, str, str], num_blocks: int, serve: Callable[[], None]) -> None:
        self.link.agree(loaded, num_blocks)
        self.serve = serve

    def meet(self, poller: Poller) -> None:
        self.link.meet()
        self.link.watch(poller)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Do nothing: each rank has its own blocks."""

    def take_accepted(self, counts: Sequence[int]) -> None:
        """Do nothing: each rank has its own sequences."""

    def run(self, plan: TilePlan) -> None:
        """Begin the round in which a tile is computed."""
        self.enter(len(plan.ids))

    def enter(self, rows: int, leaves: bool = False) -> bool:
        """Begin the next round, and return whether any rank has rows. Raises GroupLeaves if one leaves, and
        CollectiveError."""
        if self.is_over:
            raise GroupLeaves("a rank of this group has left")
        if not self.is_called:
            self.link.call(self.number + 1)
        self.number += 1
        told = self.communicator.gather_columns(torch.tensor([[rows, int(leaves)]])).view(-1, 2).any(0)
        self.is_called, self.is_over = map(bool, told)
        if self.is_over:
            raise GroupLeaves("a rank of this group leaves")
        return self.is_called

    def assist(self) -> None:
        """Make the next round without rows."""
        if self.enter(0):
            self.serve()

    def settle(self) -> None:
        while self.are_due:
            self.assist()

    def hear(self) -> None:
        self.is_called = self.number + 1 in self.link.called() or self.is_called

    def keep_up(self) -> None:
        if self.are_due and self.number == self.seen:
            self.assist()
        self.seen = self.number

    def leave(self) -> None:
        """Have the others leave, unless one has said so already. One that has ended needs no word."""
        with suppress(GroupLeaves, CollectiveError, RankLost):
            self.enter(0, leaves=True)

    def close(self) -> None:
        self.link.close()


def open_rounds(config: WorkerConfig, report: Reporter) -> ExpertRounds | None:
    """Open the links of a worker that shares experts with others; None for one that does not."""
    place = config.data_parallel_rank, config.data_parallel_size
    if place[1] == 1:
        return None
    return ExpertRounds(OtherRankLink(config, place) if place[0] else FirstRankLink(config, report, place[1]))
