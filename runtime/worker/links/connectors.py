# SPDX-License-Identifier: Apache-2.0
"""Choice of the connector that moves a worker's KV blocks."""

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.errors import ModelError
from pontil.runtime.foundation.connectors import AUTO, NAMES
from pontil.runtime.transfer.auto_connector import AutoConnector, Opener, opener
from pontil.runtime.transfer.connector import ConnectorOptions, SliceConnector
from pontil.runtime.transfer.security import TransferSecurity
from pontil.runtime.worker.links.worker_sockets import WorkerSockets


def open_connector(sockets: WorkerSockets, storage: KVStorage, guard: TransferSecurity | None = None) -> SliceConnector:
    """Open the configured connector, which wakes the worker when a pull has ended. `guard` protects data that crosses a
    network. Raises ModelError for an unknown name."""
    config = sockets.config
    if config.kv_connector not in NAMES:
        known = " and ".join([", ".join(NAMES[:-1]), NAMES[-1]])
        raise ModelError(f"--kv-connector {config.kv_connector} is not known: this version has {known}")
    options = ConnectorOptions(config.transfer_host, config.deadlines, guard, sockets.failures)
    made: Opener = AutoConnector if config.kv_connector == AUTO else opener(config.kv_connector)
    return made(storage, sockets.poller.wake, options)
