# SPDX-License-Identifier: Apache-2.0
"""The check that a worker computes a stage of the proxy's model."""

from pontil.runtime.foundation.staged_model import StagedModel
from pontil.runtime.wire.messages import Hello

# The role of workers that compute a stage without tokens.
NODE = "node"


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
