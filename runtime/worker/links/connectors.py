# SPDX-License-Identifier: Apache-2.0
"""Choice of the connector that moves a worker's KV blocks."""

from collections.abc import Callable

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.errors import ModelError
from pontil.runtime.foundation.connectors import AUTO, NAMES
from pontil.runtime.threads import ThreadFailures
from pontil.runtime.transfer.auto_connector import AutoConnector, opener
from pontil.runtime.transfer.connector import ConnectorOptions, SliceConnector
from pontil.runtime.transfer.security import TransferSecurity


def open_connector(
    config: WorkerConfig, storage: KVStorage, wake: Callable[[], None], guard: TransferSecurity | None = None,
    failures: ThreadFailures | None = None,
) -> SliceConnector:  # fmt: skip
    """Open the configured connector. `guard` protects data that crosses a network; `wake` wakes the worker when a pull
    has ended. Raises ModelError for an unknown name."""
    if config.kv_connector not in NAMES:
        known = " and ".join([", ".join(NAMES[:-1]), NAMES[-1]])
        raise ModelError(f"--kv-connector {config.kv_connector} is not known: this version has {known}")
    options = ConnectorOptions(config.transfer_host, config.deadlines, guard, failures)
    made = AutoConnector.create if config.kv_connector == AUTO else opener(config.kv_connector)
    return made(storage, wake, options)
