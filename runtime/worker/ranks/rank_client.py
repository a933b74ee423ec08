# SPDX-License-Identifier: Apache-2.0
"""The connection of another rank to rank 0, over which it joins the group."""

import os
import time
from typing import TypeVar

import torch

from pontil.gpu_ops.collectives.communicator import Communicator
from pontil.gpu_ops.collectives.factory import open_communicator
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.errors import ModelError, RankLost
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.wire.links.context import Context
from pontil.runtime.wire.links.sockets import PeerClient, Poller
from pontil.runtime.wire.messages import Message, RankHello, RankPool, RankRound, RankWelcome
from pontil.runtime.worker.ranks.parting import Parting

# Seconds between two looks at whether the process is to stop while nothing arrives.
LOOK = 1.0
# Seconds that rank 0 may take to answer while the group starts.
START_WITHIN = 1800.0

M = TypeVar("M", RankWelcome, RankPool, RankRound)


class RankClient:
    """Rank `rank` of `ranks`. Rank 0, the `driver`, is known by its incarnation once it has answered."""

    def __init__(
        self,
        context: Context,
        poller: Poller,
        incarnation: str,
        config: WorkerConfig,
        place: tuple[int, int],
    ) -> None:
        endpoint = config.rank_endpoint
        assert endpoint is not None
        self.meet_within = config.deadlines.rendezvous_timeout if config.spans_hosts else START_WITHIN
        self.incarnation, self.poller, self.driver = incarnation, poller, ""
        self.rank, self.ranks = place
        self.socket = PeerClient(context, incarnation, endpoint)
        # The connections that had ended when this process last said that it is here.
        self.breaks = 0
        self.communicator: Communicator | None = None
        self.early: list[Message] = []
        poller.register(self.socket)

    def join(self, model: ModelConfig, kernels: KernelLibrary | None, device: torch.device) -> Communicator:
        """Say that this process is here, and open the communicator of all ranks. Raises ModelError if rank 0 does not
        come."""
        self.greet()
        welcome = self.wait_for(RankWelcome, self.meet_within)
        self.driver = welcome.sender
        self.communicator = open_communicator(kernels, device, welcome.communicator, self.rank)
        self.communicator.meet()
        return self.communicator

    def wait_for(self, kind: type[M], within: float = START_WITHIN) -> M:
        """Wait for the driver's next message, which is of this kind."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            messages = self.receive()
            for place, message in enumerate(messages):
                if isinstance(message, kind):
                    self.early = messages[place + 1 :]
                    return message
            self.poller.wait(LOOK)
        raise ModelError(f"rank 0 of this worker did not come to {self.socket.endpoint} within {within:g} s")

    def receive(self) -> list[Message]:
        """Return the messages that have arrived, with those that came behind one that was waited for. Raises RankLost
        once there are none and the connection has ended: no supervisor here tells of a driver on another host. Before
        it has answered, its successor is as good."""
        messages, self.early = self.early, []
        messages += self.socket.receive_all()
        if not messages and self.socket.breaks(time.monotonic()) > self.breaks:
            if self.driver:
                raise RankLost("the connection to rank 0 of this worker has ended")
            self.greet()
        return messages

    def greet(self) -> None:
        """Say that this process is here, over a new connection again."""
        self.breaks = self.socket.breaks(time.monotonic())
        self.socket.send(RankHello(self.incarnation, "", self.rank, self.ranks, os.getpid()))

    def leave(self) -> None:
        """Close the communicator, if there is one."""
        if self.communicator is not None:
            Parting(self.communicator).wait()
