# SPDX-License-Identifier: Apache-2.0
"""The links of the world, between DEALERs and ROUTERs (wire_sockets.py): with latency, in order. They can be cut, and
go silent. And the poller. libzmq's own thread runs on while a process computes, and stops with it."""

import math
import random
import select
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import zmq

from pontil.runtime.wire.simulated.processes import WorldProcess
from pontil.runtime.wire.simulated.virtual_time import HERE, VirtualWorld

# Seconds on the way; one message in five takes so much longer on average.
LATENCY, JITTER, JITTERY = 60e-6, 0.5e-3, 0.2
# Seconds until one end of a link hears that the other is gone, at most, beside the latency.
NOTICED_WITHIN = 0.002
# Seconds without a sign of life, after which both ends take a link for cut.
LINK_TIMEOUT = 5.0
# Fewer messages than this go over a connection of a network that flaps.
FLAPS_AFTER = 6
# The end of the addresses at which ranks meet.
RANKS = "-ranks"
FIRST_DESCRIPTOR, FIRST_PORT = 1_000_000, 32_768
# A plain number: operators of zmq's enumerations are slow.
READABLE = int(zmq.POLLIN)
TO_ROUTER, TO_DEALER = 0, 1


class WireLink:
    """One connection of a DEALER to a ROUTER. It carries messages once it `works`, after the handshake."""

    def __init__(self, network: "WireNetwork", dealer: Any, router: Any) -> None:
        self.network, self.world = network, network.world
        self.dealer, self.router, self.identity = dealer, router, dealer.identity
        self.ends: tuple[Any, Any] = (router, dealer)
        self.open, self.works = True, False
        # It breaks with the message on its way that comes after so many.
        flapping = network.flapping.get(dealer.process.name) or network.flapping.get(router.process.name)
        flapping = flapping if self.can_break else None
        self.messages_left = math.inf if flapping is None else flapping.randrange(FLAPS_AFTER)
        # True once another connection has taken its id: the ROUTER hears it no more, and nobody is told.
        self.is_replaced = False
        # Messages that the ROUTER has not read.
        self.unread: deque[Sequence[bytes]] = deque()
        # By direction: the time of the last arrival; that from which nothing arrives, for the link is broken.
        self.arrivals, self.until = [0.0, 0.0], [math.inf, math.inf]
        # By direction: messages with the times at which they left, in the order of these, which is that of their
        # arrivals; since when it is silent, and how many arrivals it holds back; whether the kernel of an end that is
        # gone still has those.
        self.on_way: tuple[deque[tuple[Sequence[bytes], WorldProcess, float]], ...] = (deque(), deque())
        self.silent_since: list[float | None] = [None, None]
        self.held, self.kept = [0, 0], [False, False]

    def __repr__(self) -> str:
        return f"{self.dealer.process}-{self.router.process}"

    @property
    def names(self) -> tuple[str, str]:
        return self.router.process.name, self.dealer.process.name

    @property
    def can_break(self) -> bool:
        """Return whether it can break, or be silent, while both ends live: not between ranks, which meet at a socket
        file of their host."""
        return not self.dealer.endpoint.endswith(RANKS)

    def greet(self) -> None:
        """Shake hands, once the server's process runs, as far as the keys of both ends allow it."""
        if self.open:
            self.network.examine(self)

    def refuse(self, event: int, value: int) -> None:
        """Have the DEALER know that it may not connect."""
        if self.open:
            self.world.note("refuse", self, value)
            self.open = False
            self.dealer.process.acts(self.world.time + LATENCY, partial(self.dealer.refused, self, event, value))

    def welcome(self) -> None:
        if self.open:
            self.world.note("connect", self)
            self.router.accept(self)
            self.dealer.process.acts(self.world.time + LATENCY, self.begin)

    def begin(self) -> None:
        if self.open:
            self.works = True
            self.dealer.connected(self)

    def carry(self, way: int, parts: Sequence[bytes], sender: WorldProcess) -> None:
        sender.acts(self.world.now(), partial(self.leave, way, parts, sender))

    def leave(self, way: int, parts: Sequence[bytes], sender: WorldProcess) -> None:
        now = self.world.now()
        self.on_way[way].append((parts, sender, now))
        if self.silent_since[way] is None:
            self.send_one(way, now)
        else:
            self.held[way] += 1

    def send_one(self, way: int, now: float) -> None:
        chance = self.network.chance
        delay = LATENCY + (chance.expovariate(1 / self.network.jitter) if chance.random() < JITTERY else 0.0)
        when, before = now + delay, self.arrivals[way] + 1e-7
        when = self.arrivals[way] = when if when > before else before
        self.world.at(when, self.arrive, way)
        self.messages_left -= 1
        if self.messages_left < 0:
            self.cut()

    def arrive(self, way: int) -> None:
        if self.silent_since[way] is not None:
            self.held[way] += 1
            return
        (parts, sender, _), target = self.on_way[way].popleft(), self.ends[way]
        if target.closed:
            # The kernel answers for it with a reset, and drops what it still has.
            self.kept[1 - way] = False
        if target.closed or self.world.time > self.until[way] or (self.is_replaced and way == TO_ROUTER):
            return
        self.world.note_message(sender.name, target.process.name, parts)
        target.take(self, parts)

    def silence(self, way: int) -> None:
        """Let nothing through in one direction, and tell nobody, until who hears nothing takes the link for cut."""
        if self.silent_since[way] is None:
            since = self.silent_since[way] = self.world.time
            self.world.note("silent", self, way)
            self.world.after(LINK_TIMEOUT, lambda: self.cut() if self.silent_since[way] == since else None)

    def mend(self, way: int) -> None:
        held, self.held[way], self.silent_since[way] = self.held[way], 0, None
        for _ in range(held):
            if self.open or self.kept[way]:
                self.send_one(way, self.world.now())
        if not self.open:
            self.tell(way, (self.arrivals[way] if self.kept[way] else self.world.time) + LATENCY)

    def replace(self) -> None:
        """Have the ROUTER hear it no more. What that has not read is lost."""
        self.is_replaced = True
        if self.unread:
            self.router.inbox.remove(self)
            self.unread.clear()

    def keep(self, way: int, since: float, survives: bool) -> None:
        """Have what an end that is gone sent in a silence come once that is over, if it is before the other end gives
        up: the kernel has it, but for what libzmq had no time to write, if only the rest `survives`."""
        on_way, now = self.on_way[way], self.world.time
        written = now if survives else now - LATENCY * self.network.chance.random()
        while not survives and on_way and on_way[-1][2] >= max(since, written):
            on_way.pop()
            self.held[way] -= 1
        self.kept[way], self.until[way] = True, since + LINK_TIMEOUT

    def cut(self, survives: bool = False, gone: Any = None) -> None:
        """Break the connection. What is on its way arrives, if it `survives`; else the later part of it is lost, in
        each direction: any part, also all or nothing. Both ends notice a little later, after what still comes. One may
        be `gone`."""
        if not self.open:
            return
        self.world.note("cut", self)
        self.open = False
        now, chance = self.world.time, self.network.chance
        for way in (TO_ROUTER, TO_DEALER):
            last = max(now, self.arrivals[way])
            if not survives:
                self.until[way] = now + (last - now) * chance.uniform(-0.3, 1.3)
            end = max(now + LATENCY + chance.random() * NOTICED_WITHIN, min(last, self.until[way]))
            if (since := self.silent_since[way]) is not None:
                end = max(end, since + LINK_TIMEOUT)
                if self.ends[1 - way] is gone:
                    self.keep(way, since, survives)
            self.tell(way, end)

    def tell(self, way: int, when: float) -> None:
        self.ends[way].process.acts(when, partial(self.ends[way].lose, self))


