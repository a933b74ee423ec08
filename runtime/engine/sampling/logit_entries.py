# SPDX-License-Identifier: Apache-2.0
"""The tokens that a batch's rows may draw: the logit edits of its sequences, collected into one list of entries for
each kind of edit, and the masks of grammars.

Where grammars and other parameters contradict each other, the grammar, `allowed_token_ids` and `bad_token_ids` hold;
`min_tokens` and `ignore_eos` put off an end only as long as another token is allowed. A row that allows no token is
dead: no token is drawn from it, and its choice ends with an error.
"""

from collections import abc
from collections.abc import Callable, Container
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from pontil.gpu_ops.draws.logit_edits import add_bias, allow_bits, allow_only, forbid, penalize
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.engine.sequences.token_rules import Narrowing, SamplingState, narrows

LogitRow = tuple[int, Sequence, SamplingState]
CPU = torch.device("cpu")
CONTRADICTION = "the grammar allows no token that allowed_token_ids and bad_token_ids leave: change one of them"


@dataclass(frozen=True, slots=True)
class Bitmask:
    """Masks of whole rows, in host memory: `words` int32 [rows that have one, words] as `allow_bits` takes them. `dead`
    gives, by row, the reason why no token is allowed."""

    rows: list[int]
    words: Tensor
    dead: dict[int, str]


NO_MASKS = Bitmask([], torch.empty(0, 0, dtype=torch.int32), {})


@dataclass(frozen=True, slots=True)
class MaskRow:
    """The row of a mask, its sequence, and the number of output tokens before the token that it masks."""

    row: int
    sequence: Sequence
    generated: int


def needs_unknown_tokens(sequence: Sequence) -> bool:
    """Return whether its next draw needs tokens that have been drawn and are not known yet: a grammar follows them,
    penalties count them, and a budget of reasoning may end with them. All other edits follow from their number."""
    ahead = sequence.ahead.count
    return ahead > 0 and (sequence.params.penalizes or sequence.rules.needs(sequence.output, ahead))


def bitmask_of(
    sequences: abc.Sequence[Sequence], drafts: abc.Sequence[tuple[int, ...]], left_out: Container[Sequence] = ()
) -> Bitmask:
    """Masks for rows in sampling order: for each sequence one for its newest token, then one for each draft."""
    places: list[MaskRow] = []
    masks: list[bytes] = []
    row = 0
    for sequence, draft in zip(sequences, drafts, strict=True):
        rules = sequence.rules
        if (rules.make_guide is not None or rules.thinking is not None) and sequence not in left_out:
            for ahead, mask in enumerate(rules.masks(sequence.output, draft)):
                if mask is not None:
                    masks.append(mask)
                    places.append(MaskRow(row + ahead, sequence, len(sequence.output) + ahead))
        row += 1 + len(draft)
    if not masks:
        return NO_MASKS
    words = torch.frombuffer(bytearray(b"".join(masks)), dtype=torch.int32).view(len(masks), -1)
    for place, mask in zip(places, words, strict=True):
        narrow(mask, place)
    alive = words.any(-1)
    # Tokens of a dead row are discarded, but the draw needs at least one allowed id.
    words[~alive] = -1
    dead = {
        place.row: failure_of(place.sequence) for place, some in zip(places, alive.tolist(), strict=True) if not some
    }
    return Bitmask([place.row for place in places], words, dead)


def narrow(mask: Tensor, place: MaskRow) -> None:
    sequence, rules = place.sequence, place.sequence.rules
    if rules.guide is None or not narrows(sequence.params):
        return
    if rules.narrowing is None:
        rules.narrowing = Narrowing(sequence.params, sequence.stop_token_ids, rules.guide.ends, len(mask))
    rules.narrowing.apply(mask, place.generated)


def failure_of(sequence: Sequence) -> str:
    return CONTRADICTION if sequence.guide is None else sequence.guide.failure or CONTRADICTION


