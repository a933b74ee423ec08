# SPDX-License-Identifier: Apache-2.0
"""The models of a launch of several: what they may have in common, and what a proxy and workers are told of them."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.options.options import LaunchOptions
from pontil.launcher.plan.graph_choice import graph_of
from pontil.runtime.foundation.staged_model import StagedModel


def served_name(options: LaunchOptions) -> str:
    """Return the model name that clients use."""
    return options.served_model_name or own_name(options.model_name)


def own_name(model: str) -> str:
    """Return the name of a model: for a path its last part, without a file extension, or the number of a file."""
    return re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", Path(model).name) or model


def further_stem(name: str, role: str) -> str:
    """Return the name, without a number, of the workers of a further model: it is a part of the names of files."""
    return f"{re.sub(r'[^A-Za-z0-9._-]', '-', name)}-{role}"


def check_models(models: Sequence[LaunchOptions], graph: StagedModel | None) -> None:
    """Check that these can be served side by side. Raises OptionError."""
    options, names = models[0], [served_name(one) for one in models]
    if len(models) == 1:
        if options.model_memory is not None:
            raise OptionError("--model-memory is for several models, and there is one: leave it out.")
        return
    if options.model_memory is not None and (options.join or options.role == "proxy"):
        raise OptionError("--model-memory is for a launch of proxy and workers, and here is one of them: leave it out.")
    for one in models:
        if (graph if one is options else graph_of(one.model_name)) is not None:
            raise OptionError(f"{one.model_name} has several stages, and is served alone: give a launch to it.")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise OptionError(f"Two models are called {twice}: give them names in a file, with --models.")
    workers = [further_stem(served_name(one), "mixed") for one in models[1:]]
    if len(set(workers)) < len(workers):
        raise OptionError(f"Workers are named after models, and two of {', '.join(names)} are too much alike.")
    for flag, is_given in (("--http", options.http), ("--nnodes", options.nnodes > 1), ("--place", options.place)):
        if is_given:
            raise OptionError(f"{flag} is for one model, and there are {len(models)}: leave it out.")


def further_models(models: Sequence[LaunchOptions]) -> list[dict[str, Any]]:
    """Return what the proxy is told of all models but the first."""
    return [
        {
            "name": served_name(options),
            "model": options.model_name,
            "tool_call_parser": options.tool_call_parser,
            "reasoning_parser": options.reasoning_parser,
            "hide_end_token": options.hide_end_token,
            "adapter": list(options.adapter),
        }
        for options in models[1:]
    ]
