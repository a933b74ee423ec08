# SPDX-License-Identifier: Apache-2.0
"""Sample the next token of each row with its sequence's parameters.

The order is: penalties, logit_bias, masks (grammar, allowed and bad ids, min_tokens), temperature, min_p, top_k, top_p.
Logprobs are of the raw logits.

Randomness is counter-based: the number a draw uses is a function of (seed, choice, position, group) alone, so the same
request draws the same tokens alone, in a batch, after a handoff and on replay.
"""

from __future__ import annotations

import hashlib
import struct
from collections import abc
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from pontil.gpu_ops.draws.sampling import Shaping, greedy, sample
from pontil.gpu_ops.draws.top_logits import top_logits
from pontil.gpu_ops.kernels.draws import draw_rows
from pontil.gpu_ops.kernels.draws import top_logits as top_logits_by
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.parameters.draws import RankedRows
from pontil.runtime.engine.sampling.logit_entries import (
    NO_EDITS,
    LogitEdits,
    LogitRow,
    bitmask_of,
    counted_edits,
    edited_rows,
    with_tokens,
)
from pontil.runtime.engine.sampling.logprobs import logprobs_of, logprobs_of_named
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.engine.sequences.token_logprobs import TokenLogprobs
from pontil.runtime.foundation.value import value
from pontil.runtime.sampling_params import SamplingParams

MASK_64 = (1 << 64) - 1
# The rows from which nothing may be drawn, of a batch without masks.
NOT_DEAD: Mapping[int, str] = MappingProxyType({})
COUNTER = struct.Struct("<QQQ")


@value(frozen=True, slots=True)
class Sampled:
    """The next tokens of one choice: its accepted `drafted` tokens, and one more. `count` comes from the tensor's
    shape, and `logprobs` is empty if the request asked for nothing about logits. If no token is allowed there are none,
    and `failure` gives the reason. `frames` has all codes of each token's frame, where a step makes several."""

    sequence: Sequence
    choice: int
    tokens: list[int]
    count: int
    logprobs: list[TokenLogprobs]
    drafted: int = 0
    failure: str | None = None
    frames: list[list[int]] = field(default_factory=list)


def uniform(seed: int, choice: int, position: int, group: int = 0) -> float:
    """A number in [0, 1) with 53 random bits. Where a position has several draws, each but the first is of a `group`
    above 0."""
    counter = COUNTER.pack(seed & MASK_64, choice, position)
    if group > 0:
        counter += struct.pack("<Q", group)
    bits = int.from_bytes(hashlib.blake2b(counter, digest_size=8).digest(), "little")
    return (bits >> 11) * 2.0**-53


@value(frozen=True, slots=True, eq=False)
class Draw:
    """One choice's next token, at a `position`, to be taken from a row of logits, if the drafts before it, `ahead` in
    number, are accepted; `guess` is the draft of this very token, where there is one."""

    row: int
    sequence: Sequence
    choice: int
    position: int
    ahead: int = 0
    guess: int | None = None

    @property
    def number(self) -> float:
        return uniform(self.sequence.params.seed, self.choice, self.position)


def sample_rows(
    logits: Tensor,
    sequences: list[Sequence],
    drafts: abc.Sequence[tuple[int, ...]] | None = None,
    ranked: RankedRows | None = None,
    kernels: KernelLibrary | None = None,
) -> list[Sampled]:
    """Sample from logits float32 [rows, vocabulary]: for each sequence the row of its newest token, which gives one for
    each of its `choices`, in order; then a row for each of its `drafts`, which gives the token that follows. `ranked`
    is what is known of their highest logits. With `kernels` draws are faster, and the same."""
    plan = plan_draws(sequences, drafts or [()] * len(sequences), logits.shape[1])
    return sample_planned(plan, logits, ranked, kernels)


