# SPDX-License-Identifier: Apache-2.0
"""The API key that a command sends to a server, from a file or from the environment."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from pontil.launcher.keys.client_keys import of_environment, of_file
from pontil.launcher.options.environment import ADMIN_VARIABLE, CLIENT_VARIABLE

CLIENT = (CLIENT_VARIABLE, ADMIN_VARIABLE)
ADMIN = (ADMIN_VARIABLE, CLIENT_VARIABLE)


def key_flag(names: tuple[str, ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option `--key`; without it, the command looks in these variables."""
    return click.option(
        "--key",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"File whose first key is shown to the server (default: the first in {names[0]}).",
    )


def bearer(file: Path | None, names: tuple[str, ...], variables: Mapping[str, str]) -> dict[str, str]:
    """Return the authorization header; empty if there is no key. Raises OptionError."""
    if file is not None:
        return {"authorization": f"Bearer {of_file(file)[0].key}"}
    key = next((keys[0].key for name in names if (keys := of_environment(name, variables))), None)
    return {} if key is None else {"authorization": f"Bearer {key}"}
