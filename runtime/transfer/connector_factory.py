# SPDX-License-Identifier: Apache-2.0
"""Connectors by the names in the table of `runtime/foundation/connectors.py`."""

from collections.abc import Callable
from importlib import import_module

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.foundation.connectors import CONNECTORS
from pontil.runtime.transfer.connector import ConnectorOptions, SliceConnector

Opener = Callable[[KVStorage, Callable[[], None], ConnectorOptions], SliceConnector]


def opener(name: str) -> Opener:
    """Return the function that opens a connector of that name: its class's `create`."""
    module, _, found = CONNECTORS[name].target.partition(":")
    made: Opener = getattr(import_module(f"pontil.{module}"), found).create
    return made