def sample_planned(
    plan: DrawPlan, logits: Tensor, ranked: RankedRows | None = None, kernels: KernelLibrary | None = None
) -> list[Sampled]:
    """Sample as planned: all tokens before those that are drawn are known now."""
    edited_logits, dead = logits, NOT_DEAD
    if plan.edits_logits:
        edits, dead = plan.edits()
        edited_logits = edits.moved(lambda tensor: tensor.to(logits.device)).apply(logits)
    highest = ranked.highest if ranked is not None and edited_logits is logits else None
    ordered_draws, ids = draw_tokens(edited_logits, plan.draws, highest, kernels)
    # The only copy of ids to the host: streaming and stop checks need them as numbers.
    tokens = dict(zip(ordered_draws, ids.tolist(), strict=True))
    groups = None if ranked is None else ranked.groups
    logprobs_of = partial(logprobs_of_draws, logits, tokens=tokens, groups=groups, kernels=kernels)
    return plan.results(ordered_draws, ids, tokens, dead, logprobs_of)


@dataclass(frozen=True, slots=True)
class DrawPlan:
    """The draws from a batch's rows of logits, in the order of the rows: for each of the sequences one for its newest
    token, then one for each of its drafts. Of the `total` rows some are `edited` before; `counted` are the edits that
    follow from numbers of tokens. `edits_logits` says whether any row may have edits."""

    sequences: abc.Sequence[Sequence]
    drafts: abc.Sequence[tuple[int, ...]]
    draws: list[Draw]
    total: int
    edits_logits: bool
    edited: list[LogitRow] = field(default_factory=list)
    counted: LogitEdits = NO_EDITS

    def edits(self, left_out: Container[Sequence] = ()) -> tuple[LogitEdits, Mapping[int, str]]:
        """Return all edits, in host memory, and of the rows from which no token may be drawn the reason why not. All
        tokens of the sequences are known now. Some may be left out, whose draws nobody wants any more."""
        if not self.edits_logits:
            return NO_EDITS, NOT_DEAD
        bitmask = bitmask_of(self.sequences, self.drafts, left_out)
        rows = [row for row in self.edited if row[1] not in left_out] if left_out else self.edited
        return with_tokens(self.counted, rows, self.total, bitmask), bitmask.dead

    def results(
        self,
        ordered: list[Draw],
        drawn: Tensor,
        tokens: dict[Draw, int],
        dead: Mapping[int, str],
        logprobs_of: Callable[[list[Draw]], dict[Draw, TokenLogprobs]],
    ) -> list[Sampled]:
        """Return the accepted tokens. The draws were made in the order of `ordered`: `drawn` int64 [draws], wherever it
        is, and as numbers in `tokens`. Those from `dead` rows count as none. `logprobs_of` returns those of
        accepted ones."""
        runs = accepted(self.draws, tokens, dead)
        counts = counts_of(ordered, drawn, runs)
        showing = [draw for run in runs for draw in run.right if draw.sequence.params.shows_logits]
        logprobs = logprobs_of(showing) if showing else {}
        token_of = tokens.__getitem__
        return [
            Sampled(
                run.first.sequence,
                run.first.choice,
                list(map(token_of, run.right)),
                count,
                [logprobs[draw] for draw in run.right if draw in logprobs] if logprobs else [],
                run.drafted,
                None if run.right else dead[run.first.row],
            )
            for run, count in zip(runs, counts, strict=True)
        ]


def plan_draws(sequences: list[Sequence], drafts: abc.Sequence[tuple[int, ...]], vocab_size: int) -> DrawPlan:
    """Return the draws of the sequences' newest tokens and of what follows their drafts. Touches no logits, and needs
    only the number of tokens, which may be unknown ones."""
    slots, draws, edits_logits = list[tuple[Sequence, int]](), list[Draw](), False
    for sequence, draft in zip(sequences, drafts, strict=True):
        position, choices, rules = sequence.drafting.skipped + sequence.length, sequence.choices, sequence.rules
        for ahead, guess in enumerate((*draft, None)):
            for choice in choices:
                draws.append(Draw(len(slots), sequence, choice, position + ahead, ahead, guess))
            slots.append((sequence, ahead))
        if sequence.params.edits_logits or rules.make_guide is not None or rules.thinking is not None:
            edits_logits = True
    if not edits_logits:
        return DrawPlan(sequences, drafts, draws, len(slots), False)
    logit_rows = edited_rows([sequence for sequence, _ in slots], vocab_size)
    edits = counted_edits(logit_rows, [ahead for _, ahead in slots])
    return DrawPlan(sequences, drafts, draws, len(slots), True, logit_rows, edits)


