# SPDX-License-Identifier: Apache-2.0
"""The command `graph`: a model of several stages as a diagram."""

import click

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.plan.graph_choice import graph_of
from pontil.runtime.foundation.entry_points import entry_point
from pontil.runtime.foundation.staged_model import NAMES


@click.command(short_help="Show the stages of a model of several as a diagram.")
@click.option("--model", required=True, metavar="NAME|PATH", help="A model of several stages, as `launch` takes it.")
def graph(model: str) -> None:
    """Print the stages of a model, their walks and the streams between them in Mermaid, which code hosts and editors
    draw: https://mermaid.js.org."""
    staged_model = graph_of(model)
    if staged_model is None:
        raise OptionError(
            f"{model} is no model of several stages: there are {', '.join(NAMES)}, or a directory of one."
        )
    click.echo(entry_point("diagram")(staged_model), nl=False)
