# SPDX-License-Identifier: Apache-2.0
"""Rank 0 of a worker, as its followers hear it: it brings them together, and sends each the same plans."""

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from pontil.gpu_ops.collectives.communicator import Communicator
from pontil.gpu_ops.collectives.factory import MEET_WITHIN, create_communicator
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
from pontil.runtime.wire.links.context import Context
from pontil.runtime.wire.links.keys import Keys, is_network
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
        self.sent_at = 0.0
        self.followers: dict[int, str] = {}
        self.pools: list[dict[str, Any]] = []
        self.communicator: Communicator | None = None
        self.socket: PeerServer | None = None
        self.context = open_rank_context(config)
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
        size = shared_bytes(model, self.ranks if self.config.row_parallel else 1)
        deadline = ROUND_WITHIN if self.config.shares_experts else DEADLINE
        waits = self.config.deadlines.rendezvous_timeout
        hello_within, meet_within = (waits, waits) if self.config.spans_hosts else (LOAD_WITHIN, MEET_WITHIN)
        place = meeting_place(self.config)
        made = create_communicator(kernels, device, self.ranks, size, place, deadline, meet_within)
        self.communicator = made
        if self.socket is not None:
            self.report.progress(f"waiting for its ranks{' on other hosts' if self.config.spans_hosts else ''}")
        for rank, hello in self.collect(RankHello, hello_within).items():
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

    def collect(self, kind: type[M], within: float = LOAD_WITHIN) -> dict[int, M]:
        """Wait for one message of this kind from each follower."""
        found: dict[int, M] = {}
        deadline = time.monotonic() + within
        while len(found) < self.ranks - 1:
            for message in self.receive():
                if not isinstance(message, kind):
                    self.early.append(message)
                elif self.is_ours(message):
                    found[message.rank] = message
            if len(found) < self.ranks - 1:
                if time.monotonic() > deadline:
                    late = next(rank for rank in self.orders.followers if rank not in found)
                    raise ModelError(f"{name_of(late, self.config)} within {within:g} s")
                self.poller.wait(LOOK)
        return found

    def is_ours(self, message: RankHello | RankLoaded | RankReady) -> bool:
        """Return whether a message is from a follower of this driver: the first ones make themselves known."""
        known = isinstance(message, RankHello) or self.followers.get(message.rank) == message.sender
        return known and message.rank in self.orders.followers

    def receive(self) -> list[Message]:
        """Return the messages that have arrived. Raises RankLost if a rank has begun anew, on another host: its
        predecessor's end is not known here otherwise."""
        messages, self.early = self.early, []
        if self.socket is not None:
            messages += self.socket.receive_all()
        for hello in (one for one in messages if isinstance(one, RankHello)):
            if self.followers.get(hello.rank, hello.sender) != hello.sender:
                raise RankLost(f"rank {hello.rank} of this worker has ended, and was started anew")
        return messages

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

    def take_accepted(self, counts: Sequence[int]) -> None:
        self.orders.add("accepted", *counts)

    def flush(self) -> None:
        """Send the orders that wait, if there are any. Followers on other hosts get an empty plan after a while
        without one: nothing else tells that they are gone."""
        if self.socket is None:
            return
        is_quiet = self.config.spans_hosts and time.monotonic() - self.sent_at >= LOOK
        if self.orders.waiting or is_quiet:
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
        self.sent_at = time.monotonic()
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


def open_rank_context(config: WorkerConfig) -> Context:
    """Open the zmq context of the ranks' own sockets. Over a network they show the system's keys."""
    if config.keys is None or not is_network(str(config.rank_endpoint)):
        return open_context(link_timeout=config.deadlines.link_timeout)
    return open_context(Keys.of(config.keys), link_timeout=config.deadlines.link_timeout)


def meeting_place(config: WorkerConfig) -> str:
    """Return where torch.distributed's ranks find each other: a file beside the ranks' socket, or a port of its own at
    the same address."""
    endpoint = str(config.rank_endpoint)
    if is_network(endpoint):
        return f"{endpoint.rpartition(':')[0]}:0"
    return f"file://{endpoint.removeprefix('ipc://')}.store"


def name_of(rank: int, config: WorkerConfig) -> str:
    """Return the beginning of the sentence that a rank did not start; of one on another host, that its host did not
    come."""
    if not config.spans_hosts or rank * config.nnodes < config.ranks:
        return f"rank {rank} of this worker did not start"
    node = rank * config.nnodes // config.ranks
    return (
        f"host {node} of {config.nnodes}, with rank {rank} of this worker (--node-rank {node}), did not come to "
        f"{config.rank_endpoint}"
    )
