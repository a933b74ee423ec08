# SPDX-License-Identifier: Apache-2.0
"""Collect the logit edits of a batch's sequences into one list of entries for each kind of edit."""

import torch
from torch import Tensor

from pontil.gpu_ops.logit_edits import add_bias, allow_bits, allow_only, forbid, penalize
from pontil.runtime.engine.bitmask import NO_MASKS, Bitmask
from pontil.runtime.engine.sampling_state import SamplingState, edits_logits
from pontil.runtime.engine.sequence import Sequence

LogitRow = tuple[int, Sequence, SamplingState]


def edit(
    logits: Tensor, sequences: list[Sequence], ahead: list[int] | None = None, bitmask: Bitmask = NO_MASKS
) -> Tensor:
    """Return the logits, float32 [rows, vocabulary], as the sequences' parameters change them: penalties, then biases,
    then masks, which for sequences with a grammar stand in the `bitmask`. The given logits are never written to; they
    are returned themselves if nothing changes. `ahead` gives the number of drafts before each row; a sequence with
    penalties has none."""
    rows = [(row, one, state_of(one, logits)) for row, one in enumerate(sequences) if edits_logits(one.params)]
    if not rows and not bitmask.rows:
        return logits
    edited = logits.clone()
    penalize_rows(edited, [one for one in rows if one[2].counts is not None], len(sequences))
    bias_rows(edited, [one for one in rows if len(one[2].bias)])
    mask_rows(edited, [one for one in rows if one[1].guide is None], ahead or [0] * len(sequences))
    if bitmask.rows:
        allow_bits(edited, torch.tensor(bitmask.rows, device=logits.device), bitmask.words.to(logits.device))
    return edited


def penalize_rows(logits: Tensor, rows: list[LogitRow], total: int) -> None:
    factors = [(1.0, 0.0, 0.0)] * total
    counted = []
    for row, sequence, state in rows:
        params = sequence.params
        factors[row] = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
        if state.counts is not None:
            counted.append((row, *state.counts.follow(sequence.output)))
    if counted:
        row_of, token = entries([(row, ids) for row, ids, _ in counted])
        count = torch.cat([counts for _, _, counts in counted])
        penalize(logits, row_of, token, count, torch.tensor(factors, device=logits.device))


def bias_rows(logits: Tensor, rows: list[LogitRow]) -> None:
    if rows:
        row_of, token = entries([(row, state.bias_ids) for row, _, state in rows])
        add_bias(logits, row_of, token, torch.cat([state.bias for _, _, state in rows]))


def mask_rows(logits: Tensor, rows: list[LogitRow], ahead: list[int]) -> None:
    masks = [(row, state.mask(len(sequence.output) + ahead[row])) for row, sequence, state in rows]
    for only, apply in ((True, allow_only), (False, forbid)):
        some = [(row, mask.ids) for row, mask in masks if mask is not None and mask.only is only]
        if some:
            apply(logits, *entries(some))


def entries(lists: list[tuple[int, Tensor]]) -> tuple[Tensor, Tensor]:
    """Merge rows with their ids into (row, id) of every entry, both int64 [entries]."""
    device = lists[0][1].device
    rows = torch.tensor([row for row, _ in lists], device=device)
    counts = torch.tensor([len(ids) for _, ids in lists], device=device)
    return rows.repeat_interleave(counts), torch.cat([ids for _, ids in lists])


def state_of(sequence: Sequence, logits: Tensor) -> SamplingState:
    if sequence.sampling_state is None:
        # Rows that are no ids have none to be penalized for.
        prompt = sequence.prompt if sequence.inputs is None else []
        sequence.sampling_state = SamplingState(
            sequence.params, prompt, sequence.stop_token_ids, logits.shape[1], logits.device
        )
    return sequence.sampling_state
