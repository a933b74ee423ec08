# SPDX-License-Identifier: Apache-2.0
"""The next token of each row, as its sequence's parameters ask.

Randomness is counter-based: the number a draw uses is a function of (seed, choice, position) alone, so the same request
draws the same tokens alone, in a batch, after a handoff and on replay.
"""

import hashlib
import struct
from dataclasses import dataclass

import torch
from torch import Tensor

from pontil.gpu_ops.sampling import greedy, sample
from pontil.runtime.engine.logprobs import TokenLogprobs
from pontil.runtime.engine.sequence import Sequence

MASK_64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Sampled:
    """One drawn token."""

    sequence: Sequence
    choice: int
    token: int
    logprobs: TokenLogprobs | None = None


def uniform(seed: int, choice: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits."""
    counter = struct.pack("<QQQ", seed & MASK_64, choice, position)
    bits = int.from_bytes(hashlib.blake2b(counter, digest_size=8).digest(), "little")
    return (bits >> 11) * 2.0**-53


def sample_rows(logits: Tensor, sequences: list[Sequence]) -> list[Sampled]:
    """logits float32 [rows, vocabulary], row r belonging to `sequences[r]`; one token for each of its choices."""
    draws = [(row, sequence, choice) for row, sequence in enumerate(sequences) for choice in sequence.choices]
    logits = logits[[row for row, _, _ in draws]]
    ids = greedy(logits)
    drawn = [row for row, (_, sequence, _) in enumerate(draws) if not sequence.params.greedy]
    if drawn:
        rows = torch.tensor(drawn, device=logits.device)
        ids[rows] = draw(logits[rows], [draws[row][1:] for row in drawn])
    return [Sampled(sequence, choice, token) for (_, sequence, choice), token in zip(draws, ids.tolist(), strict=True)]


def draw(logits: Tensor, draws: list[tuple[Sequence, int]]) -> Tensor:
    params = [sequence.params for sequence, _ in draws]
    numbers = [uniform(sequence.params.seed, choice, sequence.length) for sequence, choice in draws]
    place = logits.device
    return sample(
        logits,
        torch.tensor([one.temperature for one in params], dtype=torch.float64, device=place),
        torch.tensor([one.top_k for one in params], device=place),
        torch.tensor([one.top_p for one in params], dtype=torch.float64, device=place),
        torch.tensor(numbers, dtype=torch.float64, device=place),
    )
