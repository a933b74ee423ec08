# SPDX-License-Identifier: Apache-2.0
"""The form of an item in a message, checked before anything is allocated or pulled for it."""

import math

import numpy as np
from numpy.typing import NDArray

from pontil.runtime.stages.streams.stream_memory import StreamMemory
from pontil.runtime.transfer.grants import Grant
from pontil.runtime.wire.messages import StreamItem

DTYPES = ("float32", "float16", "int64", "int32", "int16", "uint8")
MOST_AXES = 8
# Indices and epochs have 63 bits.
LARGEST = (1 << 63) - 1


def is_index(value: int) -> bool:
    return 0 <= value < LARGEST


def size_of(item: StreamItem) -> int:
    """Return the number of bytes of an item of known form."""
    return math.prod(item.shape) * np.dtype(item.dtype).itemsize


def objection(item: StreamItem, memory: StreamMemory) -> str | None:
    """Return why an item cannot be as it was announced; None if it can."""
    if not (is_index(item.index) and is_index(item.epoch) and is_index(item.slot)):
        return "its index, epoch or slot is none"
    if item.dtype not in DTYPES:
        return f"its type {item.dtype!r:.20} is not one of {', '.join(DTYPES)}"
    # An axis of 0 does not make the others small.
    cells = math.prod(max(1, size) for size in item.shape)
    if len(item.shape) > MOST_AXES or min(item.shape, default=0) < 0:
        return "its shape is none"
    size = size_of(item)
    if cells * np.dtype(item.dtype).itemsize > memory.most_item_bytes:
        return f"it is larger than the {memory.most_item_bytes} bytes that an item may have here"
    if not len(item.block_ids) == len(item.digests) == memory.blocks_for(size):
        return "its blocks are not those of its shape"
    return None


def array_of(item: StreamItem, data: NDArray[np.uint8]) -> NDArray[np.generic]:
    """Return the array of an item of known form, read-only."""
    array: NDArray[np.generic] = data.view(item.dtype).reshape(item.shape)
    array.flags.writeable = False
    return array


def grant_name(run: str, edge: str, peer: str, index: int) -> str:
    """Return the name under which `peer` may read an item."""
    return f"{run} {edge} {peer} {index}"


def grant_of(item: StreamItem, secret: str) -> Grant:
    return Grant(grant_name(item.run, item.edge, item.receiver, item.index), item.epoch, secret)
