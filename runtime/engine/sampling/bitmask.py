# SPDX-License-Identifier: Apache-2.0
"""The tokens that grammars, together with other parameters, allow for the rows of a batch.

Where they contradict each other, the grammar, `allowed_token_ids` and `bad_token_ids` hold; `min_tokens` and
`ignore_eos` put off an end only as long as another token is allowed. A row that allows no token is dead: no token is
drawn from it, and its choice ends with an error.
"""

from collections import abc
from dataclasses import dataclass

import torch
from torch import Tensor

from pontil.runtime.engine.sequences.narrowing import Narrowing, narrows
from pontil.runtime.engine.sequences.sequence import Sequence

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


def bitmask_of(sequences: abc.Sequence[Sequence], drafts: abc.Sequence[tuple[int, ...]]) -> Bitmask:
    """Masks for rows in sampling order: for each sequence one for its newest token, then one for each draft."""
    places: list[MaskRow] = []
    masks: list[bytes] = []
    row = 0
    for one, draft in zip(sequences, drafts, strict=True):
        if one.guide is not None:
            masks += one.guide.masks(one.output, draft)
            places += [MaskRow(row + ahead, one, len(one.output) + ahead) for ahead in range(1 + len(draft))]
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
    if not narrows(sequence.params):
        return
    if rules.narrowing is None:
        assert rules.guide is not None
        rules.narrowing = Narrowing(sequence.params, sequence.stop_token_ids, rules.guide.ends, len(mask))
    rules.narrowing.apply(mask, place.generated)


def failure_of(sequence: Sequence) -> str:
    assert sequence.guide is not None
    return sequence.guide.failure or CONTRADICTION
