# SPDX-License-Identifier: Apache-2.0
"""Draws whose numbers are where the logits are, so that no step waits to make them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pontil.gpu_ops.draws.sampling import Shaping, greedy, sample


@dataclass(frozen=True, slots=True)
class DeviceDraws:
    """The numbers of each draw, all [draws] and in the memory of the logits. `row` int32: the row of logits that it is
    from, or -1 where nothing is drawn. `temperature` float64: 0 for the highest logit. `top_k` int32, and `top_p`,
    `min_p` and `uniform` float64, as in `Shaping` and `sample`."""

    row: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    uniform: Tensor


def draw(logits: Tensor, draws: DeviceDraws, out: Tensor) -> None:
    """Write the ids that are drawn from logits float32 [rows, vocabulary] into `out` int32 [draws]; those of `greedy`
    and `sample`, but for the rounding of exponentials. Where nothing is drawn `out` stays as it is."""
    if logits.device.type != "cpu":
        from pontil.gpu_ops.triton.sampling import draw as draw_there

        draw_there(
            logits, draws.row, draws.temperature, draws.top_k, draws.top_p, draws.min_p, draws.uniform, out
        )  # fmt: skip
        return
    real, certain = draws.row >= 0, draws.temperature == 0.0
    for some, take in ((real & certain, highest_ids), (real & ~certain, random_ids)):
        places = some.nonzero().squeeze(1)
        if len(places):
            out[places] = take(logits, draws, places).int()


def highest_ids(logits: Tensor, draws: DeviceDraws, places: Tensor) -> Tensor:
    return greedy(logits[draws.row[places].long()])


def random_ids(logits: Tensor, draws: DeviceDraws, places: Tensor) -> Tensor:
    rows = draws.row[places].long()
    shaping = Shaping(draws.temperature[places], draws.top_k[places].long(), draws.top_p[places], draws.min_p[places])
    return sample(logits[rows], shaping, torch.arange(len(rows)), draws.uniform[places])
