# SPDX-License-Identifier: Apache-2.0
"""Logits that follow from a prefix alone, for requests that ask for more than the next token: grammars, biases,
logprobs. The real sampler draws from them."""

import numpy as np
import torch

from pontil.runtime.engine.sampling.logprobs import logprobs_of
from pontil.runtime.engine.sampling.sampler import Sampled, sample_rows
from pontil.runtime.engine.sequences.batch import Span
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.engine.tiles.rows import unrecorded
from pontil.runtime.sampling_params import SamplingParams

SPREAD = 3.0


def asks_for_logits(params: SamplingParams) -> bool:
    """Return whether more than a token is asked for."""
    shaped = params.grammar, params.logit_bias, params.bad_token_ids, params.allowed_token_ids, params.min_tokens
    return any(shaped) or params.shows_logits


def logits_after(running: int, vocab: int) -> torch.Tensor:
    made = np.random.Generator(np.random.Philox(running)).standard_normal((1, vocab), dtype=np.float32)
    return torch.from_numpy(made * SPREAD)


def draw(sequence: Sequence, running: int, vocab: int) -> list[Sampled]:
    """Return the next token of each choice of a sequence whose tokens have this hash."""
    return sample_rows(logits_after(running, vocab), [sequence])


def record_prompt(span: Span, vocab: int) -> None:
    """Record the logprobs of the prompt's tokens that a span computes, if its sequence asks for them."""
    one, count = span.sequence, span.sequence.params.prompt_logprobs
    for position in unrecorded(span):
        token, row = torch.tensor([one.prompt[position]]), torch.zeros(1, dtype=torch.int64)
        one.record.prompt_logprobs += logprobs_of(logits_after(position, vocab), row, token, [count or 0])
