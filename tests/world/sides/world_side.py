# SPDX-License-Identifier: Apache-2.0
"""Processes of the world, with what stands for zmq and Linux there."""

import json
import os
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from connections import ClientConnection
from copying import EventConnector, map_peers_of_the_world
from ghost_blocks import GhostPool, GhostRecords
from install import enter
from process_calls import ProcessCalls
from side import TO_SERVER, Side, SideProcess, SilentLink
from virtual_time import HERE, SeededWorld
from world_reporter import WorldReporter

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.wire.simulated.event_loop import LoopProcess, SocketSelector
from pontil.runtime.wire.simulated.network import TO_DEALER, TO_ROUTER
from pontil.runtime.wire.simulated.processes import WorldProcess
from pontil.runtime.wire.simulated.thread_events import use_events_for_threads

# Seconds of one call, and of a computation.
CALL, COMPUTATION = 10e-6, 0.5


class WorldCalls(ProcessCalls):
    """The calls of a process of the world."""

    def __init__(self, process: "CalledProcess") -> None:
        super().__init__(lambda: SocketSelector(process))
        self.process = process

    def make_pool(self, blocks: int) -> None:
        super().make_pool(blocks)
        assert self.pool is not None
        pool = GhostPool(blocks, self.pool.epochs.numpy())
        self.process.world.ghosts.add(self.pool, pool, self.process)

    def compute(self, until: str) -> None:
        self.process.world.spend(COMPUTATION)

    def make_connector(self, storage: KVStorage) -> EventConnector:
        return EventConnector(storage, self.process.notify, self.failures)

    def pause(self) -> None:
        """Let no time pass: nothing does in a copy."""

    def make_reporter(self, pipe: int) -> WorldReporter:
        return WorldReporter(pipe, self.process, self.process.hear)


class CalledProcess(WorldProcess, SideProcess):
    """A process of the world that makes calls. It takes no turns of its own."""

    world: SeededWorld

    def __init__(self, world: SeededWorld, name: str, inherits: Sequence[int]) -> None:
        super().__init__(world, name)
        with self.inside():
            self.calls = WorldCalls(self)
            self.descriptors |= {os.dup(one) for one in inherits}
        self.inherited = dict(zip(inherits, sorted(self.descriptors), strict=True))
        self.at_death.append(self.close_log)
        self.told: Any = None
        self.heard = 0

    def close_log(self) -> None:
        """End the database as the death of a proxy of the world does."""
        if self.calls.log is not None and self.calls.log.database is not None:
            self.calls.log.database.close()

    def hear(self) -> None:
        self.heard += 1

    def turn(self) -> None:
        return

    def ask(self, call: str, *given: Any, **named: Any) -> None:
        with self.inside():
            self.told = getattr(self.calls, call)(*given, **named)
            self.world.spend(CALL)

    def answer(self) -> Any:
        self.world.run_until(self.busy_until)
        return json.loads(json.dumps(self.told))

    def number(self, descriptor: int) -> int:
        return self.inherited[descriptor]

    def has_gone(self) -> bool:
        return self.has_ended()

    def shows_its_use(self) -> bool:
        return self.look(self.world.time) is not None


class WorldLink(SilentLink):
    """A connection of the world. There, those over ipc go silent too."""

    def __init__(self, side: "WorldSide") -> None:
        server, client = side.start(), side.start()
        self.server, self.client = server, client
        self.client.do("connect", "d", self.server.do("serve", "r", side.ipc(f"silent-{side.now()}")), "w", wide=True)
        side.until(lambda: self.server.do("send", "r", "w", "hello") == "done")
        (self.link,) = (link for link in side.world.network.open_links() if link.dealer.process is client)
        self.ways = list[int]()

    def silence(self, *ways: str) -> None:
        self.ways = [TO_ROUTER if way == TO_SERVER else TO_DEALER for way in ways]
        for way in self.ways:
            self.link.silence(way)

    def mend(self) -> None:
        for way in self.ways:
            self.link.mend(way)


class WorldClient:
    """A client of the world, which reads at once whatever it is asked."""

    def __init__(self, world: SeededWorld, process: LoopProcess) -> None:
        self.data, self.has_ended = b"", False
        self.connection = ClientConnection(world, process, self, 1)

    def send(self, data: bytes) -> None:
        self.connection.send(data)

    def leave(self) -> None:
        self.connection.leave()

    # The parts that a connection calls.

    def received(self, data: bytes) -> None:
        self.data += data

    def disconnected(self) -> None:
        self.has_ended = True

    def held_up(self, seconds: float) -> None:
        return


class WorldSide(Side):
    """The world."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        enter(SeededWorld(1))
        map_peers_of_the_world()
        use_events_for_threads()
        self.world = HERE.world
        self.world.ghosts = GhostRecords(self.world)

    def start(self, inherits: Sequence[int] = ()) -> CalledProcess:
        return CalledProcess(self.world, f"p{len(self.world.processes)}", inherits)

    def rest(self, seconds: float) -> None:
        self.world.run_until(self.world.time + seconds)

    def now(self) -> float:
        return self.world.time

    def end_computation(self, until: str) -> None:
        self.rest(2 * COMPUTATION)

    def wakes(self, process: SideProcess, writes: int, reads: int, kind: str) -> bool:
        assert isinstance(process, CalledProcess)
        before = process.heard
        process.do("report", process.number(writes), kind)
        assert os.read(reads, 1 << 16)
        return process.heard > before

    def open_link(self) -> WorldLink:
        return WorldLink(self)

    def unanswered_address(self, client: SideProcess) -> str:
        server = self.start()
        assert isinstance(client, CalledProcess)
        self.world.network.unreachable[frozenset((client.name, server.name))] += 1
        address: str = server.do("serve", "r", self.ipc("unanswered"))
        return address

    def in_a_loop(self, play: Callable[[], Coroutine[Any, Any, dict[str, Any]]]) -> dict[str, Any]:
        self.loop = LoopProcess(self.world, "loop")
        task = self.loop.do(lambda: self.loop.loop.create_task(play()))
        assert self.until(task.done)
        facts: dict[str, Any] = task.result()
        return facts

    def connect(self, server: Any, reads: bool = True) -> "WorldClient":
        return WorldClient(self.world, self.loop)

    def end(self) -> None:
        for process in self.world.processes:
            process.kill()
