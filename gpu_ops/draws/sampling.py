# SPDX-License-Identifier: Apache-2.0
"""Sampling of token ids from logits. Each row is drawn alone, from a number that was fixed before the batch was formed.

A row's tokens are a function of its own logits, parameters and number, to the bit (rule C16), for three reasons: ids
are kept by a threshold on the logits themselves, which does not depend on the way it was found; masses are integers,
whose sum is the same in every order; and candidates are taken by rising id, so that nothing need be sorted where
nothing is cut.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from pontil.gpu_ops.draws.nucleus import DOUBT, Nucleus, nucleus
from pontil.gpu_ops.parameters.draws import ALL_KINDS, DeviceDraws, DrawKinds, DrawnRows

# Draws up to which a device divides each of a large row over several programs.
FEW_DRAWS = 32
# Rows whose top_k is at most this look at this many highest logits only.
NARROW = 128
# Probabilities become integers of this unit: their sum over a row stays far below 2^53.
UNIT = 2.0**48
# The smallest divisor of logits: 0 / 0 is no probability, and some processors treat smaller numbers as 0.
LEAST_TEMPERATURE = torch.finfo(torch.float32).tiny
# Logits per piece, chosen so that a piece and its intermediate results stay in the processor's cache.
PIECE = 1 << 18

# The parameters and result of `draw_rows` in `kernels.draws`, but for the library.
RowDraws = Callable[[DrawnRows, Tensor, Tensor], tuple[Tensor, Tensor]]
# The parameters of `draw`.
DrawIds = Callable[[Tensor, DeviceDraws, Tensor, DrawKinds], None]


def greedy(logits: Tensor) -> Tensor:
    """The id of the highest logit of each row [rows, vocabulary]; of equal ones the lowest id. NaN is the lowest."""
    if logits.device.type != "cpu":
        return drawn_there(logits, None, torch.arange(len(logits), device=logits.device), None)
    ids = argmax(logits)
    # argmax takes NaN for the highest, and a mask that is added to infinity leaves a NaN.
    if bool(logits.gather(1, ids.unsqueeze(1)).isnan().any()):
        return argmax(without_nan(logits))
    return ids


def argmax(logits: Tensor) -> Tensor:
    # torch's argmax takes ten times as long.
    highest: Tensor = torch.from_numpy(logits.numpy().argmax(axis=-1))
    return highest


def without_nan(logits: Tensor) -> Tensor:
    return torch.where(logits.isnan(), -torch.inf, logits)


@dataclass(frozen=True, slots=True)
class Shaping:
    """The parameters that shape each row's distribution, one value a row, in host memory, so that sorting rows by kind
    waits for no device. temperature float64 > 0, at least LEAST_TEMPERATURE to the draw; top_k int64, 0: all; top_p
    float64 in (0, 1]; min_p float64 in [0, 1]."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    def rows(self, chosen: Tensor | slice) -> "Shaping":
        return Shaping(self.temperature[chosen], self.top_k[chosen], self.top_p[chosen], self.min_p[chosen])


