# SPDX-License-Identifier: Apache-2.0
"""Pools of KV blocks with a connector each, and functions that wait for their pulls."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from emulated_nixl import EmulatedAgent
from hostile_connector import HostileConnector
from staged import StagedStorage

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.foundation.connectors import CONNECTORS, missing_package
from pontil.runtime.transfer.auto_connector import AutoConnector
from pontil.runtime.transfer.connector import ConnectorOptions, Pair, Pull, PullResult, SliceConnector
from pontil.runtime.transfer.cuda.connector import CudaConnector
from pontil.runtime.transfer.cut_connector import CutConnector
from pontil.runtime.transfer.grants import Grant, Grants
from pontil.runtime.transfer.nixl.connector import NixlConnector
from pontil.runtime.transfer.security import TransferSecurity
from pontil.runtime.transfer.shm.connector import ShmConnector
from pontil.runtime.transfer.tcp.connector import TcpConnector

# Connectors whose library is not a part of the suite, by the name of a kind.
OPTIONAL = {"nixl": "nixl", "nixl-staged": "nixl"}
LAYOUT = KVLayout(16, 2, 2, 8, "bfloat16")
DEADLINE = 60.0

Open = Callable[[KVStorage, Callable[[], None]], SliceConnector]


class AnyPass(Grants):
    """Grants that admit every pull, for tests that are not about grants."""

    def admits(self, *told: Any) -> bool:
        return True


class GuardedPool(TcpConnector):
    """TCP with encryption and a grant for every pull, for tests that are not about grants."""

    def __init__(self, storage: KVStorage, wake: Callable[[], None]) -> None:
        super().__init__(storage, wake, ConnectorOptions(guard=TransferSecurity(b"s" * 32, AnyPass())))

    def pull(self, pull: Pull) -> None:
        pull.shown = Grant("any", 0, "any")
        super().pull(pull)


class EmulatedCuda(CudaConnector):
    """The connector between GPUs, whose memory is emulated."""

    storage_kind = StagedStorage


class EmulatedNixl(NixlConnector):
    """The connector over NIXL, without the library: its agent is emulated."""

    agent_kind = EmulatedAgent


class StagedNixl(NixlConnector):
    """NIXL between pools of an emulated device, whose memory is the host's."""

    storage_kind = StagedStorage


KINDS: dict[str, Open] = {
    "cuda": EmulatedCuda, "emulated-nixl": EmulatedNixl, "nixl": NixlConnector, "nixl-staged": StagedNixl,
    "shm": ShmConnector, "tcp": TcpConnector, "sealed": GuardedPool, "auto": AutoConnector, "hostile": HostileConnector,
    "cut": lambda storage, wake: CutConnector(ShmConnector(storage, wake), wake),
}  # fmt: skip


class Pool:
    """A pool of random blocks with its connector and the results of its pulls."""

    def __init__(self, open_connector: Open, blocks: int = 40, layout: KVLayout = LAYOUT) -> None:
        self.storage = getattr(open_connector, "storage_kind", KVStorage)(layout, blocks, torch.device("cpu"))
        self.storage.own.random_(0, 256)
        self.wakeup = threading.Event()
        self.connector = open_connector(self.storage, self.wakeup.set)
        self.ended: list[Pull] = []

    def pull(
        self, peer: str, pairs: Sequence[Pair], slot: int, shown: Grant | None = None, heads: range | None = None
    ) -> Pull:
        """Begin a pull."""
        pull = Pull(peer, pairs, slot, shown, heads)
        self.connector.pull(pull)
        return pull

    def finish(self, *pulls: Pull) -> list[PullResult]:
        """Return the results of these pulls, in this order; one that ends twice is an error."""
        until = time.monotonic() + DEADLINE
        while not set(pulls) <= set(self.ended):
            assert self.wakeup.wait(max(0.0, until - time.monotonic())), "a pull did not end"
            self.wakeup.clear()
            self.ended += self.connector.poll()
        assert len(set(self.ended)) == len(self.ended)
        return [pull.end for pull in pulls]

    def has(self, ours: list[int], other: "Pool", theirs: list[int]) -> bool:
        return torch.equal(self.storage.own[ours], other.storage.own[theirs])


def need(kind: str) -> None:
    """Skip the test where the library of this kind of connector is not installed."""
    missing = missing_package(CONNECTORS[OPTIONAL[kind]]) if kind in OPTIONAL else None
    if missing is not None:
        pytest.skip(missing)


def without_memory(descriptor: dict[str, Any]) -> dict[str, Any]:
    """Return the descriptor as seen from another host, where another process may have that pid and descriptor."""
    near = descriptor.get("shm")
    return descriptor | {"shm": near | {"identity": "00" * 16}} if isinstance(near, dict) else descriptor


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < until, "the condition did not come true in time"
        time.sleep(0.005)  # a copying thread or another process signals no wake-up here
