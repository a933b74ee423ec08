# SPDX-License-Identifier: Apache-2.0
"""Strangers on the network between hosts with keys: they have none, or those of another system, or show what is not
theirs. They connect to proxies and workers, speak as a worker would, and ask for blocks."""

from dataclasses import replace

from served_proxy import ProxyProcess
from supervised_site import SupervisedSite
from virtual_time import SeededWorld
from wire_keys import is_network
from worker_process import WorkerProcess

from pontil.runtime.transfer.grants import Grants
from pontil.runtime.wire.links.connection_monitor import Reachability
from pontil.runtime.wire.links.keys import SECRET_BYTES, Keys
from pontil.runtime.wire.links.sockets import PeerClient, open_context
from pontil.runtime.wire.messages import Abandon, Cancel, Tokens
from pontil.runtime.wire.simulated.processes import WorldProcess

# The most strangers of a seed, the seconds for which each stays, and between two looks of it.
MOST, STAYS, LOOK = 6, 3.0, 0.2


class StrangerProcess(WorldProcess):
    """The process of a stranger with these keys, which gives itself a name and tells a server something of requests."""

    world: SeededWorld

    def __init__(
        self, world: SeededWorld, keys: Keys | None, server: tuple[str, str], identity: str, requests: list[str]
    ) -> None:
        super().__init__(world, "stranger")
        self.leaves_at = world.now() + STAYS
        endpoint, receiver = server
        with self.inside():
            self.socket = PeerClient(open_context(keys), identity, endpoint)
            for request in requests:
                self.socket.send(Cancel(identity, receiver, request, 0))
                self.socket.send(Tokens(identity, receiver, request, 0, 0, [0]))
                self.socket.send(Abandon(identity, receiver, f"{request}.0", "a stranger says so"))
        self.notify()

    def turn(self) -> float | None:
        """Look whether anybody listens."""
        connection = self.socket.connection
        connection.look(self.world.now())
        if connection.state is Reachability.OPEN or self.socket.receive_all():
            self.world.violate(f"strangers_are_not_heard: {self.socket.endpoint} lets one in")
            self.leaves_at = 0.0
        if self.world.now() < self.leaves_at:
            return self.world.now() + LOOK
        self.world.note("stranger", connection.state.name)
        self.acts(self.world.now(), lambda: self.kill(0))
        return None


class Strangers:
    """The strangers of one seed."""

    def __init__(self, world: SeededWorld, site: SupervisedSite) -> None:
        self.world, self.site, self.chance = world, site, world.random("strangers")

    def plan(self, begin: float, seconds: float) -> None:
        for _ in range(self.chance.randrange(1, MOST)):
            self.world.at(begin + self.chance.random() * seconds, self.come)

    def come(self) -> None:
        """Connect to one of the servers, under the name of a worker or another one, and ask for blocks."""
        servers, chance, world = self.servers(), self.chance, self.world
        if servers and self.site.secret is not None:
            ours, others = Keys.of(self.site.secret), Keys.of(chance.randbytes(SECRET_BYTES).hex())
            keys = chance.choice((None, others, replace(ours, client=others.client)))
            requests = [request for one in self.site.proxies if one.proxy for request in one.proxy.requests]
            identity = chance.choice([*map(incarnation_of, self.site.all_workers), "stranger"])
            StrangerProcess(world, keys, chance.choice(servers), identity, requests[:2])
        for security in world.ghosts.security.values():
            self.ask_for_blocks(security.grants, chance.randbytes(16).hex())

    def servers(self) -> list[tuple[str, str]]:
        """Return the endpoints that a network reaches, each with the incarnation of its process."""
        bound, processes = self.world.network.bound, [*self.site.proxies, *self.site.all_workers]
        return [
            (endpoint, incarnation_of(socket.process))
            for endpoint, socket in bound.items()
            if is_network(endpoint) and socket.process in processes
        ]

    def ask_for_blocks(self, grants: Grants, secret: str) -> None:
        """Ask for the blocks of each transfer without its secret, and with it for one more."""
        for opened in list(grants.opened.values()):
            true, blocks, request = opened.granted, sorted(opened.blocks), self.chance.randbytes(8)
            more = [*blocks[1:], max(blocks, default=0) + 1]
            for shown, wanted in ((replace(true, secret=secret), blocks), (true, more)):
                runs, stamp = [(block, 1) for block in wanted], shown.stamp(request)
                if grants.admits(true.transfer_id, true.epoch, request, stamp, opened.slot, runs):
                    self.world.violate(f"strangers_are_not_heard: one may read blocks of {true.transfer_id}")


def incarnation_of(process: WorldProcess) -> str:
    if isinstance(process, ProxyProcess):
        assert process.proxy is not None
        return process.proxy.incarnation
    assert isinstance(process, WorkerProcess) and process.loop is not None
    return process.loop.sockets.incarnation
