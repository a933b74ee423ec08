# SPDX-License-Identifier: Apache-2.0
"""The command `pull`: models into the cache, so that a launch finds them and needs no network."""

import json
from pathlib import Path

import click

from pontil.launcher.foundation.errors import LaunchError, OptionError
from pontil.launcher.options.options import read_environment
from pontil.runtime.errors import ModelError

INTERRUPTED = "Interrupted: what was fetched is kept, and the same command goes on there."


@click.command(short_help="Fetch models, so that a launch needs no network.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
def pull(names: tuple[str, ...], as_json: bool) -> None:
    """Fetch models into the cache directory, $PONTIL_CACHE or ~/.cache/pontil. `launch --model NAME` finds them there.

    NAME is a built-in model, or `owner/model[@revision][:file]` of the hub, where the file is a GGUF file of the
    repository or a quantization like Q4_K_M. Of a hub's model the newest state is fetched, each file is compared with
    its digest, and what an earlier run fetched is kept. HF_ENDPOINT names another hub, HF_TOKEN opens gated models.
    """
    from pontil.runtime.loaders.builtin import pull as fetch_model
    from pontil.runtime.loaders.builtin import source_of

    sources = {name: source_of(name) for name in names}
    for name, source in sources.items():
        if source is None:
            raise OptionError(
                f"{name!r} is no model to fetch: give a built-in name, or owner/model[@revision][:file] of the hub, "
                "which must be no path here."
            )
    environment, rows = read_environment(), list[dict[str, object]]()
    for name, source in sources.items():
        assert source is not None
        try:
            path, fetched = fetch_model(source, environment.cache_directory, environment.hub_access)
        except ModelError as error:
            raise LaunchError(f"{error}.") from None
        except KeyboardInterrupt:
            click.echo(f"\n{INTERRUPTED}", err=True)
            raise
        rows.append({"name": name, "path": str(path), "fetched_bytes": fetched})
        if not as_json:
            click.echo(shown(name, path, fetched))
    if as_json:
        click.echo(json.dumps(rows, indent=2))


def shown(name: str, path: Path, fetched: int) -> str:
    return f"{name}: {path} ({f'fetched {fetched / 1e6:.1f} MB' if fetched else 'was here'})"
