# SPDX-License-Identifier: Apache-2.0
"""The libraries of the nodes, imported when a node is made: a server without nodes needs none of them."""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from pontil.runtime.errors import ModelError

# The import names of what the extra `pontil[speech]` installs.
SPEECH = ("ctranslate2", "hibari", "onnxruntime", "soxr")


def missing() -> list[str]:
    """Return the libraries of speech that are not installed here."""
    return [name for name in SPEECH if find_spec(name) is None]


def library(name: str) -> ModuleType:
    """Import a library. Raises ModelError where it is not installed or does not work here."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ModelError(
            f"speech needs the library {name}, which cannot be imported ({error}): run `pip install pontil[speech]`"
        ) from error