@dataclass(slots=True)
class AcceptedRun:
    """The draws of one choice, which follow each other from the `first` on: those that were `right`, and how many
    tokens were `drafted`."""

    first: Draw
    right: list[Draw] = field(default_factory=list)
    drafted: int = 0


def accepted(draws: list[Draw], tokens: dict[Draw, int], dead: Container[int] = ()) -> list[AcceptedRun]:
    """Return each run's draws up to the first whose guess was wrong: the token drawn there is valid, and those behind
    it were computed from a wrong token. Draws from a dead row are dropped."""
    runs = list[AcceptedRun]()
    for draw in draws:
        if draw.ahead == 0:
            runs.append(AcceptedRun(draw))
        run = runs[-1]
        right = run.right
        if draw.guess is not None:
            run.drafted += 1
        if draw.row not in dead and draw.ahead == len(right) and (not right or right[-1].guess == tokens[right[-1]]):
            right.append(draw)
    return runs


def draw_tokens(
    logits: Tensor, draws: list[Draw], highest: Tensor | None = None, kernels: KernelLibrary | None = None
) -> tuple[list[Draw], Tensor]:
    """The draws in the order in which they were made, and their tokens int64 [draws], on the device."""
    certain = [draw for draw in draws if draw.sequence.params.greedy]
    random = [draw for draw in draws if not draw.sequence.params.greedy]
    if not random:
        return certain, pick_highest(logits, certain, highest)
    if not certain:
        return random, pick_at_random(logits, random, kernels)
    tokens = pick_highest(logits, certain, highest), pick_at_random(logits, random, kernels)
    return certain + random, torch.cat(tokens)


def counts_of(draws: list[Draw], tokens: Tensor, runs: abc.Sequence[AcceptedRun]) -> list[int]:
    """Count the accepted tokens of each run: ids [drawn] or [drawn, codebooks] have a position of their first axis for
    each draw. Reads no element of the tensor, so counting copies nothing from or to a device (A1, A2)."""
    assert tokens.shape[0] == len(draws), "each draw has a position"
    return [len(run.right) for run in runs]


def pick_highest(logits: Tensor, draws: list[Draw], highest: Tensor | None) -> Tensor:
    if highest is not None:
        return highest[torch.tensor([draw.row for draw in draws], device=logits.device)]
    some, row = rows_of(logits, draws)
    return greedy(some)[row]


def pick_at_random(logits: Tensor, draws: list[Draw], kernels: KernelLibrary | None) -> Tensor:
    some, row = rows_of(logits, draws)
    params = list({draw.row: draw.sequence.params for draw in draws}.values())
    numbers = torch.tensor([draw.number for draw in draws], dtype=torch.float64, device=logits.device)
    faster = None if kernels is None else partial(draw_rows, kernels)
    return sample(some, shaping_of(params), row, numbers, faster)


def logprobs_of_draws(
    logits: Tensor, draws: list[Draw], tokens: dict[Draw, int], groups: Tensor | None, kernels: KernelLibrary | None
) -> dict[Draw, TokenLogprobs]:
    asking = [draw for draw in draws if draw.sequence.params.logprobs is not None]
    named_draws = [draw for draw in asking if draw.sequence.params.logprob_token_ids]
    likely_draws = [draw for draw in asking if not draw.sequence.params.logprob_token_ids]
    logprobs = likely_of(logits, likely_draws, tokens) | named_of(logits, named_draws, tokens)
    stating_draws = [draw for draw in draws if draw.sequence.params.top_logits]
    return with_top_logits(logprobs, top_logits_of(logits, stating_draws, groups, kernels))


