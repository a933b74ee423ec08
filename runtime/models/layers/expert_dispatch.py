# SPDX-License-Identifier: Apache-2.0
"""Rows on their way to the ranks that hold their experts, and results on their way back (Lepikhin et al., 2020)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from pontil.gpu_ops.collectives.communicator import Communicator
from pontil.gpu_ops.products.experts import add_by_ratings

# The results float32 [rows * per_token, hidden_size] of a rank's experts, for rows, what these have chosen, and which
# rows of all these are. Those of other experts are not set.
OwnResults = Callable[[Tensor, Tensor, Tensor], Tensor]


class ExpertDispatch:
    """Each rank has an equal share of neighbouring rows, the last ones less, or `own_tiles`: rows that no other has, or
    none. It has `held` experts. A row goes once to each rank that holds experts of its own; the result of each choice
    comes back and is added where the row is, in the order of its ratings, as one process does (H4). Of rows that all
    have, all ranks then get all sums.

    All ranks know all choices, and so what is sent."""

    def __init__(self, communicator: Communicator, held: int, own_tiles: bool = False) -> None:
        self.communicator, self.held, self.own_tiles = communicator, held, own_tiles

    def __call__(self, x: Tensor, ratings: Tensor, chosen: Tensor, compute: OwnResults) -> Tensor:
        """Map x [rows, hidden_size] to float32 of the same shape; ratings and chosen are [rows, per_token]."""
        if self.own_tiles:
            return self.sums(x, ratings, *self.choices_of_all(chosen), compute)
        rank, size = self.communicator.rank, self.communicator.size
        share = max(1, -(-len(x) // size))
        mine, behind = slice(rank * share, (rank + 1) * share), (0, 0, 0, size * share - len(x))
        if self.may_depend_on_choices(x.device):
            sums = self.sums(x[mine], ratings[mine], chosen, torch.arange(len(x)) // share, compute)
            sums = F.pad(sums, (0, 0, 0, share - len(sums)))
        else:
            results = self.by_rows(x, F.pad(chosen, behind), compute, mine)
            sums = add_by_ratings(results.view(share, chosen.shape[1], -1), F.pad(ratings, behind)[mine])
        return self.communicator.gather_columns(sums.view(1, -1)).view(size * share, -1)[: len(x)]

    @staticmethod
    def may_depend_on_choices(device: torch.device) -> bool:
        """Return whether numbers of rows may: not in steps that a device records."""
        return device.type == "cpu"

    def choices_of_all(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """The choices of all ranks' rows, in the order of ranks, and whose row each is."""
        size, own = self.communicator.size, torch.tensor([[len(chosen)]], device=chosen.device)
        counts = self.communicator.gather_columns(own).view(-1)
        most = int(counts.max())
        padded = F.pad(chosen, (0, 0, 0, most - len(chosen)))
        parts = self.communicator.gather_columns(padded.view(1, -1)).view(size, most, chosen.shape[1])
        real = torch.arange(most, device=chosen.device) < counts.unsqueeze(1)
        return parts[real], torch.arange(size, device=chosen.device).repeat_interleave(counts)

    def sums(self, x: Tensor, ratings: Tensor, chosen: Tensor, owners: Tensor, compute: OwnResults) -> Tensor:
        """The sums of this rank's rows x, where `chosen` are the choices of all rows, each of which is its owner's."""
        results = self.by_choices(x, chosen, owners, compute)
        return add_by_ratings(results.view(*ratings.shape, x.shape[1]), ratings)

    def by_choices(self, x: Tensor, chosen: Tensor, owners: Tensor, compute: OwnResults) -> Tensor:
        """The results of this rank's rows, [len(x) * per_token, hidden_size], of which only what was chosen is sent."""
        rank, size = self.communicator.rank, self.communicator.size
        holders, mine = chosen // self.held, owners == rank
        choices = F.one_hot(holders, size)
        goes = choices.amax(1)
        there, back = (
            torch.zeros(size, size, dtype=torch.int64, device=x.device).index_add_(0, owners, rows)
            for rows in (goes, choices.sum(1))
        )
        going, coming = goes[mine].T.nonzero()[:, 1], goes[:, rank].nonzero().view(-1)
        made = compute(self.communicator.all_to_all(x[going], there.tolist()), chosen[coming], coming)
        here = holders[coming].view(-1) == rank
        arrived = self.communicator.all_to_all(made[here], back.T.tolist())
        results = arrived.new_zeros(len(x) * chosen.shape[1], x.shape[1])
        results[holders[mine].view(-1).argsort(stable=True)] = arrived
        return results

    def by_rows(self, x: Tensor, chosen: Tensor, compute: OwnResults, mine: slice) -> Tensor:
        """The same, of rows that all ranks have, where numbers of rows may not depend on choices, as in steps that a
        device records: no row is sent, and every rank sends what it has of all results. `chosen` goes on behind the
        last row."""
        size, count = self.communicator.size, chosen[mine].numel()
        made = compute(x, chosen[: len(x)], torch.arange(len(x), device=x.device))
        padded = F.pad(made, (0, 0, 0, size * count - len(made)))
        arrived = self.communicator.all_to_all(padded, [[count] * size] * size).view(size, count, -1)
        return arrived[chosen[mine].reshape(-1) // self.held, torch.arange(count, device=x.device)]
