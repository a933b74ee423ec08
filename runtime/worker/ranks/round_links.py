# SPDX-License-Identifier: Apache-2.0
"""The links over which data-parallel ranks start together and call each other to rounds: all to rank 0, which passes on
what one of them calls."""

import secrets
from typing import Protocol

import torch

from pontil.gpu_ops.collectives.communicator import Communicator
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.errors import RankLost
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.reporting import Reporter
from pontil.runtime.wire.links.sockets import Poller, open_context
from pontil.runtime.wire.messages import RankLoaded, RankPool, RankReady, RankRound
from pontil.runtime.worker.ranks.driver import Driver
from pontil.runtime.worker.ranks.rank_client import RankClient


class RoundLink(Protocol):
    """One rank's end of the links."""

    def join(self, model: ModelConfig, kernels: KernelLibrary | None, device: torch.device) -> Communicator:
        """Make the communicator of all ranks."""

    def agree(self, loaded: tuple[str, str, str], num_blocks: int) -> None:
        """Wait until all have loaded, and check that it is the same: a model's and a layout's fingerprint and the name
        of the kernels. Raises ModelError."""

    def meet(self) -> None:
        """Wait until all are about to serve."""

    def call(self, number: int) -> None:
        """Call the others to a round. Raises RankLost."""

    def called(self) -> list[int]:
        """Return the numbers of the rounds to which others have called."""

    def watch(self, poller: Poller) -> None:
        """Have the worker's own poller wake for calls."""

    def close(self) -> None: ...


class FirstRankLink:
    """The end of rank 0."""

    def __init__(self, config: WorkerConfig, report: Reporter, ranks: int) -> None:
        self.driver = Driver(config, report, ranks)
        # The number of the last round to which all were called.
        self.last = 0

    def join(self, model: ModelConfig, kernels: KernelLibrary | None, device: torch.device) -> Communicator:
        return self.driver.join(model, kernels, device)

    def agree(self, loaded: tuple[str, str, str], num_blocks: int) -> None:
        self.driver.agree(*loaded, num_blocks)

    def meet(self) -> None:
        self.driver.collect(RankReady)
        self.call(0)

    def call(self, number: int, caller: str = "") -> None:
        """Call all, or all but the one that has called."""
        self.last, incarnation = number, self.driver.incarnation
        self.driver.send_all(lambda receiver: RankRound(incarnation, receiver, number), caller)

    def called(self) -> list[int]:
        rounds = [message for message in self.driver.receive() if isinstance(message, RankRound)]
        calls = [message for message in rounds if message.sender in self.driver.followers.values()]
        for message in calls:
            if message.number > self.last:
                self.call(message.number, message.sender)
        return [message.number for message in calls]

    def watch(self, poller: Poller) -> None:
        self.driver.watch(poller)

    def close(self) -> None:
        self.driver.close()


class OtherRankLink:
    """The end of any other rank."""

    def __init__(self, config: WorkerConfig, place: tuple[int, int]) -> None:
        self.context, self.poller = open_context(), Poller()
        self.client = RankClient(self.context, self.poller, secrets.token_hex(8), config, place)

    def join(self, model: ModelConfig, kernels: KernelLibrary | None, device: torch.device) -> Communicator:
        return self.client.join(model, kernels, device)

    def agree(self, loaded: tuple[str, str, str], num_blocks: int) -> None:
        client = self.client
        client.socket.send(RankLoaded(client.incarnation, client.driver, client.rank, *loaded, num_blocks))
        client.wait_for(RankPool)

    def meet(self) -> None:
        client = self.client
        client.socket.send(RankReady(client.incarnation, client.driver, client.rank, {}))
        # The steps that warmed up were rounds, to which all have called.
        while client.wait_for(RankRound).number:
            continue

    def call(self, number: int) -> None:
        if not self.client.socket.send(RankRound(self.client.incarnation, self.client.driver, number)):
            raise RankLost("rank 0 of this group takes no messages")

    def called(self) -> list[int]:
        return [message.number for message in self.client.receive() if isinstance(message, RankRound)]

    def watch(self, poller: Poller) -> None:
        poller.register(self.client.socket)

    def close(self) -> None:
        self.client.socket.close()
        self.client.leave()
        self.poller.close()
        self.context.term()
