# SPDX-License-Identifier: Apache-2.0
"""Collectives by torch.distributed: gloo between CPUs, nccl between GPUs. The ranks find each other in a store, which
is a file or a TCP port of rank 0."""

import secrets
import socket
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store, TCPStore

from pontil.gpu_ops.collectives.communicator import CollectiveError, Counts, Recordings, added
from pontil.gpu_ops.collectives.descriptor import positive, text, whole
from pontil.gpu_ops.collectives.symmetric_memory import SymmetricSums, open_symmetric
from pontil.gpu_ops.device_mark import DeviceMark

KIND = "torch"
MOST_RANKS = 1024

T = TypeVar("T")


class TorchCommunicator:
    """A Communicator over a process group of torch; a process has one at a time. It connects in `meet`, or else in its
    first call, so that a driver can hand out its descriptor before the others are there."""

    def __init__(self, device: torch.device, descriptor: dict[str, Any], rank: int) -> None:
        self.device, self.descriptor = device, descriptor
        self.rank, self.size = rank, int(descriptor["ranks"])
        # The ranks once they have met: not the default group, whose patience is that of a meeting.
        self.group: dist.ProcessGroup | None = None
        # The store at a port, which rank 0 serves.
        self.store: Store | None = None
        self.failure: str | None = None
        # The way to add parts on devices, once any were added.
        self.sums: Callable[[Tensor], Tensor] | None = None
        self.recordings: WeakSet[Recordings] = WeakSet()

    @classmethod
    def create(
        cls, device: torch.device, ranks: int, store: str, deadline: float, meet_within: float
    ) -> "TorchCommunicator":
        """Be rank 0. `store` is file:///PATH, beside which a new file is made, or tcp://HOST:PORT, with port 0 for one
        that is free. Raises CollectiveError if nothing can listen there."""
        served: Store | None = None
        if store.startswith("file:"):
            store += f"-{secrets.token_hex(8)}"
        else:
            # A rank that connects has a deadline only if it is answered.
            served, store = serve_store(store, meet_within)
        descriptor = {"kind": KIND, "store": store, "ranks": ranks, "deadline": deadline, "meet_within": meet_within}
        communicator = cls(device, usable(descriptor), 0)
        communicator.store = served
        return communicator

    @classmethod
    def open(cls, device: torch.device, descriptor: dict[str, Any], rank: int) -> "TorchCommunicator":
        """Be another rank, with the descriptor of rank 0. Raises CollectiveError if it is not usable."""
        fields = usable(descriptor)
        if not 0 < rank < fields["ranks"]:
            raise CollectiveError(f"this worker has {fields['ranks']} ranks, and {rank} is none of the others")
        return cls(device, fields, rank)

    def meet(self) -> None:
        if self.group is None:
            self.together(lambda group: None)
        else:
            # The default group has a meeting's patience.
            self.together(lambda group: dist.barrier(), self.descriptor["meet_within"])

    def barrier(self) -> None:
        self.together(lambda group: dist.barrier(group))

    def gather_columns(self, part: Tensor) -> Tensor:
        rows, columns = part.shape
        return self.gathered(part).transpose(0, 1).reshape(rows, self.size * columns)

    def gathered(self, part: Tensor) -> Tensor:
        """Return the ranks' parts [rows, columns] behind each other: [size, rows, columns]."""
        parts = part.new_empty(self.size, *part.shape)
        if part.numel():
            # As bytes, since the backends do not know all types.
            target, part_bytes = parts.view(torch.uint8), part.contiguous().view(torch.uint8)
            self.together(lambda group: dist.all_gather_into_tensor(target.flatten(0, 1), part_bytes, group))
        return parts

    def all_reduce(self, part: Tensor, in_order: bool) -> Tensor:
        if in_order or self.device.type == "cpu":
            return added(self.gathered(part))
        part = part.contiguous()
        # No step is recorded before it has run once.
        if self.sums is None:
            self.sums = self.open_sums()
        return self.sums(part) if part.numel() else part

    def open_sums(self) -> Callable[[Tensor], Tensor]:
        """Return the way to add parts on devices. Ranks that meet at a port may be on several hosts, where one could
        wait for ever for memory that another cannot hand it."""
        if self.device.type != "cuda" or not self.descriptor["store"].startswith("file:"):
            return self.library_sums
        open_sums = partial(open_symmetric, library=self.library_sums, wait=lambda: DeviceMark(self.device).wait())
        symmetric = self.together(lambda group: open_sums(group, self.device, self.rank))
        return self.library_sums if symmetric is None else partial(self.symmetric_sums, symmetric)

    def symmetric_sums(self, symmetric: SymmetricSums, part: Tensor) -> Tensor:
        if symmetric.can_add(part):
            return self.together(lambda group: symmetric(part))
        return self.library_sums(part)

    def library_sums(self, part: Tensor) -> Tensor:
        """Add by the library, in place."""
        self.together(lambda group: dist.all_reduce(part, group=group))
        return part

    def choose_rows(self, x: Tensor, owner: Tensor) -> Tensor:
        """Sum whole numbers of which all ranks but one have 0: the bits are those of that one, and no rank needs memory
        for what the others have."""
        own_rows = torch.where(
            owner.to(x.device)[:, None] == self.rank, x, torch.zeros((), dtype=x.dtype, device=x.device)
        )
        if x.numel():
            whole_numbers = torch.int32 if x.shape[1] * x.element_size() % 4 == 0 else torch.uint8
            bits = own_rows.contiguous().view(whole_numbers)
            self.together(lambda group: dist.all_reduce(bits, group=group))
            return bits.view(x.dtype)
        return own_rows

    def all_to_all(self, x: Tensor, counts: Counts) -> Tensor:
        given, taken = list(counts[self.rank]), [one[self.rank] for one in counts]
        result = x.new_empty(sum(taken), x.shape[1])
        sizes = {count for one in counts for count in one}
        if sizes != {0} and x.shape[1]:
            target, own = result.view(torch.uint8), x.contiguous().view(torch.uint8)
            # Equal parts need no sizes, which a step that a device records could not have.
            to, of = (taken, given) if len(sizes) > 1 else (None, None)
            self.together(lambda group: dist.all_to_all_single(target, own, to, of, group))
        return result

    def broadcast(self, x: Tensor) -> None:
        self.together(lambda group: dist.broadcast(x.view(torch.uint8), 0, group))

    def together(self, call: Callable[[dist.ProcessGroup], T], patience: float | None = None) -> T:
        """Make a call of torch.distributed, which has this patience if it is not the usual one. After a failure every
        later one fails at once."""
        if self.failure is not None:
            raise CollectiveError(self.failure)
        patience = patience or self.descriptor["deadline" if self.group else "meet_within"]
        try:
            return call(self.group or self.connect())
        except (RuntimeError, ValueError, OSError) as error:
            first = str(error).strip().partition("\n")[0]
            self.failure = f"the ranks of this worker did not meet within {patience:g} s ({first})"
            raise CollectiveError(self.failure) from None

    def connect(self) -> dist.ProcessGroup:
        """Meet the other ranks. The first collective on GPUs may come long after the last rank is there: it is made
        here, with a meeting's patience."""
        on_gpu, descriptor = self.device.type != "cpu", self.descriptor
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            **self.meeting_place(),
            rank=self.rank,
            world_size=self.size,
            timeout=timedelta(seconds=descriptor["meet_within"]),
            device_id=self.device if on_gpu else None,
        )
        dist.barrier()
        self.group = dist.new_group(timeout=timedelta(seconds=descriptor["deadline"]))
        return self.group

    def drop_at_close(self, recordings: Recordings) -> None:
        self.recordings.add(recordings)

    def meeting_place(self) -> dict[str, Any]:
        """Return the store by which ranks find each other, as torch takes it."""
        if self.descriptor["store"].startswith("file:"):
            return {"init_method": self.descriptor["store"]}
        if self.store is None:
            self.store = open_store(self.descriptor["store"], self.descriptor["meet_within"])
        return {"store": self.store}

    def close(self) -> None:
        for recordings in list(self.recordings):
            recordings.drop()
        self.sums = None
        if dist.is_initialized():
            if self.failure is not None and self.device.type != "cpu":
                # The usual end waits for what was started, and a rank that has failed never ends that.
                dist.distributed_c10d._abort_process_group()
            else:
                dist.destroy_process_group()
        self.store = None
        self.group, self.failure = None, "this rank has left"


