# SPDX-License-Identifier: Apache-2.0
"""One process's agent of the library NIXL, with its backend UCX: memory that peers may read, and reads of theirs.

The library is used by its bindings alone: its Python layer prints to standard output, and has its progress thread spin.
A read that was begun cannot be taken back: releasing its handle returns at once, and the library goes on writing
(measured, decision 062). So whoever began one waits for its end.
"""

import logging
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from pontil.runtime.errors import TransferError
from pontil.runtime.foundation.connectors import CONNECTORS, missing_package
from pontil.runtime.foundation.loopback import is_loopback
from pontil.runtime.transfer.rdma import net_device

KIND = "nixl"
# Microseconds after which the library's own thread looks for work unasked: events wake it before, but for a fault of
# UCX that the library's authors mention. With 0, their default, the thread takes a whole core.
LOOK_UNASKED = 100_000
LOOPBACK_INTERFACE = "lo"

# Rows of address, bytes and device, uint64 [pieces, 3].
Rows = NDArray[np.uint64]


class PeerDisconnected(TransferError):
    """A read failed because the peer's process has ended or cannot be reached."""


@dataclass(frozen=True, slots=True)
class Bindings:
    """The library: its module, its version, and the exceptions that it raises, which have no class in common."""

    module: Any
    version: str
    errors: tuple[type[Exception], ...]

    @classmethod
    def load(cls) -> "Bindings":
        """Import the library. Raise TransferError where it is missing or cannot be loaded."""
        row = CONNECTORS[KIND]
        missing = missing_package(row)
        if missing is not None:
            raise TransferError(missing)
        raises, bindings = logging.raiseExceptions, None
        for name in row.packages:
            try:
                bindings = import_module(f"{name}._bindings"), version(name.replace("_", "-"))
                break
            except PackageNotFoundError:
                continue
            except ImportError as error:
                raise TransferError(f"the package {name} cannot be loaded: {error}") from None
        logging.raiseExceptions = raises  # the package sets it, for every user of logging
        assert bindings is not None
        names = [name for name in dir(bindings[0]) if name.startswith("nixl") and name.endswith("Error")]
        errors = tuple(getattr(bindings[0], name) for name in names)
        return cls(bindings[0], bindings[1], (*errors, RuntimeError, ValueError))


