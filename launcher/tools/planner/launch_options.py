# SPDX-License-Identifier: Apache-2.0
"""The options of `plan` that are those of a launch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pontil.launcher.options.kv_tier_list import kv_tiers
from pontil.runtime.config.readers import size

# Machines that are so many times as slow as when they were measured.
LEAST, MOST = 0.01, 100.0


def read_by(read: Callable[[str], Any]) -> Callable[..., Any]:
    """Return the callback of an option that may be left out and is read as `launch` reads it."""

    def call(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
        try:
            return None if value is None else read(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from None

    return call


def slowdowns(text: str) -> tuple[float, ...]:
    """Return the numbers of a list, each once. Raises ValueError."""
    try:
        numbers = tuple(dict.fromkeys(map(float, text.split(","))))
    except ValueError:
        numbers = ()
    if not numbers or not all(LEAST <= one <= MOST for one in numbers):
        raise ValueError(f"write numbers from {LEAST:g} to {MOST:g}, separated by commas, like 1,1.1")
    return numbers


LAUNCH_OPTIONS = (
    click.Option(
        ["--kv-cache-memory"],
        callback=read_by(size),
        metavar="SIZE",
        help="KV cache of each worker, as for `launch` (default: the profile's).",
    ),
    click.Option(
        ["--kv-tier"],
        callback=read_by(kv_tiers),
        metavar="TIERS",
        help="As for `launch`: memory:SIZE, disk:PATH:SIZE or both with a comma. The path is not looked at.",
    ),
    click.Option(
        ["--speculative-tokens"],
        type=click.IntRange(0, 16),
        default=0,
        metavar="COUNT",
        help="Most tokens guessed at a time, as for `launch`, by what costs nothing or --speculative-model.",
    ),
    click.Option(
        ["--speculative-model"],
        metavar="NAME",
        help="The draft model that the profile was measured with guesses, as for `launch`.",
    ),
    click.Option(
        ["--accepted"],
        type=click.FloatRange(0, 1),
        default=0.0,
        metavar="SHARE",
        help="Chance that a guess is right if those before it are.",
    ),
    click.Option(
        ["--lend-cores/--no-lend-cores"],
        default=True,
        show_default=True,
        help="Whether idle workers lend each other cores, as with `launch`: those of --cores, each with its own.",
    ),
    click.Option(
        ["--slowdown"],
        callback=read_by(slowdowns),
        default="1",
        show_default=True,
        metavar="TIMES,…",
        help="Everything takes so many times as long as when the profile was measured; each load at each of several.",
    ),
    click.Option(
        ["--balance"],
        type=click.Choice(["none", "auto"]),
        default="none",
        show_default=True,
        help="Whether prefill and decode workers take each other's role as the load needs it, as with `launch`.",
    ),
    click.Option(
        ["--api-keys"],
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="As for `launch`: each request is of the next key, with its class, share and limits.",
    ),
)
