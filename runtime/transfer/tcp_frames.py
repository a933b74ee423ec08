# SPDX-License-Identifier: Apache-2.0
"""What travels on a connection between pools: fixed binary, in network byte order.

    request:  REQUEST (magic and version, token, slot, number of runs), then RUN (first block, count) for each run
    answer:   ANSWER (status, number of data bytes), then the blocks in the order of the runs, then EPOCH

EPOCH is the cell `slot` as it was after the last of the data had been copied out of the pool. A request without runs
asks for the cell alone. A request that is refused has an answer without data and epoch; one whose token is wrong has
none. Numbers of a request are only ever compared with the pool's own before anything is allocated or read.
"""

import struct
from collections.abc import Sequence

MAGIC = b"PKV\x01"
TOKEN_BYTES = 16

REQUEST = struct.Struct(f"!4s{TOKEN_BYTES}sII")
RUN = struct.Struct("!II")
ANSWER = struct.Struct("!BQ")
EPOCH = struct.Struct("!q")

READ, REFUSED = 0, 1


def request(token: bytes, slot: int, runs: Sequence[tuple[int, int]]) -> bytes:
    return REQUEST.pack(MAGIC, token, slot, len(runs)) + b"".join(RUN.pack(*run) for run in runs)
