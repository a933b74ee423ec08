# SPDX-License-Identifier: Apache-2.0
"""The highest logits of each row, to the bit: what a receipt commits to."""

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from pontil.gpu_ops.draws.logprobs import keys

# Groups have so many ids; of a row the highest logit of each is looked at first.
GROUP = 64


def top_logits(logits: Tensor, count: int) -> Tensor:
    """Return the `count` highest logits of each row of float32 [rows, vocabulary] as int32 [rows, count, 2]: the id,
    then the bits of its logit. The highest is first; of equal ones the lowest id. NaN is taken for minus infinity, and
    -0.0 for 0.0; what a small vocabulary lacks is -1."""
    if logits.device.type != "cpu":
        return top_there(logits, count)
    rows = [top_of_row(row, count) for row in logits.numpy()]
    return torch.from_numpy(numpy.stack(rows)) if rows else torch.empty(0, count, 2, dtype=torch.int32)


def top_of_row(row: NDArray[numpy.float32], count: int) -> NDArray[numpy.int32]:
    groups = max(1, len(row) // GROUP)
    body = len(row) - len(row) % groups
    # Ids that lie `groups` apart are a group: so a row's maxima are made at the speed of memory.
    table = row[:body].reshape(-1, groups)
    ranked, tail = table.max(0), row[body:]
    few = min(count, groups)
    # As many logits as are wanted are at least this high, so no lower one is among them. NaN is partitioned behind all.
    ordered = numpy.partition(ranked, -few)
    least = ordered[-few] if few == count else -numpy.inf
    if numpy.isnan(ordered[-few:]).any() or numpy.isnan(tail).any():
        return top_of_row(numpy.where(numpy.isnan(row), numpy.float32(-numpy.inf), row), count)
    chosen = numpy.flatnonzero(ranked >= least)
    found = table[:, chosen]
    inside, group = numpy.nonzero(found >= least)
    ids = (inside * groups + chosen[group]).tolist() + list(range(body, len(row)))
    logits = found[inside, group].tolist() + tail.tolist()
    best = sorted(zip([-logit for logit in logits], ids, strict=True))[:count]
    pairs = numpy.full((count, 2), -1, numpy.int32)
    pairs[: len(best), 0] = [one for _, one in best]
    # The sum turns -0.0 into 0.0.
    pairs[: len(best), 1] = numpy.array([0.0 - logit for logit, _ in best], numpy.float32).view(numpy.int32)
    return pairs


def top_there(logits: Tensor, count: int) -> Tensor:
    """The same, by operations whose shapes follow from those of the logits alone.

    Groups are ids that follow each other. Of the groups by (highest logit, place) the first `count` have the result:
    each group before another one has an id that comes before all of the other's."""
    rows, vocabulary = logits.shape
    groups = vocabulary // GROUP
    logits = logits.nan_to_num(-torch.inf, torch.inf, -torch.inf) + 0.0
    highest = logits[:, : groups * GROUP].unflatten(1, (groups, GROUP)).amax(-1)
    chosen = keys(highest).topk(min(count, groups)).indices
    ids = (chosen.unsqueeze(-1) * GROUP + torch.arange(GROUP, device=logits.device)).flatten(1)
    tail = torch.arange(groups * GROUP, vocabulary, device=logits.device).expand(rows, -1)
    # By rising id, which decides between equal logits.
    ids = torch.cat([ids, tail], 1).sort(1).values
    found = logits.gather(1, ids)
    best = keys(found).topk(min(count, ids.shape[1])).indices
    pairs = torch.stack([ids.gather(1, best).int(), found.gather(1, best).view(torch.int32)], -1)
    return torch.nn.functional.pad(pairs, (0, 0, 0, count - pairs.shape[1]), value=-1)
