# SPDX-License-Identifier: Apache-2.0
"""The wire format of a connection between pools: fixed binary, in network byte order.

    request:  REQUEST (magic and version, token, slot, number of runs), HEADS (first head, count) if the magic is
              MAGIC_SLICES, then RUN (first block, count) for each run
    answer:   ANSWER (status, number of data bytes), then the blocks in the order of the runs, then EPOCH

EPOCH is the cell `slot` as it was after the last of the data had been copied out of the pool. A request without runs
asks for the cell alone. With HEADS, the answer has only those of the model's KV heads of each block: for each layer
their keys, then their values. A refused request has an answer without data and epoch; one whose token is wrong has no
answer. Numbers in a request are compared with the pool's own before anything is allocated or read.

A server without room for a connection answers FULL, or NO_ROOM where a key is expected, and closes it.

Where the system has keys, each side first sends a public key of PUBLIC_BYTES (block_encryption.py). Everything after it
is encrypted: a request in one piece, preceded by LENGTH, its size once encrypted; an answer in one piece for ANSWER,
one for each block and one for EPOCH. A request with runs ends with its grant: STAMP (stamp, epoch, length of the
transfer's id), then the id. A request whose grant is not valid has no answer either.
"""

import struct
from collections.abc import Sequence

from pontil.runtime.transfer.grants import STAMP_BYTES, Grant
from pontil.runtime.transfer.tcp.block_encryption import PUBLIC_BYTES

MAGIC = b"PKV\x01"
# The version that names heads: for a peer whose pool holds others than ours.
MAGIC_SLICES = b"PKV\x02"
TOKEN_BYTES = 16

REQUEST = struct.Struct(f"!4s{TOKEN_BYTES}sII")
HEADS = struct.Struct("!II")
RUN = struct.Struct("!II")
STAMP = struct.Struct(f"!{STAMP_BYTES}sqH")
LENGTH = struct.Struct("!I")
ANSWER = struct.Struct("!BQ")
EPOCH = struct.Struct("!q")

READ, REFUSED, FULL = 0, 1, 2
CROWDED = "the prefill worker serves as many connections as it can: start more prefill workers, or fewer decode workers"
# Sent in place of a server's public key: the server has no room for the connection.
NO_ROOM = b"PKV\x01 serves all that it can".ljust(PUBLIC_BYTES, b".")
# The largest length of a transfer's id.
MAX_NAME = 0xFFFF


def request(
    token: bytes, slot: int, runs: Sequence[tuple[int, int]], shown: Grant | None = None, heads: range | None = None
) -> bytes:
    magic, heads_field = (MAGIC, b"") if heads is None else (MAGIC_SLICES, HEADS.pack(heads.start, len(heads)))
    plain = REQUEST.pack(magic, token, slot, len(runs)) + heads_field + b"".join(RUN.pack(*run) for run in runs)
    if shown is None:
        return plain
    name = shown.transfer_id.encode()
    return plain + STAMP.pack(shown.stamp(plain), shown.epoch, len(name)) + name