class WireNetwork:
    """All sockets of the world. A late message is late by `jitter` s on average. Queues are so many times shorter than
    the sockets ask for."""

    def __init__(self, world: VirtualWorld) -> None:
        self.world, self.chance = world, world.random("network")
        self.bound: dict[str, Any] = {}
        self.links: list[WireLink] = []
        # Links to hosts that died, of which the other ends may have heard nothing.
        self.dead: list[WireLink] = []
        # The ends of connections to processes that died with their hosts, of which clients hear when those are back.
        self.when_back: list[tuple[WorldProcess, Callable[[], object]]] = []
        self.descriptors = FIRST_DESCRIPTOR
        # The last port that was given to a socket.
        self.ports = FIRST_PORT
        self.host_of: Callable[[str], int] = lambda name: 0
        # Decides about a new connection.
        self.examine: Callable[[WireLink], None] = WireLink.welcome
        self.jitter = JITTER
        self.queues_shorter = 1
        # The randomness of processes, by name, whose connections break with one of their first messages.
        self.flapping: dict[str, random.Random] = {}
        # Pairs of names of processes that cannot connect to each other at present, each as often as faults have it so.
        self.unreachable = Counter[frozenset[str]]()

    def is_silent(self, one: str, other: str) -> bool:
        """Return whether two processes cannot connect to each other at present."""
        return self.unreachable[frozenset((one, other))] > 0

    def open_links(self) -> list[WireLink]:
        self.links = [link for link in self.links if link.open]
        return self.links

    def links_of(self, process: WorldProcess) -> list[WireLink]:
        """Return all links of a process that are open."""
        return [link for link in self.open_links() if process in (link.ends[0].process, link.ends[1].process)]

    def vanish(self, process: WorldProcess) -> None:
        """Have the sockets of a process end with its host: its links go silent, and the other ends give them up."""
        for link in self.links_of(process):
            for way in (TO_ROUTER, TO_DEALER):
                link.silence(way)
            self.dead.append(link)
        for socket in process.sockets:
            socket.closed = True
        process.sockets.clear()

    def reset_dead(self, dead: Sequence[WorldProcess]) -> None:
        """Break the links to the processes of a host that died, now that another one has its address and knows none of
        them."""
        links = [link for link in self.dead if link.ends[0].process in dead or link.ends[1].process in dead]
        self.dead = [link for link in self.dead if link not in links]
        for link in links:
            link.cut()
            for way in (TO_ROUTER, TO_DEALER):
                link.mend(way)
        self.bound = {endpoint: socket for endpoint, socket in self.bound.items() if socket.process not in dead}
        back, self.when_back = self.when_back, []
        for process, work in back:
            if process in dead:
                self.world.after(LATENCY, work)
            else:
                self.when_back.append((process, work))


