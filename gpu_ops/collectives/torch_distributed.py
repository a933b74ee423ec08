# SPDX-License-Identifier: Apache-2.0
"""Collectives by torch.distributed: gloo between CPUs, nccl between GPUs. The ranks find each other in a store, which
is a file or a TCP port of rank 0."""

import secrets
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pontil.gpu_ops.collectives.communicator import CollectiveError
from pontil.gpu_ops.collectives.descriptor import positive, text, whole

KIND = "torch"
MOST_RANKS = 1024


class TorchCommunicator:
    """A Communicator over the default process group of torch, of which a process has one at a time. It connects in its
    first call, so that a driver can hand out its descriptor before the others are there."""

    def __init__(self, device: torch.device, descriptor: dict[str, Any], rank: int) -> None:
        self.device, self.descriptor = device, descriptor
        self.rank, self.size = rank, int(descriptor["ranks"])
        self.is_connected = False
        self.failure: str | None = None

    @classmethod
    def create(cls, device: torch.device, ranks: int, store: str, deadline: float) -> "TorchCommunicator":
        """Be rank 0. `store` is file:///PATH, beside which a new file is made, or tcp://HOST:PORT."""
        if store.startswith("file:"):
            store += f"-{secrets.token_hex(8)}"
        descriptor = {"kind": KIND, "store": store, "ranks": ranks, "deadline": deadline}
        return cls(device, usable(descriptor), 0)

    @classmethod
    def open(cls, device: torch.device, descriptor: dict[str, Any], rank: int) -> "TorchCommunicator":
        """Be another rank, with the descriptor of rank 0. Raises CollectiveError if it is not usable."""
        checked = usable(descriptor)
        if not 0 < rank < checked["ranks"]:
            raise CollectiveError(f"this worker has {checked['ranks']} ranks, and {rank} is none of the others")
        return cls(device, checked, rank)

    def barrier(self) -> None:
        self.together(dist.barrier)

    def gather_columns(self, part: Tensor) -> Tensor:
        if not part.numel():
            return part.new_empty(part.shape[0], self.size * part.shape[1])
        return torch.cat(self.all_of(part), dim=1)

    def choose_rows(self, x: Tensor, owner: Tensor) -> Tensor:
        if not x.numel():
            return x
        rows = torch.arange(len(x), device=x.device)
        chosen: Tensor = torch.stack(self.all_of(x))[owner.to(x.device), rows]
        return chosen

    def all_of(self, x: Tensor) -> list[Tensor]:
        """Return every rank's tensor, moved as bytes, since the backends do not know all types."""
        own = x.contiguous().view(torch.uint8)
        parts = [torch.empty_like(own) for _ in range(self.size)]
        self.together(lambda: dist.all_gather(parts, own))
        return [part.view(x.dtype) for part in parts]

    def together(self, call: Callable[[], Any]) -> None:
        """Make a call of torch.distributed. After a failure every later one fails at once."""
        if self.failure is not None:
            raise CollectiveError(self.failure)
        try:
            self.connect()
            call()
        except (RuntimeError, ValueError, OSError) as error:
            first = str(error).strip().partition("\n")[0]
            self.failure = f"the ranks of this worker did not meet within {self.descriptor['deadline']:g} s ({first})"
            raise CollectiveError(self.failure) from None

    def connect(self) -> None:
        if self.is_connected:
            return
        on_gpu = self.device.type == "cuda"
        dist.init_process_group(
            "nccl" if on_gpu else "gloo", self.descriptor["store"], rank=self.rank, world_size=self.size,
            timeout=timedelta(seconds=self.descriptor["deadline"]), device_id=self.device if on_gpu else None,
        )  # fmt: skip
        self.is_connected = True

    def close(self) -> None:
        if self.is_connected:
            dist.destroy_process_group()
            self.is_connected = False
        self.failure = "this rank has left"


def usable(descriptor: dict[str, Any]) -> dict[str, Any]:
    """The values of a descriptor, each of its type and within its bounds. Raises CollectiveError."""
    store = text(descriptor, "store")
    if not store.startswith(("file:///", "tcp://")):
        raise CollectiveError(f"ranks cannot meet at {store!r}: it is no file:///PATH and no tcp://HOST:PORT")
    return {
        "kind": KIND, "store": store, "ranks": whole(descriptor, "ranks", MOST_RANKS),
        "deadline": positive(descriptor, "deadline"),
    }  # fmt: skip
