# SPDX-License-Identifier: Apache-2.0
"""Measured throughput of KV blocks from another process of this machine, over each connector as workers use it."""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.errors import PontilError, TransferError
from pontil.runtime.foundation.connectors import CONNECTORS, missing_package, optional, usable
from pontil.runtime.transfer.auto_connector import AutoConnector, opener
from pontil.runtime.transfer.connector import Connector, ConnectorOptions, Pull

# 360 KiB a block, as in a model of 135 million parameters.
LAYOUT = KVLayout(16, 30, 3, 64, "bfloat16")
BLOCKS, ROUNDS = 100, 5
PULL_TIMEOUT = 20.0


def measure() -> dict[str, float | str]:
    """Return by connector: bytes a second, the best of a few pulls of 36 MB, or the error in words.

    The other process is forked: call this before this process has started threads. Raise TransferError when the fork
    fails.
    """
    with lender() as descriptor:
        storage = filled_storage()
        rates = {kind: rate(kind, storage, descriptor) for kind in measurable()}
    return rates | absent()


def measurable() -> list[str]:
    """Return the connectors that can be tried here: those of `auto`, and those whose package is installed."""
    return usable(on_gpu=False) + [kind for kind in optional() if kind not in absent()]


def absent() -> dict[str, str]:
    """Return the connectors whose package is not installed, each with the sentence that says so."""
    sentences = {kind: missing_package(CONNECTORS[kind]) for kind in optional()}
    return {kind: sentence for kind, sentence in sentences.items() if sentence is not None}


def rate(kind: str, storage: KVStorage, descriptor: dict[str, Any]) -> float | str:
    wakeup = threading.Event()
    connector = opener(kind)(storage, wakeup.set, ConnectorOptions())
    try:
        connector.attach("peer", descriptor)
        return max(pull(connector, wakeup) for _ in range(ROUNDS))
    except TransferError as error:
        return str(error)
    finally:
        connector.close()


def pull(connector: Connector, wakeup: threading.Event) -> float:
    """Return bytes a second of one pull of all blocks. Raise TransferError."""
    wakeup.clear()
    start_time = time.monotonic()
    connector.pull(Pull("peer", [(block, block) for block in range(1, BLOCKS + 1)], 0))
    if not wakeup.wait(PULL_TIMEOUT):
        raise TransferError(f"a pull did not end within {PULL_TIMEOUT:.0f} s")
    (result,) = [pull.end for pull in connector.poll()]
    if result.error is not None:
        raise TransferError(result.error)
    return result.bytes / max(1e-9, time.monotonic() - start_time)


@contextmanager
def lender() -> Iterator[dict[str, Any]]:
    """Run another process whose blocks can be pulled, and yield its descriptor. It ends with the context, or with this
    process."""
    (answer_fd, tell), (wait, end) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(answer_fd)
        os.close(end)
        lend(tell, wait)
    os.close(tell)
    os.close(wait)
    try:
        with os.fdopen(answer_fd) as pipe:
            line = json.loads(pipe.readline() or "{}")
        if "kind" not in line:
            raise TransferError(line.get("error", "the process that lends its memory ended at once"))
        yield line
    finally:
        os.close(end)
        os.waitpid(pid, 0)


def lend(tell: int, wait: int) -> NoReturn:
    """Run as the other process: send the descriptor of our blocks, and wait until the reading side closes."""
    try:
        storage = filled_storage()
        connectors: list[Connector] = [AutoConnector(storage, lambda: None)]
        descriptor = connectors[0].register()
        for kind in measurable():
            if kind not in descriptor:
                connectors.append(opener(kind)(storage, lambda: None, ConnectorOptions()))
                descriptor[kind] = connectors[-1].register()
        os.write(tell, json.dumps(descriptor).encode() + b"\n")
        os.read(wait, 1)
        for connector in connectors:
            connector.close()
    except (PontilError, OSError) as error:
        os.write(tell, json.dumps({"error": str(error)}).encode() + b"\n")
    finally:
        os._exit(0)


def filled_storage() -> KVStorage:
    storage = KVStorage(LAYOUT, BLOCKS + 1, torch.device("cpu"))
    storage.shared.fill_(7)  # touches every page
    return storage
