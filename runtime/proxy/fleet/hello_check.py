# SPDX-License-Identifier: Apache-2.0
"""The checks of what a worker registers with: numbers and role, on which routing counts for every request, and its
stage of the proxy's model."""

from typing import get_args

from pontil.runtime.config.worker_config import WorkerRole
from pontil.runtime.foundation.staged_model import StagedModel
from pontil.runtime.wire.messages import Hello

# The least of each number. Block 0 is padding, so that one block holds nothing.
LEAST = {"block_size": 1, "num_blocks": 2, "max_num_seqs": 1, "max_model_len": 1, "max_num_batched_tokens": 1}
# No machine has more of anything.
MOST = 1 << 40
ROLES = frozenset(get_args(WorkerRole))
# The role of workers that compute a stage without tokens.
NODE = "node"


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


def wrong_stage(message: Hello, graph: StagedModel | None) -> str | None:
    """Return why a worker computes no stage of this proxy's model, or None."""
    if graph is None:
        if message.node is None and message.role != NODE:
            return None
        says = f"{message.name} computes a stage of a model of several, and the proxy's model has no stages"
        return f"{says}: start both with the same --model"
    if message.revision is not None:
        says = f"{message.name} has the revision {message.revision}, and {graph.name} has several stages"
        return f"{says}: leave --revision out, and upgrade all stages at once"
    names = ", ".join(graph.node_names)
    if message.node not in graph.node_names:
        has = "no stage" if message.node is None else f"the stage {message.node}"
        return f"{message.name} computes {has}, and the proxy's {graph.name} has {names}: start both alike"
    if graph.node(message.node).generates == (message.role == NODE):
        return f"{message.name} has the role {message.role}, which the stage {message.node} cannot have: start it anew"
    return None
