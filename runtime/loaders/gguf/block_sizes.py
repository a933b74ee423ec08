# SPDX-License-Identifier: Apache-2.0
"""The sizes of the blocks of ggml types (ggml/src/ggml-common.h), for what counts bytes before torch is loaded."""

from __future__ import annotations

import math
from pathlib import Path

from pontil.runtime.loaders.gguf.packed_formats import GGUF_FORMATS
from pontil.runtime.loaders.gguf.parts import read_parts

# Numbers and bytes of a block, by the numbers of ggml types.
BLOCKS = {
    2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84), 11: (256, 110), 12: (256, 144),
    13: (256, 176), 14: (256, 210), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18),
    21: (256, 110), 22: (256, 82), 23: (256, 136), 29: (256, 56), 34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip
CODEBOOKS = frozenset((16, 17, 18, 19, 21, 22, 29, 34, 35))
"""Types that are read by a codebook, which takes several times as long: an embedding of one does not stay in blocks."""
EMBEDDING = "token_embd.weight"


def stored_embedding(path: Path) -> int | None:
    """Return the bytes of an embedding whose rows stay in their file's blocks, as those of whole numbers do. Raises
    ModelError."""
    tensor = read_parts(path).header.tensors.get(EMBEDDING)
    if tensor is None or tensor.kind not in GGUF_FORMATS or tensor.kind in CODEBOOKS:
        return None
    numbers, size = BLOCKS[tensor.kind]
    return math.prod(tensor.shape) // numbers * size