class WirePoller:
    """Stands for zmq.Poller. Only a fibre waits in it: other processes take their next turn when something has come."""

    def __init__(self) -> None:
        self.sockets: list[Any] = []
        self.wakeups: list[int] = []
        self.pipes: list[int] = []

    def register(self, source: Any, flags: int = zmq.POLLIN) -> None:
        if source not in self.list_of(source):
            self.list_of(source).append(source)

    def unregister(self, source: Any) -> None:
        self.list_of(source).remove(source)

    def list_of(self, source: Any) -> list[Any]:
        if not isinstance(source, int):
            return self.sockets
        return self.wakeups if source in HERE.world.wakeups else self.pipes

    def poll(self, timeout: int | None = None) -> list[tuple[Any, int]]:
        if (process := HERE.world.current) is not None:
            process.poll(self.ready, timeout)
        return self.ready()

    def ready(self) -> list[tuple[Any, int]]:
        """Return what has come."""
        counts, readable = HERE.world.wakeups, HERE.world.readable
        ready = list[tuple[Any, int]]()
        # Of these there is one in each process, and nearly always nothing has come: no comprehensions.
        for one in self.sockets:
            if one.inbox:
                ready.append((one, READABLE))
        for one in self.wakeups:
            if counts[one]:
                ready.append((one, READABLE))
        for one in self.pipes if readable else ():
            if one in readable:
                if is_readable(one):
                    ready.append((one, READABLE))
                else:
                    readable.discard(one)
        return ready


def is_readable(descriptor: int) -> bool:
    """Return whether something has come by a pipe."""
    return bool(select.select((descriptor,), (), (), 0.0)[0])
