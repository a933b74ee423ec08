# SPDX-License-Identifier: Apache-2.0
"""Steps for which a device's memory does not suffice: they go on without the request that needs most."""

from dataclasses import replace

import torch

from pontil.runtime.engine.batch import Batch
from pontil.runtime.engine.sequence import Sequence

MEMORY_RAN_OUT = (
    "the memory of the device ran out while this request was computed: send it again, or a shorter one; if it happens "
    "often, lower --gpu-memory-share or --max-num-batched-tokens"
)


def is_out_of_memory(error: MemoryError | RuntimeError) -> bool:
    """Return whether memory ran out. torch has an error type of its own for GPUs only."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def without_largest(batch: Batch) -> tuple[Batch, Sequence]:
    """Return the batch without the sequence that has most rows in it, of equal ones the last, and that sequence."""
    largest = max(enumerate(batch.spans), key=lambda one: (one[1].count, one[0]))[1].sequence
    rest = tuple(span for span in batch.spans if span.sequence is not largest)
    return replace(batch, spans=rest, copies=()), largest


class RecordedLogprobs:
    """The prompt logprobs that sequences of a batch had before a step, so that a second attempt records none twice."""

    def __init__(self, batch: Batch) -> None:
        self.known = [(span.sequence, len(span.sequence.prompt_logprobs)) for span in batch.spans]

    def restore(self) -> None:
        for sequence, count in self.known:
            del sequence.prompt_logprobs[count:]
