# SPDX-License-Identifier: Apache-2.0
"""The parameters of draws from logits, as everything that draws takes them."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class DeviceDraws:
    """The numbers of each draw, all [draws] and in the memory of the logits. `row` int32: the row of logits that it is
    from, or -1 where nothing is drawn. `temperature` float64: 0 for the highest logit. `top_k` int32, and `top_p`,
    `min_p` and `uniform` float64, as in draws/sampling.py."""

    row: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    uniform: Tensor


@dataclass(frozen=True, slots=True)
class DrawKinds:
    """The kinds among some draws: any that is `random`, and among these any that is cut `by_count` (top_k) or `by_mass`
    (top_p)."""

    random: bool = True
    by_count: bool = True
    by_mass: bool = True


ALL_KINDS = DrawKinds()


@dataclass(frozen=True, slots=True, eq=False)
class RankedRows:
    """The ranks of rows' logits, as far as their projection onto the vocabulary has seen them: the id of each row's
    `highest` one, of equal ones the lowest, int64 [rows]; and where one rank has all of them, the highest of each group
    of ids that follow each other, float32 [rows, groups], with NaN taken for minus infinity."""

    highest: Tensor
    groups: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DrawnRows:
    """Rows to draw from where they are `tried` (bool [rows]), and where masses that are wrong by the share `doubt` of
    their sum could not cut others. logits and masses float32 [rows, vocabulary]; floors float32 [rows, 1]: the lowest
    logit that min_p keeps; top_p float64 [rows]. The logits have no NaN and a finite highest number in each row."""

    logits: Tensor
    masses: Tensor
    floors: Tensor
    top_p: Tensor
    tried: Tensor
    doubt: float