@dataclass(frozen=True, slots=True)
class LogitEdits:
    """Edits of logits in the order in which they are made. Each has the arguments of its function in `gpu_ops`, behind
    the logits, or none: `penalize`, `add_bias`, `allow_only`, `forbid`, `allow_bits`."""

    penalized: tuple[Tensor, ...] = ()
    biased: tuple[Tensor, ...] = ()
    allowed: tuple[Tensor, ...] = ()
    forbidden: tuple[Tensor, ...] = ()
    masked: tuple[Tensor, ...] = ()

    def __bool__(self) -> bool:
        return any((self.penalized, self.biased, self.allowed, self.forbidden, self.masked))

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, in the order in which `moved` takes them."""
        return [tensor for field in fields(self) for tensor in getattr(self, field.name)]

    def moved(self, move: Callable[[Tensor], Tensor]) -> "LogitEdits":
        """The same edits with each tensor moved, in the order of the fields."""
        return LogitEdits(*(tuple(move(tensor) for tensor in getattr(self, field.name)) for field in fields(self)))

    def apply(self, logits: Tensor) -> Tensor:
        """Return the logits, float32 [rows, vocabulary], with the edits. The given ones are never written to; they are
        returned themselves if nothing changes."""
        if not self:
            return logits
        edited_logits = logits.clone()
        self.make(edited_logits)
        return edited_logits

    def make(self, edited: Tensor) -> None:
        """Make the edits in place."""
        steps = (
            (penalize, self.penalized),
            (add_bias, self.biased),
            (allow_only, self.allowed),
            (forbid, self.forbidden),
            (allow_bits, self.masked),
        )
        for step, arguments in steps:
            if arguments:
                step(edited, *arguments)


NO_EDITS = LogitEdits()


def edited_rows(sequences: abc.Sequence[Sequence], vocab_size: int) -> list[LogitRow]:
    """Return the rows, one for each of the sequences, whose parameters change logits."""
    return [
        (row, sequence, state_of(sequence, vocab_size))
        for row, sequence in enumerate(sequences)
        if sequence.params.edits_logits
    ]


def counted_edits(rows: list[LogitRow], ahead: abc.Sequence[int]) -> LogitEdits:
    """Return the edits of rows that follow from parameters and from the number of tokens, in host memory. `ahead` gives
    the number of drafts before each row."""
    if not rows:
        return NO_EDITS
    allowed_entries, forbidden_entries = mask_entries([row for row in rows if row[1].guide is None], ahead)
    return LogitEdits((), bias_entries([row for row in rows if len(row[2].bias)]), allowed_entries, forbidden_entries)


def with_tokens(counted: LogitEdits, rows: list[LogitRow], total: int, bitmask: Bitmask) -> LogitEdits:
    """Return these edits, and before and behind them those that follow from tokens, of `rows` of a `total`: penalties,
    and the masks of grammars. A sequence with penalties has no drafts."""
    counts = [row for row in rows if row[2].counts is not None]
    if not counts and not bitmask.rows:
        return counted
    grammar_masks = (torch.tensor(bitmask.rows), bitmask.words) if bitmask.rows else ()
    return replace(counted, penalized=penalty_entries(counts, total), masked=grammar_masks)


def penalty_entries(rows: list[LogitRow], total: int) -> tuple[Tensor, ...]:
    factors = [(1.0, 0.0, 0.0)] * total
    row_counts = []
    for row, sequence, state in rows:
        params = sequence.params
        factors[row] = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
        if state.counts is not None:
            row_counts.append((row, *state.counts.follow(sequence.output)))
    if not row_counts:
        return ()
    count = torch.cat([counts for _, _, counts in row_counts])
    return *entries([(row, ids) for row, ids, _ in row_counts]), count, torch.tensor(factors)


def bias_entries(rows: list[LogitRow]) -> tuple[Tensor, ...]:
    if not rows:
        return ()
    return *entries([(row, state.bias_ids) for row, _, state in rows]), torch.cat([state.bias for _, _, state in rows])


def mask_entries(rows: list[LogitRow], ahead: abc.Sequence[int]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The entries of ids that alone are allowed, and of those that are forbidden."""
    masks = [(row, state.mask(sequence.length - len(sequence.prompt) + ahead[row])) for row, sequence, state in rows]
    allowed_rows, forbidden_rows = (
        [(row, mask.ids) for row, mask in masks if mask is not None and mask.only is only] for only in (True, False)
    )
    return (entries(allowed_rows) if allowed_rows else ()), (entries(forbidden_rows) if forbidden_rows else ())


def entries(lists: list[tuple[int, Tensor]]) -> tuple[Tensor, Tensor]:
    """Merge rows with their ids into (row, id) of every entry, both int64 [entries]."""
    rows = torch.tensor([row for row, _ in lists])
    counts = torch.tensor([len(ids) for _, ids in lists])
    return rows.repeat_interleave(counts), torch.cat([ids for _, ids in lists])


def state_of(sequence: Sequence, vocab_size: int) -> SamplingState:
    rules = sequence.rules
    if rules.state is None:
        # Rows that are no ids have none to be penalized for.
        prompt = sequence.prompt if sequence.streams.inputs is None else []
        rules.state = SamplingState(sequence.params, prompt, sequence.stop_token_ids, vocab_size, CPU)
    return rules.state
