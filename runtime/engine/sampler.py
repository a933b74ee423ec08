# SPDX-License-Identifier: Apache-2.0
"""The next token of each row, as its sequence's parameters ask.

Randomness is counter-based: the number a draw uses is a function of (seed, choice, position) alone, so the same request
draws the same tokens alone, in a batch, after a handoff and on replay.
"""

import hashlib
import struct

import torch
from torch import Tensor

from pontil.gpu_ops.sampling import greedy, sample
from pontil.runtime.engine.sequence import Sequence

MASK_64 = (1 << 64) - 1


def uniform(seed: int, choice: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits."""
    counter = struct.pack("<QQQ", seed & MASK_64, choice, position)
    bits = int.from_bytes(hashlib.blake2b(counter, digest_size=8).digest(), "little")
    return (bits >> 11) * 2.0**-53


def sample_rows(logits: Tensor, sequences: list[Sequence]) -> Tensor:
    """logits float32 [rows, vocabulary], row r belonging to `sequences[r]`; returns int64 ids [rows]."""
    ids = greedy(logits)
    drawn = [row for row, sequence in enumerate(sequences) if not sequence.params.greedy]
    if drawn:
        rows = torch.tensor(drawn, device=logits.device)
        ids[rows] = draw(logits[rows], [sequences[row] for row in drawn])
    return ids


def draw(logits: Tensor, sequences: list[Sequence]) -> Tensor:
    params = [sequence.params for sequence in sequences]
    numbers = [uniform(sequence.params.seed, 0, sequence.length) for sequence in sequences]
    place = logits.device
    return sample(
        logits,
        torch.tensor([one.temperature for one in params], dtype=torch.float64, device=place),
        torch.tensor([one.top_k for one in params], device=place),
        torch.tensor([one.top_p for one in params], dtype=torch.float64, device=place),
        torch.tensor(numbers, dtype=torch.float64, device=place),
    )
