# SPDX-License-Identifier: Apache-2.0
"""The command `conformance`: which behaviours of OpenAI's API a server has."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pontil.launcher.foundation.server_url import full_url
from pontil.launcher.keys.api_key import CLIENT, bearer, key_flag
from pontil.launcher.options.options import read_environment

if TYPE_CHECKING:
    from pontil.launcher.tools.conformance.check import CheckOutcome

SIGNS = {"pass": "pass   ", "differs": "DIFFERS", "refused": "refused"}


@click.command(short_help="Check any server for the behaviours of OpenAI's API.")
@click.argument("url")
@click.option("--model", metavar="NAME", help="The model to ask for (default: the first that is served).")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=120.0,
    show_default=True,
    help="Longest silence of the server, in seconds.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each behaviour.")
@key_flag(CLIENT)
def conformance(url: str, model: str | None, timeout: float, as_json: bool, key: Path | None) -> int:
    """Ask the server at URL some eighty short questions, and print which behaviours of OpenAI's API it has.

    A behaviour passes, differs, or is an optional part that the server refuses by name. Exit code 1 when one differs.
    """
    from pontil.launcher.foundation.server_client import first_model
    from pontil.launcher.tools.conformance.api import Api
    from pontil.launcher.tools.conformance.check import outcome
    from pontil.launcher.tools.conformance.suite import CHECKS

    full = full_url(url)
    headers = bearer(key, CLIENT, read_environment().variables)
    api = Api(full, model or first_model(full, headers), headers, timeout)
    outcomes = []
    for check in CHECKS:
        outcomes.append(outcome(check, api))
        for text in [json.dumps(asdict(outcomes[-1]))] if as_json else lines(outcomes):
            click.echo(text)
    if not as_json:
        click.echo("\n" + summary(outcomes))
    return 1 if any(check_outcome.verdict == "differs" for check_outcome in outcomes) else 0


def lines(outcomes: "Sequence[CheckOutcome]") -> Iterator[str]:
    """Yield the lines of the newest outcome, under the heading of a new topic."""
    last = outcomes[-1]
    if len(outcomes) == 1 or outcomes[-2].topic != last.topic:
        yield ("\n" if len(outcomes) > 1 else "") + last.topic
    yield f"  {SIGNS[last.verdict]}  {last.name}"
    if last.detail:
        yield f"           {last.detail}"


def summary(outcomes: "Sequence[CheckOutcome]") -> str:
    counts = {verdict: sum(outcome.verdict == verdict for outcome in outcomes) for verdict in SIGNS}
    return f"{counts['pass']} pass, {counts['differs']} differ, {counts['refused']} are refused by name"
