# SPDX-License-Identifier: Apache-2.0
"""Steps for which a device's memory does not suffice: they go on without the request that needs most."""

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

from pontil.runtime.engine.sampling.sampler import Sampled
from pontil.runtime.engine.sequences.batch import Batch
from pontil.runtime.engine.sequences.sequence import Sequence

logger = logging.getLogger("pontil.engine")

MEMORY_RAN_OUT = (
    "the memory of the device ran out while this request was computed: send it again, or a shorter one; if it happens "
    "often, lower --gpu-memory-share or --max-num-batched-tokens"
)
# Errors of a CPU's allocator, of drivers, as at the start of a recorded step, and of the library of products.
SIGNS = ("can't allocate memory", "out of memory", "ALLOC_FAILED")

T = TypeVar("T")


def is_out_of_memory(error: MemoryError | RuntimeError) -> bool:
    """Return whether memory ran out. torch has an error type of its own for its own allocator on GPUs only."""
    is_memory_error = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return is_memory_error or any(sign in str(error) for sign in SIGNS)


def compute_what_fits(
    batch: Batch, compute: Callable[[Batch], T], settle: Callable[[], None] = lambda: None
) -> tuple[T, list[Sampled]]:
    """Return what `compute` makes of a batch, and the ends of the requests that it had to do without, the largest
    first. It is called until memory suffices, each time after `settle`, so it must destroy nothing that it reads. The
    copies of a batch are made whatever becomes of its sequences. Raises what is no lack of memory, and a lack with
    nothing left to do without."""
    ends, recorded_logprobs = list[Sampled](), RecordedLogprobs(batch)
    while batch.spans:
        try:
            return compute(batch), ends
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            logger.warning("memory ran out in a step, whose largest request ends: %s", error)
        # Only now that the error is gone, and what its traceback held, is the attempt's memory free.
        settle()
        recorded_logprobs.restore()
        largest = largest_of(batch)
        batch = batch.without({largest})
        ends.append(Sampled(largest, largest.branch.choice, [], 0, [], failure=MEMORY_RAN_OUT))
    return compute(batch), ends


def left_out_of(samples: Iterable[Sampled]) -> frozenset[Sequence]:
    """Return the sequences of a step that memory did not suffice for: nothing of them was computed."""
    return frozenset(sample.sequence for sample in samples if sample.failure == MEMORY_RAN_OUT)


def largest_of(batch: Batch) -> Sequence:
    """Return the sequence that has most rows in a batch, of equal ones the last."""
    return max(enumerate(batch.spans), key=lambda entry: (entry[1].count, entry[0]))[1].sequence


class RecordedLogprobs:
    """The prompt logprobs that sequences of a batch had before a step, so that a second attempt records none twice."""

    def __init__(self, batch: Batch) -> None:
        asking = [span.sequence for span in batch.spans if span.sequence.params.prompt_logprobs is not None]
        self.known = [(sequence, len(sequence.record.prompt_logprobs)) for sequence in asking]

    def restore(self) -> None:
        for sequence, count in self.known:
            del sequence.record.prompt_logprobs[count:]
