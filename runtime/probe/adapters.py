# SPDX-License-Identifier: Apache-2.0
"""Adapters of a launch, before anything is loaded."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pontil.runtime.errors import AdapterError
from pontil.runtime.loaders.config import read_config
from pontil.runtime.loaders.facts.adapter_facts import CONFIG, WEIGHTS, check_adapter, stored_digest


class ExaminedAdapter(NamedTuple):
    """An adapter that may be loaded: the digest of its files, their real directory, and the tokens that activate it, if
    there are any."""

    digest: str
    directory: str
    invocation: tuple[int, ...]


def check_adapters(adapters: Mapping[str, str], model: Path) -> None:
    """Raise AdapterError unless workers can compute each of the adapters, given by the directories of their names, for
    a model."""
    config = read_config(model) if adapters else None
    for name, directory in adapters.items():
        if config is not None:
            check_adapter(Path(directory), config, f"the adapter {name}")


def examine_adapter(directory: str, allowed: Sequence[str], model: Path) -> ExaminedAdapter:
    """Examine an adapter within the allowed directories. Raises ModelError for one that cannot be computed for the
    model, as far as that is known from its configuration and the header of its weights."""
    path = real_directory(directory, allowed)
    found = check_adapter(path, read_config(model), f"the adapter in {path}")
    return ExaminedAdapter(stored_digest(path, found.config), str(path), found.invocation)


def real_directory(directory: str, allowed: Sequence[str]) -> Path:
    """Return where a path leads. Raises AdapterError unless that, and both files there, are in one of the allowed
    directories: nothing is told of any other place."""
    roots = [Path(root).resolve() for root in allowed]
    try:
        path = Path(directory).resolve()
        places = [path, *((path / name).resolve() for name in (CONFIG, WEIGHTS))]
    except (OSError, ValueError, RuntimeError):
        places = [Path("/")]
    if not all(any(place.is_relative_to(root) for root in roots) for place in places):
        raise AdapterError("the adapter is not in a directory of --adapter-directory")
    return places[0]
