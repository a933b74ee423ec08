# SPDX-License-Identifier: Apache-2.0
"""The graph of a model of several stages, by its name or by the config.json of its directory."""

import json
from pathlib import Path

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.options.options import LaunchOptions
from pontil.runtime.foundation.entry_points import entry_point, missing
from pontil.runtime.foundation.staged_model import ARCHITECTURES, NAMES, ModelStage, StagedModel

# A larger config.json is left to those who load the model.
LONGEST_CONFIG = 1 << 20


def graph_of(model: str) -> StagedModel | None:
    """Return the graph of a model of several stages; None for any other model, and for one that cannot be read, about
    which the process that finds it says more."""
    if model in NAMES or any(model in aliases for aliases in NAMES.values()):
        return known_graph("graph-named", model)
    try:
        path = Path(model).expanduser() / "config.json"
        with path.open("rb") as file:
            config = json.loads(file.read(LONGEST_CONFIG))
    except (OSError, ValueError, RecursionError, RuntimeError):
        return None
    architectures = config.get("architectures") if isinstance(config, dict) else None
    if not isinstance(architectures, list) or not set(ARCHITECTURES).intersection(filter(is_text, architectures)):
        return None
    return known_graph("graph-of-architectures", architectures)


def is_text(value: object) -> bool:
    return isinstance(value, str)


def known_graph(entry: str, key: object) -> StagedModel | None:
    """Return the graph behind an entry point. Raises OptionError where its room is left out."""
    if (lack := missing(entry)) is not None:
        raise OptionError(f"{lack}.")
    graph: StagedModel | None = entry_point(entry)(key)
    return graph


def stage_model(options: LaunchOptions, node: ModelStage | None) -> str:
    """Return the model that a stage's workers load: its own, or its part of the one directory."""
    return options.model_name if node is None or node.model is None else node.model


def first_stage(graph: StagedModel | None) -> ModelStage | None:
    return None if graph is None else graph.node(graph.first)


def chosen_stage(options: LaunchOptions, graph: StagedModel) -> ModelStage:
    """Return the stage whose workers this launch starts where it starts those of one only."""
    name = options.node or graph.first
    if name not in graph.node_names:
        raise OptionError(f"--node {name} is no stage of {graph.name}: it has {', '.join(graph.node_names)}.")
    return graph.node(name)
