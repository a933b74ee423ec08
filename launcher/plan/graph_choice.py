# SPDX-License-Identifier: Apache-2.0
"""The graph of a model of several stages, by its name or by the config.json of its directory."""

import json
from pathlib import Path

from pontil.launcher.errors import OptionError
from pontil.launcher.options.options import LaunchOptions
from pontil.runtime.stages.graph.catalog import GraphModel, GraphNode, graph_named, graph_of_architectures

# A larger config.json is left to those who load the model.
LONGEST_CONFIG = 1 << 20


def graph_of(model: str) -> GraphModel | None:
    """Return the graph of a model of several stages; None for any other model, and for one that cannot be read, about
    which the process that finds it says more."""
    if (known := graph_named(model)) is not None:
        return known
    try:
        path = Path(model).expanduser() / "config.json"
        with path.open("rb") as file:
            told = json.loads(file.read(LONGEST_CONFIG))
    except (OSError, ValueError, RecursionError, RuntimeError):
        return None
    return graph_of_architectures(told.get("architectures")) if isinstance(told, dict) else None


def stage_model(options: LaunchOptions, node: GraphNode | None) -> str:
    """Return the model that a stage's workers load: its own, or its part of the one directory."""
    return options.model if node is None or node.model is None else node.model


def first_stage(graph: GraphModel | None) -> GraphNode | None:
    return None if graph is None else graph.node(graph.first)


def chosen_stage(options: LaunchOptions, graph: GraphModel) -> GraphNode:
    """Return the stage whose workers this launch starts where it starts those of one only."""
    name = options.node or graph.first
    if name not in graph.node_names:
        raise OptionError(f"--node {name} is no stage of {graph.name}: it has {', '.join(graph.node_names)}.")
    return graph.node(name)
