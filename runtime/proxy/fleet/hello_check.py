# SPDX-License-Identifier: Apache-2.0
"""The check of the numbers and the role with which a worker registers: routing counts on them for every request."""

from typing import get_args

from pontil.runtime.config.worker_config import WorkerRole
from pontil.runtime.wire.messages import Hello

# The least of each number. Block 0 is padding, so that one block holds nothing.
LEAST = {"block_size": 1, "num_blocks": 2, "max_num_seqs": 1, "max_model_len": 1, "max_num_batched_tokens": 1}
# No machine has more of anything.
MOST = 1 << 40
ROLES = frozenset(get_args(WorkerRole))


def wrong_numbers(message: Hello) -> str | None:
    """Return what no worker can have, or None."""
    for name, least in LEAST.items():
        if not least <= getattr(message, name) <= MOST:
            return f"{message.name} says {name} {getattr(message, name)}, which is at least {least}: start it anew"
    if message.embedding_size is not None and not 1 <= message.embedding_size <= MOST:
        return f"{message.name} says embedding_size {message.embedding_size}, which is at least 1: start it anew"
    if message.role not in ROLES:
        return f"{message.name} has the role {message.role!r:.40}, which is none of {', '.join(sorted(ROLES))}"
    return None
