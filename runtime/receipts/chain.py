# SPDX-License-Identifier: Apache-2.0
"""The digest chain of an answer: each token with the highest logits that it was drawn from.

A worker states of each token the TOP_LOGITS highest logits of its row: id and float32 bits of each, both of four bytes,
little-endian, the highest first. The chain begins with START; a token follows by

    chain = SHA-256(chain + token (4 bytes, little-endian) + its highest logits)

So it is a function of the tokens and their logits alone, in whatever parts and from however many workers they came:
whoever adds the tokens up keeps it, and nothing of it travels between workers.
"""

import hashlib
import zlib
from collections.abc import Sequence

# Where equal bits are promised, float32 logits are equal to the last one. So many of a row are enough to tell another
# kernel, type, weight or prompt, and few enough to cost nothing beside the projection that made them.
TOP_LOGITS = 8
# Id and logit.
ENTRY_BYTES = 8
# Bytes of a token's mark.
MARK_BYTES = 4
START = hashlib.sha256(b"pontil receipt 1").digest()


def width(count: int) -> int:
    """Return the bytes of so many highest logits of a token."""
    return count * ENTRY_BYTES


def extended(chain: bytes, tokens: Sequence[int], top_logits: bytes) -> bytes:
    """Return the chain after these tokens. `top_logits` has as many bytes for each; none where none are stated."""
    each = len(top_logits) // max(1, len(tokens))
    for place, token in enumerate(tokens):
        stated = top_logits[place * each : (place + 1) * each]
        chain = hashlib.sha256(chain + token.to_bytes(4, "little") + stated).digest()
    return chain


def marks(top_logits: bytes, tokens: int) -> bytes:
    """Return a mark of each token's highest logits, whatever token was drawn from them: their CRC-32, of four bytes,
    little-endian. Two lists of marks tell where logits first differ, which the chain does not."""
    each = len(top_logits) // max(1, tokens)
    stated = [top_logits[place * each : (place + 1) * each] for place in range(tokens)]
    return b"".join([zlib.crc32(logits).to_bytes(MARK_BYTES, "little") for logits in stated])
