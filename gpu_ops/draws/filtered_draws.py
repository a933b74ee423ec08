# SPDX-License-Identifier: Apache-2.0
"""Draws behind the filters of FlashInfer (Ye et al., 2025), of the package flashinfer-python (decision 124)."""

import importlib
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pontil.gpu_ops.draws.sampling import LEAST_TEMPERATURE, DrawIds, draw, finite_at_best
from pontil.gpu_ops.parameters.draws import ALL_KINDS, DeviceDraws, DrawKinds

DRAWS = "draws=flashinfer"
# Draws of which the filters see the rows at a time: each takes a few copies of its row.
TOGETHER = 64
UNCUT = DrawKinds(by_count=False, by_mass=False)
# Rows of a comparison, how many of them may be cut where it is nearly a tie, and the draws of each.
COMPARED, NEARLY_TIES, EACH = 24, 1, 32
# The likely ids of such a row, and the logit of all others.
LIKELY, NO_MASS = 300, -40.0


class FilteredDraws:
    """Draws like `sampling.draw`, whose cuts by number (top_k) and by mass (top_p) the package makes. Of what it leaves
    the same kernels draw, with the same numbers. Of equal logits at a cut all stay. Masses are summed as float32."""

    @classmethod
    def of_package(cls) -> "FilteredDraws":
        """Open the package. Raises ImportError, or what one for another machine raises."""
        return cls(importlib.import_module("flashinfer"))

    def __init__(self, package: Any, whole: DrawIds = draw) -> None:
        self.mask_logits, self.renorm_probs = package.sampling.top_k_mask_logits, package.sampling.top_p_renorm_probs
        self.whole = whole

    def __call__(self, logits: Tensor, draws: DeviceDraws, out: Tensor, kinds: DrawKinds = ALL_KINDS) -> None:
        if not (kinds.by_count or kinds.by_mass):
            self.whole(logits, draws, out, kinds)
            return
        for start in range(0, len(draws.row), TOGETHER):
            some = slice(start, start + TOGETHER)
            self.draw_some(logits, part_of(draws, some), out[some], kinds)

    def draw_some(self, logits: Tensor, draws: DeviceDraws, out: Tensor, kinds: DrawKinds) -> None:
        kept = self.filtered(logits.index_select(0, draws.row.clamp(min=0)), draws, kinds)
        own = torch.arange(len(draws.row), dtype=torch.int32, device=logits.device)
        uncut = replace(
            draws,
            row=torch.where(draws.row < 0, -1, own),
            top_k=torch.zeros_like(draws.top_k),
            top_p=torch.ones_like(draws.top_p),
            min_p=torch.zeros_like(draws.min_p),
        )
        self.whole(kept, uncut, out, UNCUT)

    def filtered(self, logits: Tensor, draws: DeviceDraws, kinds: DrawKinds) -> Tensor:
        """A row of logits for each draw, minus infinity in the place of those that are cut."""
        logits = finite_at_best(logits)
        highest = logits.amax(-1, keepdim=True)
        warmth = draws.temperature.clamp(min=LEAST_TEMPERATURE)
        floors = (highest.double() + (draws.min_p.log() * warmth).unsqueeze(1)).float()
        kept = logits.masked_fill_(logits < floors, -torch.inf)
        if kinds.by_count:
            kept = self.mask_logits(kept, torch.where(draws.top_k > 0, draws.top_k, kept.shape[1]))
        if kinds.by_mass:
            masses = ((kept - highest) / warmth.float().unsqueeze(1)).softmax(-1)
            left = self.renorm_probs(masses, draws.top_p.float(), is_deterministic=True)
            kept = kept.masked_fill((left == 0.0) & (draws.top_p < 1.0).unsqueeze(1), -torch.inf)
        return kept

    def differing(self, vocabulary: int, device: torch.device) -> int:
        """The number of rows, of COMPARED with cuts of every kind, of which any of EACH ids is not what our kernels
        draw."""
        numbers = torch.Generator().manual_seed(3)
        logits = 2 * torch.randn(COMPARED, vocabulary, generator=numbers)
        # Each of few ids has far more mass than is lost by rounding a sum: cuts are seldom nearly ties.
        unlikely = torch.rand(COMPARED, vocabulary, generator=numbers) * vocabulary > LIKELY
        logits = logits.masked_fill_(unlikely, NO_MASS).to(device)
        turns, row = torch.arange(COMPARED), torch.arange(COMPARED).repeat_interleave(EACH)
        whole = torch.where(turns % 3 == 0, 0, 1 + 2 * turns).int()
        mass = torch.where(turns % 4 == 1, 1.0, 0.3 + 0.6 * turns / COMPARED).double()
        floor = torch.where(turns % 5 == 0, 0.02, 0.0).double()
        warmth = (0.7 + turns % 7 / 8).double()
        uniform = ((torch.arange(EACH) + 0.5) / EACH).double().repeat(COMPARED)
        cuts = (one[row] for one in (warmth, whole, mass, floor))
        draws = DeviceDraws(*(one.to(device) for one in (row.int(), *cuts, uniform)))
        results = [torch.empty_like(draws.row) for _ in range(2)]
        self(logits, draws, results[0])
        self.whole(logits, draws, results[1], ALL_KINDS)
        return int((results[0] != results[1]).view(COMPARED, EACH).any(1).sum())


def part_of(draws: DeviceDraws, some: slice) -> DeviceDraws:
    fields = draws.row, draws.temperature, draws.top_k, draws.top_p, draws.min_p, draws.uniform
    return DeviceDraws(*(one[some] for one in fields))
