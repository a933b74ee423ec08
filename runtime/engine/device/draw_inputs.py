# SPDX-License-Identifier: Apache-2.0
"""The numbers of a tile's draws and of the logprobs asked for, written by the host, and the way back: what the device
made of them, read by the host."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pontil.gpu_ops.draws.logprobs import most_likely, token_logprobs
from pontil.gpu_ops.draws.top_logits import top_logits
from pontil.gpu_ops.parameters.draws import DrawKinds
from pontil.runtime.engine.device.link import Words
from pontil.runtime.engine.device.results import Place, ResultBuffer
from pontil.runtime.engine.device.step_buffer import Array
from pontil.runtime.engine.sampling.logprobs import ranked
from pontil.runtime.engine.sampling.sampler import Draw, stated
from pontil.runtime.engine.sequences.token_logprobs import Entry, TokenLogprobs

MOST_LIKELY = (0.0, 0.0, 0.0, 0.0, 0.0)
DRAWN = -1
"""In the place of a token: the one that is drawn."""


def draw_sections(draws: Sequence[Draw], count: int) -> list[Array]:
    """The sections of `count` draws, those behind the given ones being none, in the order of DeviceDraws' fields."""
    row, numbers = np.full(count, -1, np.int32), np.zeros((5, count))
    row[: len(draws)] = [draw.row for draw in draws]
    numbers[:, : len(draws)] = np.array([numbers_of(draw) for draw in draws], np.float64).reshape(-1, 5).T
    temperature, top_k, top_p, min_p, number = numbers
    return [row, temperature, top_k.astype(np.int32), top_p, min_p, number]


def kinds_of(draws: Sequence[Draw]) -> DrawKinds:
    """Return which steps these draws need."""
    warm = [draw.sequence.params for draw in draws if not draw.sequence.params.greedy]
    return DrawKinds(bool(warm), any(one.top_k > 0 for one in warm), any(one.top_p < 1.0 for one in warm))


def numbers_of(draw: Draw) -> Sequence[float]:
    """Temperature, top_k, top_p, min_p and number of a draw, of a greedy one zeros."""
    params = draw.sequence.params
    if params.greedy:
        return MOST_LIKELY
    return params.temperature, params.top_k, params.top_p, params.min_p, draw.number


@dataclass(frozen=True, slots=True)
class Asked:
    """The logprobs that are asked for of one row of logits: of `token`, which is DRAWN or known, of the `named` ones,
    and of the `count` most likely ones. `draw` is the place of the row's draw."""

    row: int
    draw: int
    token: int
    count: int
    named: tuple[int, ...] = ()


def asked_of(draws: Sequence[Draw]) -> list[tuple[Draw, Asked]]:
    specs = []
    for place, draw in enumerate(draws):
        params = draw.sequence.params
        if params.logprobs is not None:
            named_ids = tuple(params.logprob_token_ids or ())
            specs.append((draw, Asked(draw.row, place, DRAWN, 0 if named_ids else params.logprobs, named_ids)))
    return specs


class LogprobPlan:
    """The logprobs that are asked for of some rows of logits. `sections` go to the device, as int64."""

    def __init__(self, asked: Sequence[Asked]) -> None:
        self.asked = asked
        self.most = max((spec.count for spec in asked), default=0)
        entries = [(spec.row, spec.draw, token) for spec in asked for token in (spec.token, *spec.named)]
        self.sections: list[Array] = [np.array(column, np.int64) for column in zip(*entries, strict=True)]
        self.sections.append(np.array([spec.row for spec in asked], np.int64))

    def compute(self, logits: Tensor, drawn: Tensor, sections: Sequence[Tensor]) -> list[Tensor]:
        """Return float32 logprobs and int32 ranks [entries], and int32 ids and float32 logprobs [asked, most] of the
        most likely ones."""
        row, place, token, likely = sections
        if drawn.numel():
            token = torch.where(token < 0, drawn[place].long(), token)
        logprobs, ranks = token_logprobs(logits, row, token)
        best = most_likely(logits, self.most)[likely] if self.most else row.new_zeros(len(likely), 0)
        best_logprobs = torch.log_softmax(logits, dim=-1)[likely].gather(1, best)
        return [logprobs, ranks.int(), best.int(), best_logprobs]

    def read(self, tokens: Sequence[int], results: Sequence[Array]) -> list[TokenLogprobs]:
        """Return what `compute` made, by the host. `tokens` are the drawn ones."""
        entry_logprobs, ranks = (result.tolist() for result in results[:2])
        tables = [ranked(*row) for row in zip(*(result.tolist() for result in results[2:]), strict=True)]
        logprobs, at = [], 0
        for spec, table in zip(self.asked, tables, strict=True):
            token = tokens[spec.draw] if spec.token == DRAWN else spec.token
            ids = (token, *spec.named)
            some: list[Entry] = list(
                zip(ids, entry_logprobs[at : at + len(ids)], ranks[at : at + len(ids)], strict=True)
            )
            at += len(ids)
            alternatives = sorted(some[1:], key=lambda entry: entry[2]) if spec.named else table[: spec.count]
            logprobs.append(TokenLogprobs((some[0], *alternatives)))
        return logprobs


class TopLogitsPlan:
    """The draws that ask for the highest logits of their rows. `sections` go to the device."""

    def __init__(self, draws: Sequence[Draw]) -> None:
        self.draws = [draw for draw in draws if draw.sequence.params.top_logits]
        self.rows = {row: place for place, row in enumerate(dict.fromkeys(draw.row for draw in self.draws))}
        self.sections: list[Array] = [np.array(list(self.rows), np.int64)] if self.draws else []
        self.place: Place | None = None

    def compute(self, logits: Tensor, sections: Sequence[Tensor], results: ResultBuffer) -> None:
        if self.draws:
            most = max(draw.sequence.params.top_logits for draw in self.draws)
            (self.place,) = results.add([top_logits(logits[sections[0]], most)])

    def read(self, words: Words) -> dict[Draw, bytes]:
        if self.place is None:
            return {}
        return stated(self.place.read(words), self.draws, [self.rows[draw.row] for draw in self.draws])


@dataclass(frozen=True, slots=True)
class PlacedLogprobs:
    """A plan, and the places of its results."""

    plan: LogprobPlan
    places: Sequence[Place]

    def read(self, tokens: Sequence[int], words: Words) -> list[TokenLogprobs]:
        return self.plan.read(tokens, [place.read(words) for place in self.places])