def serve_store(place: str, patience: float) -> tuple[Store, str]:
    """Serve a store at this address alone, where torch would at all of this host's. Return it, and the place with its
    port."""
    url = urlsplit(place)
    try:
        family, *_, address = socket.getaddrinfo(url.hostname, url.port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=MOST_RANKS)
        place = f"{place.rpartition(':')[0]}:{listener.getsockname()[1]}"
        return open_store(place, patience, listener), place
    except (OSError, ValueError, RuntimeError) as error:
        raise CollectiveError(f"ranks cannot meet at {place}: {error}") from None


def open_store(place: str, patience: float, listener: socket.socket | None = None) -> Store:
    """Open the store at a place, or be the one who serves it with this socket."""
    url, fd = urlsplit(place), None if listener is None else listener.detach()
    within = timedelta(seconds=patience)
    return TCPStore(str(url.hostname), url.port or 0, None, fd is not None, within, False, master_listen_fd=fd)


def usable(descriptor: dict[str, Any]) -> dict[str, Any]:
    """The values of a descriptor, each of its type and within its bounds. Raises CollectiveError."""
    store = text(descriptor, "store")
    if not store.startswith(("file:///", "tcp://")):
        raise CollectiveError(f"ranks cannot meet at {store!r}: it is no file:///PATH and no tcp://HOST:PORT")
    return {
        "kind": KIND,
        "store": store,
        "ranks": whole(descriptor, "ranks", MOST_RANKS),
        "deadline": positive(descriptor, "deadline"),
        "meet_within": positive(descriptor, "meet_within"),
    }