class NixlAgent:
    """The agent. It is known to peers by its `name`, which no other has. Its calls are made by one thread at a time;
    none of them waits for a peer, and none holds the interpreter while it copies."""

    def __init__(self, host: str, patience: float, gpu: str | None = None) -> None:
        """Make an agent that peers reach at our address `host`, and by RDMA where there are such devices. A connection
        whose peer acknowledges nothing for `patience` seconds is broken, which ends its reads. The memory is that of
        the GPU with this PCI address, or the host's. Raise TransferError."""
        self.library = Bindings.load()
        self.name = secrets.token_hex(16)
        module = self.library.module
        settings = module.nixlAgentConfig()
        settings.useProgThread, settings.pthrDelay = True, LOOK_UNASKED
        settings.useListenThread, settings.syncMode = False, module.NIXL_THREAD_SYNC_NONE
        # Without the first UCX listens on every interface, and without the second its TCP waits for a quarter of an
        # hour behind a cut link. UCX_NET_DEVICES and UCX_TCP_USER_TIMEOUT, where they are set, have precedence.
        network = network_for(host, gpu)
        config = f"NET_DEVICES={network},TCP_USER_TIMEOUT={math.ceil(patience)}s"
        try:
            self.agent = module.nixlAgent(self.name, settings)
            self.agent.createBackend("UCX", {"engine_config": config})
        except self.library.errors as error:
            raise TransferError(
                f"NIXL cannot open UCX on {network} ({error}): see whether UCX_NET_DEVICES or UCX_TLS "
                "leave it a transport"
            ) from None
        self.registered: list[Any] = []

    @property
    def version(self) -> str:
        """The version of the library: agents of other versions may not understand our metadata."""
        return self.library.version

    def share(self, memory: str, address: int, size: int, device: int = 0) -> None:
        """Let peers that know our metadata read this memory (DRAM or VRAM), and let us read into it."""
        module = self.library.module
        rows = module.nixlRegDList(getattr(module, f"{memory}_SEG"), [(address, size, device, "")])
        try:
            self.agent.registerMem(rows)
        except self.library.errors as error:
            raise TransferError(f"NIXL cannot register {size >> 20} MiB of {memory}: {error}") from None
        self.registered.append(rows)

    def metadata(self) -> bytes:
        """Return what a peer must know to read our memory: addresses of UCX, and keys of the shared memory."""
        metadata: bytes = self.agent.getLocalMD()
        return metadata

    def add(self, name: str, metadata: bytes) -> None:
        """Make the agent of that name readable. Raise TransferError. The library checks little of the metadata: it must
        come unchanged from another agent."""
        try:
            agent_name = self.agent.loadRemoteMD(metadata)
        except self.library.errors as error:
            self.remove(name)  # half of it may be there
            raise TransferError(f"NIXL cannot use the peer's metadata: {error}") from None
        if agent_name != name.encode():
            raise TransferError("the peer's NIXL metadata names another agent than its descriptor")

    def remove(self, name: str) -> None:
        """Forget a peer's agent and close the connection to it."""
        try:
            self.agent.invalidateRemoteMD(name)
        except self.library.errors:
            return  # it was not there, or had ended

    def read(self, name: str, memory: tuple[str, str], ours: Rows, theirs: Rows) -> int:
        """Begin to read the rows `theirs` of a peer's memory into `ours`, `memory` being the kinds of both; return a
        handle for `ended` and `release`. Raise TransferError when nothing was begun."""
        module = self.library.module
        kinds = [getattr(module, f"{kind}_SEG") for kind in memory]
        local, remote = module.nixlXferDList(kinds[0], ours), module.nixlXferDList(kinds[1], theirs)
        with self.said():
            handle: int = self.agent.createXferReq(module.NIXL_READ, local, remote, name)
        try:
            with self.said():
                self.agent.postXferReq(handle)
        except TransferError:
            self.release(handle)
            raise
        return handle

    def ended(self, handle: int) -> bool:
        """Return whether a read is complete. Raise TransferError when it has failed: nothing is written any more."""
        with self.said():
            return bool(self.agent.getXferStatus(handle) == self.library.module.NIXL_SUCCESS)

    def release(self, handle: int) -> None:
        """Free the handle of a read that has ended."""
        try:
            self.agent.releaseXferReq(handle)
        except self.library.errors:
            return  # the agent keeps it, and nothing else needs it

    def said(self) -> "LibraryErrors":
        return LibraryErrors(self.library)

    def close(self, peers: Sequence[str]) -> None:
        """End the agent and the connections to these peers. Only when no read is in progress."""
        for name in peers:
            self.remove(name)
        for rows in self.registered:
            try:
                self.agent.deregisterMem(rows)
            except self.library.errors:
                continue
        self.registered = []
        del self.agent


class LibraryErrors:
    """A context that turns what the library raises into TransferError."""

    def __init__(self, library: Bindings) -> None:
        self.library = library

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None or not issubclass(kind, self.library.errors):
            return
        if issubclass(kind, self.library.module.nixlRemoteDisconnectError):
            raise PeerDisconnected("the peer has ended or cannot be reached any more") from None
        raise TransferError(f"NIXL could not read the peer's memory: {error}") from None


def network_for(host: str, gpu: str | None) -> str:
    """Return the network device of UCX for an agent at this address of ours. NIXL 1.5.1 takes one: what it is told is
    cut at commas, and names in its own list become ports. Raise TransferError."""
    interface = interface_of(host)
    return interface if interface == LOOPBACK_INTERFACE else net_device(interface, gpu)


def interface_of(host: str) -> str:
    """Return the network interface that has this address of ours. Raise TransferError where none has it."""
    if is_loopback(host):
        return LOOPBACK_INTERFACE
    for name, addresses in psutil.net_if_addrs().items():
        if host in [address.address.partition("%")[0] for address in addresses]:
            return str(name)
    raise TransferError(f"no network interface of this machine has the address {host}")
