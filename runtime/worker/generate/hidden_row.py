# SPDX-License-Identifier: Apache-2.0
"""The hidden state that a handoff carries beside its drafts: one row of numbers with a digest.

It only makes guesses better. One that is damaged, of another size or not finite is dropped, and the request goes on
without it.
"""

import hashlib
import logging

import numpy as np
import torch
from torch import Tensor

from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.wire.messages import Handoff

logger = logging.getLogger("pontil.worker")

NUMBER = np.dtype("<f4")


def digest_of(row: bytes) -> str:
    return hashlib.blake2b(row, digest_size=16).hexdigest()


def last_state(sequence: Sequence) -> bytes | None:
    """Return the state of the prompt's last position as a handoff carries it; None where none is kept."""
    states, last = sequence.drafting.target_states, len(sequence.prompt) - 1
    if states is None or not states.start <= last < states.end:
        return None
    return states.at(last).cpu().numpy().astype(NUMBER).tobytes()


def handed_state(handoff: Handoff, size: int, device: torch.device) -> Tensor | None:
    """Return the state that came with a handoff, float32 [size]; None without one that can be used."""
    row = handoff.hidden_state
    if row is None:
        return None
    if len(row) != size * NUMBER.itemsize or digest_of(row) != handoff.hidden_digest:
        logger.warning("a handoff's hidden state is damaged: going on without it")
        return None
    numbers = torch.from_numpy(np.frombuffer(row, NUMBER).astype(np.float32))
    return numbers.to(device) if bool(torch.isfinite(numbers).all()) else None
