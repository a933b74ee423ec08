# SPDX-License-Identifier: Apache-2.0
"""Rank 0 of a worker, as its followers hear it: it brings them together, and sends each the same plans."""

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from pontil.gpu_ops.collectives.communicator import Communicator
from pontil.gpu_ops.collectives.factory import create_communicator
from pontil.gpu_ops.collectives.shared_memory import DEADLINE
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.runtime.cache.follower_records import left_in
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.disaggregation.rank_orders import RankOrders
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.engine.tiles.plan_tables import PlanWriter
from pontil.runtime.errors import ModelError, RankLost
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.models.layers.fused_block import shared_bytes
from pontil.runtime.reporting import Reporter
from pontil.runtime.wire.codec import encode
from pontil.runtime.wire.links.sockets import PeerServer, Poller, open_context
from pontil.runtime.wire.messages import (
    Message,
    RankDone,
    RankHello,
    RankLoaded,
    RankPlan,
    RankPool,
    RankReady,
    RankWelcome,
)
from pontil.runtime.worker.ranks.parting import Parting

logger = logging.getLogger("pontil.worker")

# Seconds between two looks at whether the process is to stop while it waits for others.
LOOK = 1.0
# Seconds that a follower may take to load its part after rank 0 has loaded its own; the supervisor ends a worker whose
# rank has ended at once.
LOAD_WITHIN = 1800.0
# Seconds that ranks which share experts wait in a step for what another one computes of its own rows. One that has
# ended is noticed at once.
ROUND_WITHIN = 120.0

M = TypeVar("M", RankHello, RankLoaded, RankReady)


class Driver:
    """The driver of `ranks` - 1 followers, which may be none. Not thread-safe: the engine's thread makes every call.

    `orders` are what the followers are to do with KV blocks; they travel with the next plan. `pools` are the
    descriptors of the followers' pools, in the order of ranks.
    """

    def __init__(self, config: WorkerConfig, report: Reporter, ranks: int | None = None) -> None:
        """Serve the worker's own ranks, or so many that are workers themselves."""
        self.config, self.report = config, report
        self.incarnation = secrets.token_hex(8)
        self.ranks = ranks or config.ranks
        self.orders, self.plans = RankOrders(self.ranks), PlanWriter()
        self.followers: dict[int, str] = {}
        self.pools: list[dict[str, Any]] = []
        self.communicator: Communicator | None = None
        self.socket: PeerServer | None = None
        self.context = open_context()
        self.poller = Poller()
        if self.ranks > 1:
            assert config.rank_endpoint is not None
            self.socket = PeerServer(self.context, config.rank_endpoint)
            self.poller.register(self.socket)
        # Arrived while something else was waited for.
        self.early: list[Message] = []

    @property
    def none(self) -> bool:
        """Return whether there are no followers."""
        return self.orders.ranks == 1

    def join(self, model: ModelConfig, kernels: KernelLibrary | None, device: torch.device) -> Communicator:
        """Wait for the followers' processes, and make the communicator of all ranks."""
        store = f"file://{str(self.config.rank_endpoint).removeprefix('ipc://')}.store"
        size = shared_bytes(model, self.ranks if self.config.row_parallel else 1)
        deadline = ROUND_WITHIN if self.config.shares_experts else DEADLINE
        made = create_communicator(kernels, device, self.ranks, size, store, deadline)
        self.communicator = made
        if self.socket is not None:
            self.report.progress("waiting for its ranks")
        for rank, hello in self.collect(RankHello).items():
            if hello.ranks != self.ranks:
                raise ModelError(f"rank {rank} was started for {hello.ranks} ranks, and there are {self.ranks}")
            self.followers[rank] = hello.sender
        self.send_all(lambda receiver: RankWelcome(self.incarnation, receiver, made.descriptor))
        made.meet()
        return made

    def agree(
        self, model_fingerprint: str, kv_fingerprint: str, kernels: str, num_blocks: int, first_epoch: int = 0
    ) -> int:
        """Wait until the followers have loaded their parts, check that these are parts of the model that rank 0 has
        loaded, and return the number of blocks that all have room for. Tell them the first epoch of every pool."""
        ours = (model_fingerprint, kv_fingerprint, kernels)
        for rank, other in self.collect(RankLoaded).items():
            if (other.model_fingerprint, other.kv_fingerprint, other.kernels) != ours:
                raise ModelError(
                    f"rank {rank} has loaded another model, or computes with other kernels ({other.kernels})"
                )
            num_blocks = min(num_blocks, other.num_blocks)
        self.send_all(lambda receiver: RankPool(self.incarnation, receiver, num_blocks, first_epoch))
        return num_blocks

    def wait_for_pools(self) -> None:
        ready = self.collect(RankReady)
        self.pools = [ready[rank].pool for rank in sorted(ready)]
        self.orders.left = [left_in(ready[rank].left) for rank in sorted(ready)]

    def collect(self, kind: type[M]) -> dict[int, M]:
        """Wait for one message of this kind from each follower."""
        found: dict[int, M] = {}
        deadline = time.monotonic() + LOAD_WITHIN
        while len(found) < self.ranks - 1:
            for message in self.receive():
                if not isinstance(message, kind):
                    self.early.append(message)
                elif message.rank in self.orders.followers:
                    found[message.rank] = message
            if len(found) < self.ranks - 1:
                if time.monotonic() > deadline:
                    late = [rank for rank in self.orders.followers if rank not in found]
                    raise ModelError(f"rank {late[0]} of this worker did not start within {LOAD_WITHIN:g} s")
                self.poller.wait(LOOK)
        return found

    def receive(self) -> list[Message]:
        messages, self.early = self.early, []
        return messages if self.socket is None else messages + self.socket.receive_all()

    def watch(self, poller: Poller) -> None:
        """Have the worker's own poller wake for followers' messages."""
        if self.socket is not None:
            poller.register(self.socket)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.orders.add("copies", *([source, target] for source, target in pairs))

    def run(self, plan: TilePlan) -> None:
        if self.socket is not None:
            self.orders.add("tiles", self.plans.write(plan))
            self.flush()

    def flush(self) -> None:
        """Send the orders that wait, if there are any."""
        if self.orders.waiting:
            self.send_plan()

    def stop(self) -> None:
        """Have the followers leave after what was sent before."""
        if self.socket is not None and self.followers:
            self.send_plan(stop=True)

    def send_plan(self, stop: bool = False) -> None:
        """Send the next plan to every follower, encoded once. One that cannot be queued ends the worker: its ranks
        would differ."""
        assert self.socket is not None
        number, fields = self.orders.take()
        frame = encode(RankPlan(self.incarnation, "", number, **fields, stop=stop))
        for rank, receiver in self.followers.items():
            if not self.socket.send_frame(receiver, frame):
                raise RankLost(f"rank {rank} of this worker takes no plans")

    def send_all(self, message: Callable[[str], Message], but: str = "") -> None:
        """Send a message of its own to every follower, but for the one of this incarnation."""
        for rank, receiver in self.followers.items():
            assert self.socket is not None
            if receiver != but and not self.socket.send(message(receiver)):
                raise RankLost(f"rank {rank} of this worker takes no messages")

    def take(self) -> list[RankDone]:
        """Return the followers' answers that have arrived."""
        if not self.followers:
            return []
        known = {(incarnation, rank) for rank, incarnation in self.followers.items()}
        return [
            message
            for message in self.receive()
            if isinstance(message, RankDone) and (message.sender, message.rank) in known
        ]

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close(linger=0.5)
        if self.communicator is not None:
            Parting(self.communicator).wait()
        self.poller.close()
        self.context.term()
