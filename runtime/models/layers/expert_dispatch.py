# SPDX-License-Identifier: Apache-2.0
"""Rows on their way to the ranks that hold their experts, and results on their way back (Lepikhin et al., 2020)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from pontil.gpu_ops.collectives.communicator import Communicator
from pontil.gpu_ops.products.experts import add_by_ratings

# The results float32 [rows * per_token, hidden_size] of a rank's experts, for rows and what these have chosen. Those of
# other experts are not set.
OwnResults = Callable[[Tensor, Tensor], Tensor]


class ExpertDispatch:
    """Each rank has an equal share of neighbouring rows, the last ones less, and `held` experts. A row goes once to
    each rank that holds experts of its own; the result of each choice comes back and is added where the row is, in the
    order of its ratings, as one process does (H4). Then all ranks get all sums.

    All ranks have the router, so that all know what is sent."""

    def __init__(self, communicator: Communicator, held: int) -> None:
        self.communicator, self.held = communicator, held

    def __call__(self, x: Tensor, ratings: Tensor, chosen: Tensor, compute: OwnResults) -> Tensor:
        """Map x [rows, hidden_size] to float32 of the same shape; ratings and chosen are [rows, per_token]."""
        rank, size = self.communicator.rank, self.communicator.size
        share = max(1, -(-len(x) // size))
        mine, behind = slice(rank * share, (rank + 1) * share), (0, 0, 0, size * share - len(x))
        send = self.by_choices if x.device.type == "cpu" else self.by_rows
        results = send(x, F.pad(chosen, behind), compute, mine)
        sums = add_by_ratings(results.view(share, chosen.shape[1], -1), F.pad(ratings, behind)[mine])
        return self.communicator.gather_columns(sums.view(1, -1)).view(size * share, -1)[: len(x)]

    def by_choices(self, x: Tensor, chosen: Tensor, compute: OwnResults, mine: slice) -> Tensor:
        """The results of this rank's rows, [share * per_token, hidden_size], of which only what was chosen is sent.
        `chosen` goes on behind the last row."""
        rank, size = self.communicator.rank, self.communicator.size
        holders = chosen[: len(x)] // self.held
        choices = F.one_hot(holders, size)
        goes = choices.amax(1)
        owners = torch.arange(len(x)) // (mine.stop - mine.start)
        there, back = (
            torch.zeros(size, size, dtype=torch.int64).index_add_(0, owners, rows) for rows in (goes, choices.sum(1))
        )
        going, coming = goes[mine].T.nonzero()[:, 1], goes[:, rank].nonzero().view(-1)
        made = compute(self.communicator.all_to_all(x[mine][going], there.tolist()), chosen[coming])
        here = holders[coming].view(-1) == rank
        arrived = self.communicator.all_to_all(made[here], back.T.tolist())
        results = arrived.new_zeros(chosen[mine].numel(), x.shape[1])
        results[holders[mine].view(-1).argsort(stable=True)] = arrived
        return results

    def by_rows(self, x: Tensor, chosen: Tensor, compute: OwnResults, mine: slice) -> Tensor:
        """The same where numbers of rows may not depend on choices, as in steps that a device records: no row is sent,
        since all ranks have it, and every rank sends what it has of all results."""
        size, count = self.communicator.size, chosen[mine].numel()
        made = compute(x, chosen[: len(x)])
        padded = F.pad(made, (0, 0, 0, size * count - len(made)))
        arrived = self.communicator.all_to_all(padded, [[count] * size] * size).view(size, count, -1)
        return arrived[chosen[mine].reshape(-1) // self.held, torch.arange(count, device=x.device)]
