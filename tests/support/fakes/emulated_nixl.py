# SPDX-License-Identifier: Apache-2.0
"""The agent of NIXL without its library: it reads the memory of other processes through /proc, at the addresses that it
is given, and its reads end when the test lets them."""

import ctypes
import json
import os
import secrets
import threading
from collections.abc import Sequence
from itertools import count

from pontil.runtime.errors import TransferError
from pontil.runtime.transfer.nixl.agent import NixlAgent, PeerDisconnected, Rows


class EmulatedAgent(NixlAgent):
    """The agent. Reads of peers in `held` do not end. `begun` has every read's peer and its rows of the peer's memory;
    `added` and `removed` have the names of agents, `shared` has spans of memory that peers may read."""

    def __init__(self, host: str, patience: float, gpu: str | None = None) -> None:
        self.host, self.patience, self.name = host, patience, secrets.token_hex(16)
        self.numbers, self.files = count(1), dict[str, int]()
        self.reads: dict[int, tuple[str, Rows, Rows]] = {}
        self.begun: list[tuple[str, list[list[int]]]] = []
        self.added, self.removed = list[str](), list[str]()
        self.shared: list[tuple[int, int]] = []
        self.held: set[str] = set()
        self.looks = 0
        self.callers: set[str] = set()

    @property
    def version(self) -> str:
        return "emulated"

    def share(self, memory: str, address: int, size: int, device: int = 0) -> None:
        self.shared.append((address, size))

    def metadata(self) -> bytes:
        return json.dumps({"pid": os.getpid(), "name": self.name}).encode()

    def add(self, name: str, metadata: bytes) -> None:
        self.callers.add(threading.current_thread().name)
        try:
            self.files[name] = os.open(f"/proc/{json.loads(metadata)['pid']}/mem", os.O_RDONLY)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TransferError(f"NIXL cannot use the peer's metadata: {error}") from None
        self.added.append(name)

    def remove(self, name: str) -> None:
        self.removed.append(name)
        if name in self.files:
            os.close(self.files.pop(name))

    def read(self, name: str, memory: tuple[str, str], ours: Rows, theirs: Rows) -> int:
        assert [row[1] for row in ours.tolist()] == [row[1] for row in theirs.tolist()]
        for address, size, _ in ours.tolist():
            assert any(first <= address and address + size <= first + most for first, most in self.shared)
        handle = next(self.numbers)
        self.reads[handle] = name, ours, theirs
        self.begun.append((name, theirs.tolist()))
        return handle

    def ended(self, handle: int) -> bool:
        self.looks += 1
        self.callers.add(threading.current_thread().name)
        name, ours, theirs = self.reads[handle]
        if name in self.held:
            return False
        for (mine, size, _), (other, _, _) in zip(ours.tolist(), theirs.tolist(), strict=True):
            came = os.pread(self.files[name], size, other) if name in self.files else b""
            if len(came) != size:
                raise PeerDisconnected("the peer has ended or cannot be reached any more")
            ctypes.memmove(mine, came, size)
        return True

    def release(self, handle: int) -> None:
        del self.reads[handle]

    def close(self, peers: Sequence[str]) -> None:
        assert not self.reads, "reads in progress may still write"
        for name in peers:
            self.remove(name)
