# SPDX-License-Identifier: Apache-2.0
"""The edits that one sequence's parameters make to its logits, in a form that can be batched.

All of it is a function of the parameters and the tokens, so it can be rebuilt anywhere: after a handoff or on replay.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pontil.runtime.sampling_params import SamplingParams


class TokenCounts:
    """The number of times each token was generated, and the ids in the prompt: the first `size` of `ids` and `counts`.

    `known` output tokens have been counted; `follow` counts those that came since. Tokens of the prompt that were never
    generated are there with count 0 if `with_prompt` asks for them.
    """

    def __init__(self, prompt: list[int], with_prompt: bool, device: torch.device) -> None:
        ids = list(dict.fromkeys(prompt)) if with_prompt else []
        self.places = {token: place for place, token in enumerate(ids)}
        self.ids = torch.tensor(ids, dtype=torch.int64, device=device)
        self.counts = torch.zeros(len(ids), device=device)
        self.known = 0

    @property
    def size(self) -> int:
        return len(self.places)

    def follow(self, output: list[int]) -> tuple[Tensor, Tensor]:
        """ids int64 and counts float32, both [distinct tokens], of the whole output."""
        new = [self.places.setdefault(token, len(self.places)) for token in output[self.known :]]
        if self.size > len(self.ids):
            self.grow(2 * self.size)
        if new:
            places = torch.tensor(new, device=self.ids.device)
            self.ids[places] = torch.tensor(output[self.known :], device=self.ids.device)
            self.counts.index_put_((places,), torch.ones(len(new), device=self.ids.device), accumulate=True)
        self.known = len(output)
        return self.ids[: self.size], self.counts[: self.size]

    def grow(self, capacity: int) -> None:
        more = capacity - len(self.ids)
        self.ids = torch.nn.functional.pad(self.ids, (0, more))
        self.counts = torch.nn.functional.pad(self.counts, (0, more))


@dataclass(frozen=True, slots=True)
class Mask:
    """Either the only ids [some] that may be drawn (`only`), or ids that must not be."""

    only: bool
    ids: Tensor


class SamplingState:
    """A sequence's share of a batch's edits. Not needed by a sequence whose parameters change no logits."""

    def __init__(
        self, params: SamplingParams, prompt: list[int], stops: frozenset[int], vocab_size: int, device: torch.device
    ) -> None:
        self.min_tokens = params.min_tokens
        self.bias_ids = torch.tensor([token for token, _ in params.logit_bias], dtype=torch.int64, device=device)
        self.bias = torch.tensor([bias for _, bias in params.logit_bias], dtype=torch.float32, device=device)
        bad, allowed = frozenset(params.bad_token_ids), frozenset(params.allowed_token_ids)
        stops = frozenset(token for token in stops if token < vocab_size)
        self.late = mask_of((bad,), allowed, vocab_size, device)
        self.early = mask_of((bad | stops, bad), allowed, vocab_size, device)
        self.counts: TokenCounts | None = None
        if penalized(params):
            self.counts = TokenCounts(prompt, params.repetition_penalty != 1.0, device)

    def mask(self, generated: int) -> Mask | None:
        """The mask for the next token: until min_tokens are generated, no token may end the sequence."""
        return self.early if generated < self.min_tokens else self.late


def penalized(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def edits_logits(params: SamplingParams) -> bool:
    """Return whether a sequence with these parameters needs a state."""
    masked = params.bad_token_ids or params.allowed_token_ids or params.min_tokens
    return bool(masked or params.logit_bias) or penalized(params)


def mask_of(
    bans: tuple[frozenset[int], ...], allowed: frozenset[int], vocab_size: int, device: torch.device
) -> Mask | None:
    """Apply the first of the bans that leaves any id. Bans that contradict the rest yield: first min_tokens, then bad
    ids; `allowed`, if there is any, holds always."""
    total = len(allowed) or vocab_size
    banned = next((ban for ban in bans if len(ban & allowed if allowed else ban) < total), frozenset())
    ids = sorted(allowed - banned if allowed else banned)
    return Mask(bool(allowed), torch.tensor(ids, dtype=torch.int64, device=device)) if ids else None
