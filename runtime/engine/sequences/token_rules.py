# SPDX-License-Identifier: Apache-2.0
"""The rules by which one sequence's tokens are drawn and end it.

All of it is a function of the parameters and the tokens, so it can be rebuilt anywhere: after a handoff or on replay.
"""

from collections import abc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from pontil.runtime.engine.sequences.thinking_budget import ThinkingBudget
from pontil.runtime.sampling_params import SamplingParams


class Guide(Protocol):
    """Follows the output of one sequence. Its state is a function of the grammar and the tokens, so that a new one may
    replace it anywhere: after a fork, a handoff or on replay.

    `ends` are the ids with which the grammar's text may end. `failure` gives the reason why the last mask is empty,
    where that is the grammar's own fault. A guide may know the budget of its sequence, and end the text before
    that is used up.
    """

    ends: frozenset[int]
    failure: str | None

    def masks(self, output: list[int], drafts: abc.Sequence[int] = ()) -> list[bytes]:
        """Masks of the token after the output, and after each of the drafts: bit i % 8 of byte i // 8 is set if id i is
        allowed, the `ends` among them where the text may end. All masks of an engine are equally long, a multiple of
        four bytes with a bit for each logit. The mask after a forbidden draft is empty."""

    def is_cut(self, count: int) -> bool:
        """Return whether an output of so many tokens, of which the last one ended it, was ended by its budget."""

    def fitting(self, output: list[int], drafts: abc.Sequence[int]) -> int:
        """The number of drafts that the grammar lets follow the output."""


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
        padding = capacity - len(self.ids)
        self.ids = torch.nn.functional.pad(self.ids, (0, padding))
        self.counts = torch.nn.functional.pad(self.counts, (0, padding))


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
        bad_ids, allowed_ids = frozenset(params.bad_token_ids), frozenset(params.allowed_token_ids)
        stops = frozenset(token for token in stops if token < vocab_size)
        self.late = mask_of((bad_ids,), allowed_ids, vocab_size, device)
        self.early = mask_of((bad_ids | stops, bad_ids), allowed_ids, vocab_size, device)
        self.counts: TokenCounts | None = None
        if params.penalizes:
            self.counts = TokenCounts(prompt, params.repetition_penalty != 1.0, device)

    def mask(self, generated: int) -> Mask | None:
        """The mask for the next token: until min_tokens are generated, no token may end the sequence."""
        return self.early if generated < self.min_tokens else self.late


def mask_of(
    bans: tuple[frozenset[int], ...], allowed_ids: frozenset[int], vocab_size: int, device: torch.device
) -> Mask | None:
    """Apply the first of the bans that leaves any id. Bans that contradict the rest yield: first min_tokens, then bad
    ids; `allowed_ids`, if there is any, holds always."""
    total = len(allowed_ids) or vocab_size
    banned_ids = next((ban for ban in bans if len(ban & allowed_ids if allowed_ids else ban) < total), frozenset())
    ids = sorted(allowed_ids - banned_ids if allowed_ids else banned_ids)
    return Mask(bool(allowed_ids), torch.tensor(ids, dtype=torch.int64, device=device)) if ids else None


class Narrowing:
    """Limits as words int32 [words], as `allow_bits` takes them. `stops` are the ids that end the sequence; those of
    them in `ends` end it where the grammar's text may end."""

    def __init__(self, params: SamplingParams, stops: frozenset[int], ends: frozenset[int], width: int) -> None:
        self.min_tokens = params.min_tokens
        allowed_ids = params.allowed_token_ids
        self.always = (words_of(allowed_ids, width) if allowed_ids else ~words_of((), width)) & ~words_of(
            params.bad_token_ids, width
        )
        self.early = ~words_of(stops, width)
        self.late = ~words_of(ends if params.ignore_eos else (), width)

    def apply(self, words: Tensor, generated: int) -> None:
        """Narrow the mask of the next token [words], in place. An end is put off only if another token is allowed."""
        words &= self.always
        going_on = words & (self.early if generated < self.min_tokens else self.late)
        if bool(going_on.any()):
            words.copy_(going_on)


