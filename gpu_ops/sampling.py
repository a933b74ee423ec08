# SPDX-License-Identifier: Apache-2.0
"""From logits to token ids. Each row is drawn alone, from a number that was fixed before the batch was formed.

A row's tokens are a function of its own logits, parameters and number, to the bit (SPEC C16). Three choices make it so:
what is kept is told by a threshold on the logits themselves, which does not depend on how it was found; masses are
integers, whose sum is the same in every order; and candidates are taken by rising id, so that nothing need be sorted
where nothing is cut.
"""

from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

# Rows with a top_k of at most so many look at that many highest logits only.
NARROW = 128
# Probabilities become integers of this unit: their sum over a row stays far below 2^53.
UNIT = 2.0**48


def greedy(logits: Tensor) -> Tensor:
    """The id of the highest logit of each row [rows, vocabulary]; of equal ones the lowest id."""
    return logits.argmax(dim=-1)


@dataclass(frozen=True, slots=True)
class Shaping:
    """How each row's distribution is bent and cut, one value a row, in the host's memory, so that choosing the rows of
    each kind waits for no device. temperature float64 > 0; top_k int64, 0: all; top_p float64 in (0, 1]; min_p float64
    in [0, 1]."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    def rows(self, chosen: Tensor) -> "Shaping":
        return Shaping(self.temperature[chosen], self.top_k[chosen], self.top_p[chosen], self.min_p[chosen])


def sample(logits: Tensor, shaping: Shaping, row: Tensor, uniform: Tensor) -> Tensor:
    """Draw ids by inversion of the cumulative distribution: the first id whose cumulative mass exceeds the number's
    share of the mass that is kept.

    logits float32 [rows, vocabulary]; draw d is from row `row[d]` (int64 [draws]) with the number `uniform[d]` in
    [0, 1) (float64 [draws]). The order is vLLM's: temperature, min_p, top_k, then top_p of what remains. Of equal
    logits at a cut the lowest ids stay. Returns int64 [draws].
    """
    highest = logits.amax(dim=-1, keepdim=True)
    scaled = (logits - highest).div_(column(shaping.temperature, logits).float())
    masses = torch.softmax(scaled, dim=-1)
    cut_rows(logits, highest, masses, shaping)
    cumulative = masses.mul_(UNIT).long().cumsum(-1)
    total = cumulative[row, -1:]
    target = (uniform.unsqueeze(1) * total.double()).long()
    # Rounding up to the whole mass would point behind the last id.
    target = torch.minimum(target, total - 1)
    return torch.searchsorted(cumulative[row], target, right=True).squeeze(1).clamp_(max=logits.shape[1] - 1)


def column(values: Tensor, like: Tensor) -> Tensor:
    """[rows] in the host's memory as [rows, 1] where `like` is."""
    return values.to(like.device).unsqueeze(1)


def cut_rows(logits: Tensor, highest: Tensor, masses: Tensor, shaping: Shaping) -> None:
    """Set the masses of what is not kept to 0, in place. Rows go by their own parameters: those that need no order at
    all, those whose order is needed for the first NARROW places, and those that need all of it."""
    ranked = (shaping.top_k > 0) | (shaping.top_p < 1.0)
    narrow = (shaping.top_k > 0) & (shaping.top_k <= NARROW)
    vocabulary = logits.shape[1]
    for some, width in ((narrow, min(NARROW, vocabulary)), (ranked & ~narrow, vocabulary)):
        if some.any():
            keep_ranked(logits, highest, masses, shaping, some.nonzero().squeeze(1), width)
    floored = (~ranked & (shaping.min_p > 0.0)).nonzero().squeeze(1)
    if len(floored):
        rows = floored.to(logits.device)
        masses[rows] *= logits[rows].ge_(lowest_by_min_p(highest[rows], shaping.rows(floored)))


def lowest_by_min_p(highest: Tensor, shaping: Shaping) -> Tensor:
    """The logit [rows, 1] at which the probability is min_p times the highest one; minus infinity for min_p 0."""
    below = shaping.min_p.log() * shaping.temperature
    return (highest.double() + column(below, highest)).float()


def keep_ranked(logits: Tensor, highest: Tensor, masses: Tensor, shaping: Shaping, chosen: Tensor, width: int) -> None:
    """Cut the chosen rows where their `width` highest logits, in falling order, say."""
    rows, own = chosen.to(logits.device), shaping.rows(chosen)
    candidates = logits[rows]
    ordered = descending(candidates, width)
    count = kept_places(ordered, highest[rows], own)
    lowest = ordered.gather(1, count - 1)
    kept = candidates.clone().ge_(lowest)
    crowded = (kept.sum(-1, keepdim=True) > count).squeeze(1)
    if bool(crowded.any()):
        kept[crowded] = without_later_ties(candidates[crowded], lowest[crowded], count[crowded])
    masses[rows] *= kept


def descending(logits: Tensor, width: int) -> Tensor:
    """The `width` highest values of each row, in falling order; which of equal ones stood where is not told."""
    if width < logits.shape[1]:
        return logits.topk(width).values
    if logits.device.type != "cpu":
        return logits.sort(dim=-1, descending=True).values
    # torch's sort also moves indices, and takes thirty times as long.
    negative: Tensor = torch.from_numpy(numpy.sort(logits.neg().numpy(), axis=-1))
    return negative.neg_()


def kept_places(ordered: Tensor, highest: Tensor, shaping: Shaping) -> Tensor:
    """How many of the ordered logits [rows, width] stay: int64 [rows, 1], at least 1."""
    width = ordered.shape[1]
    top_k = torch.where(shaping.top_k > 0, shaping.top_k.clamp(max=width), width)
    count = (ordered >= lowest_by_min_p(highest, shaping)).sum(-1, keepdim=True).clamp_(min=1)
    count = torch.minimum(count, column(top_k, ordered))
    if not bool((shaping.top_p < 1.0).any()):
        return count
    scaled = (ordered - highest) / column(shaping.temperature, ordered).float()
    outside = torch.arange(width, device=ordered.device) >= count
    masses = torch.softmax(scaled.masked_fill_(outside, -torch.inf), dim=-1).mul_(UNIT).long()
    cumulative = masses.cumsum(-1)
    top_p = column(shaping.top_p, ordered)
    before = (cumulative - masses).double() < top_p * cumulative[:, -1:].double()
    return torch.where(top_p < 1.0, torch.minimum(before.sum(-1, keepdim=True).clamp_(min=1), count), count)


def without_later_ties(logits: Tensor, lowest: Tensor, count: Tensor) -> Tensor:
    """1.0 for the `count` highest of each row [rows, vocabulary], of equal ones the first ids, else 0.0."""
    above = logits > lowest
    equal = logits == lowest
    room = count - above.sum(-1, keepdim=True)
    return (above | (equal & (equal.cumsum(-1) <= room))).to(logits.dtype)