def top_logits_of(
    logits: Tensor, draws: list[Draw], groups: Tensor | None, kernels: KernelLibrary | None
) -> dict[Draw, bytes]:
    if not draws:
        return {}
    most = max(draw.sequence.params.top_logits for draw in draws)
    if kernels is None:
        some, row = rows_of(logits, draws)
        return stated(top_logits(some, most).numpy(), draws, row.tolist())
    numbers = list(dict.fromkeys([draw.row for draw in draws]))
    places = {number: place for place, number in enumerate(numbers)}
    rows = top_logits_by(kernels, logits, numbers, most, groups)
    return stated(rows.numpy(), draws, [places[draw.row] for draw in draws])


def stated(rows: Any, draws: Iterable[Draw], places: Iterable[int]) -> dict[Draw, bytes]:
    """Return the highest logits of draws whose rows are at these places of int32 [rows, count, 2], in bytes: of each as
    many as its request asks for."""
    told, entry = rows.astype("<i4", copy=False).tobytes(), rows.itemsize * rows.shape[2]
    starts = [place * rows.shape[1] * entry for place in places]
    return {
        draw: told[start : start + entry * draw.sequence.params.top_logits]
        for draw, start in zip(draws, starts, strict=True)
    }


def with_top_logits(logprobs: dict[Draw, TokenLogprobs], top_logits: Mapping[Draw, bytes]) -> dict[Draw, TokenLogprobs]:
    """Return the logprobs of draws together with the highest logits of those that ask for them."""
    return logprobs | {
        draw: TokenLogprobs(logprobs[draw].entries if draw in logprobs else (), told)
        for draw, told in top_logits.items()
    }


def likely_of(logits: Tensor, draws: list[Draw], tokens: dict[Draw, int]) -> dict[Draw, TokenLogprobs]:
    if not draws:
        return {}
    counts = [draw.sequence.params.logprobs or 0 for draw in draws]
    return dict(zip(draws, logprobs_of(*drawn_rows(logits, draws, tokens), counts), strict=True))


def named_of(logits: Tensor, draws: list[Draw], tokens: dict[Draw, int]) -> dict[Draw, TokenLogprobs]:
    if not draws:
        return {}
    named_ids = [draw.sequence.params.logprob_token_ids for draw in draws]
    return dict(zip(draws, logprobs_of_named(*drawn_rows(logits, draws, tokens), named_ids), strict=True))


def drawn_rows(logits: Tensor, draws: list[Draw], tokens: dict[Draw, int]) -> tuple[Tensor, Tensor, Tensor]:
    """The rows that are drawn from, for each draw its place among them, and the token that was drawn."""
    return *rows_of(logits, draws), torch.tensor([tokens[draw] for draw in draws], device=logits.device)


def rows_of(logits: Tensor, draws: list[Draw]) -> tuple[Tensor, Tensor]:
    """The distinct rows that are drawn from, in order, and for each draw its place among them, int64 [draws]."""
    places = {row: place for place, row in enumerate(dict.fromkeys(draw.row for draw in draws))}
    index = torch.tensor([places[draw.row] for draw in draws], device=logits.device)
    if len(places) == len(logits):
        return logits, index
    return logits[torch.tensor(list(places), device=logits.device)], index


def shaping_of(params: list[SamplingParams]) -> Shaping:
    return Shaping(
        torch.tensor([row_params.temperature for row_params in params], dtype=torch.float64),
        torch.tensor([row_params.top_k for row_params in params], dtype=torch.int64),
        torch.tensor([row_params.top_p for row_params in params], dtype=torch.float64),
        torch.tensor([row_params.min_p for row_params in params], dtype=torch.float64),
    )