def sample(logits: Tensor, shaping: Shaping, row: Tensor, uniform: Tensor, draw_rows: RowDraws | None = None) -> Tensor:
    """Draw ids by inversion of the cumulative distribution: the first id whose cumulative mass exceeds the number's
    share of the mass that is kept.

    logits float32 [rows, vocabulary]; draw d is from row `row[d]` (int64 [draws]) with the number `uniform[d]` in [0,
    1) (float64 [draws]). The order is vLLM's: temperature, min_p, top_k, then top_p of what remains. Of equal logits at
    a cut the lowest ids stay. Ids with minus infinity or NaN are never drawn, unless the whole row has only these;
    where some logits are plus infinity one of them is drawn. Returns int64 [draws]. `draw_rows` does it faster where it
    can; the ids are the same.
    """
    if logits.device.type != "cpu":
        return drawn_there(logits, shaping, row, uniform)
    tokens = torch.empty_like(row)
    nuclei: dict[int, Nucleus] = {}
    step = max(1, PIECE // logits.shape[1])
    for start in range(0, len(logits), step):
        some = slice(start, start + step)
        piece_shaping = shaping.rows(some)
        piece, highest, masses = probabilities(logits[some], piece_shaping)
        piece_draws, place = draws_from(torch.arange(start, start + len(piece)), row, len(logits))
        if draw_rows is None:
            row_nuclei = nuclei_of(piece, highest, masses, piece_shaping)
            nuclei |= {start + number: row_nucleus for number, row_nucleus in row_nuclei.items()}
            done_rows = torch.tensor([number in row_nuclei for number in range(len(masses))])
        else:
            floors, tried_rows = lowest_by_min_p(highest, piece_shaping), piece_shaping.top_k == 0
            rows = DrawnRows(piece, masses, floors, piece_shaping.top_p, tried_rows, DOUBT)
            tokens[piece_draws], done_rows = draw_rows(rows, place, uniform[piece_draws])
        other_rows = (~done_rows).nonzero().squeeze(1)
        if not len(other_rows):
            continue
        if len(other_rows) < len(piece):
            piece, highest, masses = piece[other_rows], highest[other_rows], masses[other_rows]
            piece_shaping = piece_shaping.rows(other_rows)
        mine, place = draws_from(start + other_rows, row, len(logits))
        if not len(mine):
            continue
        cumulative = cumulative_masses(piece, highest, masses, piece_shaping)
        tokens[mine] = invert(cumulative, place, uniform[mine])
    if nuclei:
        mine, place = draws_from(torch.tensor(list(nuclei)), row, len(logits))
        tokens[mine] = invert_nuclei(list(nuclei.values()), place, uniform[mine])
    return tokens


def draw(logits: Tensor, draws: DeviceDraws, out: Tensor, kinds: DrawKinds = ALL_KINDS) -> None:
    """Write the ids that are drawn from logits float32 [rows, vocabulary] into `out` int32 [draws]; those of `greedy`
    and `sample`, but for the rounding of exponentials. Where nothing is drawn `out` stays as it is. All draws are of
    these `kinds`, or of fewer."""
    if logits.device.type != "cpu":
        from pontil.gpu_ops.triton import chunked_sampling, sampling

        if len(draws.row) <= FEW_DRAWS and logits.shape[1] > chunked_sampling.CHUNK:
            chunked_sampling.draw(logits, draws, out, kinds)
        else:
            sampling.draw(logits, draws, out)
        return
    real, certain = draws.row >= 0, draws.temperature == 0.0
    for some, take in ((real & certain, highest_ids), (real & ~certain, random_ids)):
        places = some.nonzero().squeeze(1)
        if len(places):
            out[places] = take(logits, draws, places).int()


def prepare(vocabulary: int, device: torch.device) -> None:
    """Compile what draws from few rows of so many logits start there, of every kind, by drawing from none."""
    from pontil.gpu_ops.triton import chunked_sampling

    if vocabulary <= chunked_sampling.CHUNK:
        return
    logits, row = torch.empty(1, vocabulary, device=device), torch.full((1,), -1, dtype=torch.int32, device=device)
    real = torch.zeros(1, dtype=torch.float64, device=device)
    for by_count, by_mass in ((False, False), (True, False), (False, True), (True, True)):
        kinds = DrawKinds(True, by_count, by_mass)
        chunked_sampling.draw(logits, DeviceDraws(row, real, row, real, real, real), row, kinds)
    chunked_sampling.draw(logits, DeviceDraws(row, real, row, real, real, real), row, DrawKinds(False, False, False))


def highest_ids(logits: Tensor, draws: DeviceDraws, places: Tensor) -> Tensor:
    return greedy(logits[draws.row[places].long()])


def random_ids(logits: Tensor, draws: DeviceDraws, places: Tensor) -> Tensor:
    rows = draws.row[places].long()
    shaping = Shaping(draws.temperature[places], draws.top_k[places].long(), draws.top_p[places], draws.min_p[places])
    return sample(logits[rows], shaping, torch.arange(len(rows)), draws.uniform[places])


def drawn_there(logits: Tensor, shaping: Shaping | None, row: Tensor, uniform: Tensor | None) -> Tensor:
    """`sample` on a device, or `greedy` without a shaping. The parameters are copied there."""
    whole, real = row.new_zeros(len(row), dtype=torch.int32), row.new_zeros(len(row), dtype=torch.float64)
    out = torch.empty_like(whole)
    if shaping is None or uniform is None:
        draws = DeviceDraws(row.int(), real, whole, real, real, real)
    else:
        temperature, top_k, top_p, min_p = (
            field.to(logits.device)[row] for field in (shaping.temperature, shaping.top_k, shaping.top_p, shaping.min_p)
        )
        draws = DeviceDraws(row.int(), temperature, top_k.int(), top_p, min_p, uniform)
    draw(logits, draws, out)
    return out.long()


def draws_from(some: Tensor, row: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """The numbers of the draws from some of the rows, and the place of each one's row among these, int64 [draws of
    theirs]."""
    places = torch.full((rows,), -1)
    places[some] = torch.arange(len(some))
    place = places[row]
    mine = (place >= 0).nonzero().squeeze(1)
    return mine, place[mine]


def probabilities(logits: Tensor, shaping: Shaping) -> tuple[Tensor, Tensor, Tensor]:
    """The logits [rows, vocabulary], finite ones in place of those that allow no probabilities; the highest of each row
    [rows, 1]; and the probabilities of all ids float32 [rows, vocabulary]."""
    highest = logits.amax(dim=-1, keepdim=True)
    if not bool(highest.isfinite().all()):
        logits = finite_at_best(logits)
        highest = logits.amax(dim=-1, keepdim=True)
    scaled_logits = (logits - highest).div_(divisor(shaping, logits))
    return logits, highest, torch.softmax(scaled_logits, dim=-1)


def cumulative_masses(logits: Tensor, highest: Tensor, masses: Tensor, shaping: Shaping) -> Tensor:
    """int64 [rows, vocabulary]: for every id the mass of the kept ids up to and including it. Overwrites the masses."""
    cut_rows(logits, highest, masses, shaping)
    return whole(masses).cumsum(-1)


def nuclei_of(logits: Tensor, highest: Tensor, masses: Tensor, shaping: Shaping) -> dict[int, Nucleus]:
    """The rows that only top_p and perhaps min_p cut, where the cut is beyond doubt. Sets masses that min_p cuts to
    0."""
    top_p = shaping.top_p.tolist()
    numbers = [number for number, top_k in enumerate(shaping.top_k.tolist()) if top_k == 0 and top_p[number] < 1.0]
    if not numbers:
        return {}
    rows = torch.tensor(numbers)
    floor_rows(logits, highest, masses, shaping, rows[shaping.min_p[rows] > 0.0])
    totals = masses.sum(-1, dtype=torch.float64).tolist()
    values, weights = logits.numpy(), masses.numpy()
    nuclei = {number: nucleus(values[number], weights[number], totals[number], top_p[number]) for number in numbers}
    return {number: row_nucleus for number, row_nucleus in nuclei.items() if row_nucleus is not None}


def invert_nuclei(nuclei: list[Nucleus], row: Tensor, uniform: Tensor) -> Tensor:
    """`invert` for rows [nuclei] of which the kept ids are known: int64 [draws]."""
    # The rows' masses stand one after the other, and so do their numbers' shares.
    ends = torch.tensor([len(row_nucleus.ids) for row_nucleus in nuclei]).cumsum(0)
    cumulative = whole(torch.from_numpy(numpy.concatenate([row_nucleus.masses for row_nucleus in nuclei]))).cumsum(0)
    end_masses = cumulative[ends - 1]
    total = end_masses.diff(prepend=end_masses.new_zeros(1))
    places = torch.searchsorted(cumulative, (end_masses - total)[row] + shares(total[row], uniform), right=True)
    return torch.from_numpy(numpy.concatenate([row_nucleus.ids for row_nucleus in nuclei]))[places]


def invert(cumulative: Tensor, row: Tensor, uniform: Tensor) -> Tensor:
    """The first id in each draw's row whose cumulative mass exceeds the number's share of the whole: int64 [draws]."""
    target = shares(cumulative[row, -1], uniform)
    # All draws of a row stand in one row of targets, one place each, so that no row of masses is copied.
    sorted_rows, order = row.sort(stable=True)
    place = torch.empty_like(row)
    place[order] = torch.arange(len(row), device=row.device) - torch.searchsorted(sorted_rows, sorted_rows)
    targets = target.new_zeros(len(cumulative), int(place.max()) + 1)
    targets[row, place] = target
    ids = torch.searchsorted(cumulative, targets, right=True)[row, place]
    return ids.clamp_(max=cumulative.shape[1] - 1)


def shares(total: Tensor, uniform: Tensor) -> Tensor:
    """Each number's share of the whole mass, int64 like `total` [draws]."""
    # Rounding up to the whole mass would point past the last id.
    return torch.minimum((uniform * total.double()).long(), total - 1)


def finite_at_best(logits: Tensor) -> Tensor:
    """The logits with a finite highest one in each row: infinite ones become equal, and so do all of a row in which
    every id is forbidden."""
    logits = without_nan(logits)
    highest = logits.amax(dim=-1, keepdim=True)
    alike = torch.where(logits == highest, 0.0, -torch.inf)
    return torch.where(highest.isfinite(), logits, alike)


def divisor(shaping: Shaping, like: Tensor) -> Tensor:
    """The temperatures, float32 [rows, 1]."""
    return column(shaping.temperature.clamp(min=LEAST_TEMPERATURE), like).float()


def whole(probabilities: Tensor) -> Tensor:
    """Scale by UNIT in place, then round to int64."""
    return probabilities.mul_(UNIT).long()


def column(values: Tensor, like: Tensor) -> Tensor:
    """Move values [rows] from host memory to [rows, 1] on the device of `like`."""
    return values.to(like.device).unsqueeze(1)


def cut_rows(logits: Tensor, highest: Tensor, masses: Tensor, shaping: Shaping) -> None:
    """Set the masses of ids that are not kept to 0, in place. Rows are grouped by their own parameters: those that need
    no order, those that need the order of the first NARROW places, and those that need all of it."""
    ranked_rows = (shaping.top_k > 0) | (shaping.top_p < 1.0)
    narrow = (shaping.top_k > 0) & (shaping.top_k <= NARROW)
    vocabulary = logits.shape[1]
    for some, width in ((narrow, min(NARROW, vocabulary)), (ranked_rows & ~narrow, vocabulary)):
        if some.any():
            keep_ranked(logits, highest, masses, shaping, some.nonzero().squeeze(1), width)
    floor_rows(logits, highest, masses, shaping, (~ranked_rows & (shaping.min_p > 0.0)).nonzero().squeeze(1))


def floor_rows(logits: Tensor, highest: Tensor, masses: Tensor, shaping: Shaping, numbers: Tensor) -> None:
    """Set the masses of ids that min_p cuts to 0, in place, in the rows whose numbers are in `numbers`."""
    if len(numbers) == len(masses):
        masses.mul_(logits.clone().ge_(lowest_by_min_p(highest, shaping)))
    elif len(numbers):
        rows = numbers.to(logits.device)
        masses[rows] *= logits[rows].ge_(lowest_by_min_p(highest[rows], shaping.rows(numbers)))


def lowest_by_min_p(highest: Tensor, shaping: Shaping) -> Tensor:
    """The logit [rows, 1] whose probability is min_p times the highest one; minus infinity for min_p 0."""
    below = shaping.min_p.log() * shaping.temperature
    return (highest.double() + column(below, highest)).float()


def keep_ranked(logits: Tensor, highest: Tensor, masses: Tensor, shaping: Shaping, numbers: Tensor, width: int) -> None:
    """Cut the chosen rows by their `width` highest logits, in falling order."""
    rows, row_shaping = numbers.to(logits.device), shaping.rows(numbers)
    candidates = logits[rows]
    top_logits = descending(candidates, width)
    count = kept_places(top_logits, highest[rows], row_shaping)
    lowest = top_logits.gather(1, count - 1)
    kept_mask = candidates.clone().ge_(lowest)
    tie_rows = (kept_mask.sum(-1, keepdim=True) > count).squeeze(1)
    if bool(tie_rows.any()):
        kept_mask[tie_rows] = without_later_ties(candidates[tie_rows], lowest[tie_rows], count[tie_rows])
    if len(rows) == len(masses):
        masses.mul_(kept_mask)
    else:
        masses[rows] *= kept_mask


def descending(logits: Tensor, width: int) -> Tensor:
    """The `width` highest values of each row, in falling order, without their indices."""
    if width < logits.shape[1]:
        return logits.topk(width).values
    # torch's sort also moves indices, and takes thirty times as long.
    negative: Tensor = torch.from_numpy(numpy.sort(logits.neg().numpy(), axis=-1))
    return negative.neg_()


def kept_places(top_logits: Tensor, highest: Tensor, shaping: Shaping) -> Tensor:
    """The number of ordered logits [rows, width] that stay: int64 [rows, 1], at least 1."""
    width = top_logits.shape[1]
    top_k = torch.where(shaping.top_k > 0, shaping.top_k.clamp(max=width), width)
    count = column(top_k, top_logits)
    if bool((shaping.min_p > 0.0).any()):
        above = top_logits.clone().ge_(lowest_by_min_p(highest, shaping)).sum(-1, keepdim=True).long()
        count = torch.minimum(count, above.clamp_(min=1))
    if not bool((shaping.top_p < 1.0).any()):
        return count
    scaled_logits = (top_logits - highest).div_(divisor(shaping, top_logits))
    if bool((count < width).any()):
        scaled_logits.masked_fill_(torch.arange(width, device=top_logits.device) >= count, -torch.inf)
    cumulative = whole(torch.softmax(scaled_logits, dim=-1)).cumsum(-1)
    top_p = column(shaping.top_p, top_logits)
    # A place stays when the mass before it is less than this. A whole number is less than a fraction exactly when it is
    # less than the next whole number.
    enough = (top_p * cumulative[:, -1:].double()).ceil().long()
    reaching = torch.searchsorted(cumulative, enough) + 1
    return torch.where(top_p < 1.0, torch.minimum(reaching, count), count)


def without_later_ties(logits: Tensor, lowest: Tensor, count: Tensor) -> Tensor:
    """1.0 for the `count` highest logits of each row [rows, vocabulary], of equal ones the first ids, else 0.0."""
    above = logits > lowest
    equal = logits == lowest
    room = count - above.sum(-1, keepdim=True)
    return (above | (equal & (equal.cumsum(-1) <= room))).to(logits.dtype)