def narrows(params: SamplingParams) -> bool:
    """Return whether these parameters change a grammar's masks."""
    return bool(params.allowed_token_ids or params.bad_token_ids or params.min_tokens or params.ignore_eos)


def words_of(ids: Iterable[int], width: int) -> Tensor:
    """Words int32 [width] in which the bits of these ids are set; ids beyond the width are ignored."""
    bits = bytearray(4 * width)
    for number in ids:
        if number < 32 * width:
            bits[number >> 3] |= 1 << (number & 7)
    return torch.frombuffer(bits, dtype=torch.int32)


class StopCheck(Protocol):
    """Checks the tokens of one sequence for its stop strings."""

    def feed(self, token_id: int) -> str | None:
        """Return the stop string that this token completed, if any."""


class SequenceStops:
    """The stop strings of a sequence, which have a check of its tokens if there are any, and the `match` that ended
    it."""

    def __init__(self, make_check: Callable[[], StopCheck] | None = None) -> None:
        self.make_check = make_check
        self.check = None if make_check is None else make_check()
        self.match: str | None = None

    def feed(self, token_id: int) -> bool:
        """Return whether this token completed a stop string."""
        if self.check is not None:
            self.match = self.check.feed(token_id)
        return self.match is not None

    def pass_by(self, tokens: Iterable[int]) -> None:
        """Take tokens that were checked elsewhere."""
        if self.check is not None:
            for token in tokens:
                self.check.feed(token)

    def fork(self) -> "SequenceStops":
        """Return those of another choice, whose tokens are its own."""
        return SequenceStops(self.make_check)


@dataclass(slots=True)
class DrawRules:
    """State made of a sequence's parameters and tokens when first needed: the guide that enforces its grammar, if
    it has one, what its parameters take from the guide's masks, and its edits of logits; its stop strings, and the
    budget of its reasoning."""

    make_guide: Callable[[], Guide] | None = None
    own_guide: Guide | None = None
    narrowing: Narrowing | None = None
    state: SamplingState | None = None
    stops: SequenceStops = field(default_factory=SequenceStops)
    thinking: ThinkingBudget | None = None

    def needs(self, output: list[int], ahead: int) -> bool:
        """Return whether the mask of the next draw needs the tokens that were drawn behind the output, `ahead` in
        number."""
        if self.make_guide is not None or self.thinking is None:
            return self.make_guide is not None
        room = self.thinking.room(output)
        return room is not None and room <= ahead

    def masks(self, output: list[int], drafts: abc.Sequence[int]) -> list[bytes | None]:
        """Return the masks of the token after the output and after each draft; None where all tokens are allowed."""
        guide = self.guide
        masks: list[bytes | None] = [None] * (1 + len(drafts)) if guide is None else [*guide.masks(output, drafts)]
        if self.thinking is not None:
            masks = self.thinking.narrowed(masks, output)
            if self.thinking.over:
                # Nothing is left to be ended, and steps need not ask any more.
                self.thinking = None
        return masks

    def fitting(self, output: list[int], drafts: tuple[int, ...]) -> tuple[int, ...]:
        """Return the drafts up to the first that may not follow the output."""
        guide, count = self.guide, len(drafts)
        if guide is not None and count:
            count = guide.fitting(output, drafts)
        if self.thinking is not None and count:
            count = self.thinking.fitting(output, count)
        return drafts[:count]

    @property
    def guide(self) -> Guide | None:
        if self.own_guide is None and self.make_guide is not None:
            self.own_guide = self.make_guide()
        return self.own_guide

    def fork(self) -> "DrawRules":
        """Return those of another choice, whose tokens, guide and stop strings are its own."""
        thinking = None if self.thinking is None else self.thinking.fork()
        return DrawRules(self.make_guide, stops=self.stops.fork(), thinking=thinking)
