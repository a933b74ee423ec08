# SPDX-License-Identifier: Apache-2.0
"""Real workers and a scripted proxy in one thread, stepped by the test: sockets are real, and no wait depends on
timing. A worker takes no further turn before the proxy has heard what it said."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

from frames_underway import FramesUnderway
from hostile_connector import HostileConnector
from kernels import CACHE

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config.worker_config import WorkerConfig, WorkerRole
from pontil.runtime.proxy.routing.held_prefixes import HeldPrefixes
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.transfer.connector import SliceConnector
from pontil.runtime.transfer.nixl.connector import NixlConnector
from pontil.runtime.transfer.security import TransferSecurity
from pontil.runtime.transfer.shm.connector import ShmConnector
from pontil.runtime.wire.codec import frame_of, rows_of
from pontil.runtime.wire.links.sockets import ControlServer, open_context
from pontil.runtime.wire.messages import (
    AttemptTimes,
    Cancel,
    Embedding,
    Failed,
    Goodbye,
    Heartbeat,
    Hello,
    LeaseState,
    LeasesTold,
    Message,
    PrefixDelta,
    Progress,
    RoleChange,
    Step,
    StillHere,
    Submit,
    Tokens,
    Welcome,
)
from pontil.runtime.worker.generate.block_transfers import open_transport
from pontil.runtime.worker.generate.worker import Worker
from pontil.runtime.worker.links.proxy_link import ProxyLink
from pontil.runtime.worker.links.worker_sockets import WorkerSockets
from pontil.runtime.worker.process.loop import WorkerLoop
from pontil.runtime.worker.start.assembly import WorkerResources, assemble

DEADLINE = 60.0


class Silent:
    """Reporter that discards all reports."""

    def progress(self, text: str, *, waits: bool = False) -> None: ...
    def ready(self, **facts: object) -> None: ...
    def failed(self, reason: str) -> None: ...
    def settled(self, order: int, drained: bool) -> None: ...
    def tested(self, number: int, routes: object) -> None: ...
    def asked(self, number: int, request: object) -> None: ...
    def used(self, models: object) -> None: ...
    def stepped(self, number: int, working: bool) -> None: ...


class PromptWorker(WorkerLoop):
    """Loop of a worker that generates. It never sleeps long, so that several can take turns in one thread. What tests
    look at has its name here. `cancelled` are the requests whose Cancel it has taken."""

    def __init__(self, config: WorkerConfig, machine: WorkerResources) -> None:
        sockets = WorkerSockets(config)
        with sockets.opening():
            worker = self.worker = Worker(sockets, machine, self.connect)
            super().__init__(worker, Silent())
        self.config, self.machine, self.peers_in = config, machine, worker.peers_in
        self.incarnation, self.context, self.poller = sockets.incarnation, sockets.context, sockets.poller
        self.requests, self.prefill, self.decode, self.transfers = (
            worker.requests, worker.prefill, worker.decode, worker.transfers
        )  # fmt: skip
        self.leases = worker.leases
        self.stage, self.grammars, self.stalls = worker.stage, worker.grammars, worker.stalls
        self.cancelled: list[str] = []

    def connect(self, sockets: WorkerSockets, storage: KVStorage, guard: TransferSecurity | None) -> SliceConnector:
        return open_transport(sockets, storage, guard)

    @property
    def patience(self) -> float:
        return min(super().patience, 0.001)

    @property
    def is_idle(self) -> bool:
        return self.worker.outlook().is_idle

    def hear(self, message: Message, now: float, link: ProxyLink | None = None) -> None:
        super().hear(message, now, link)
        if isinstance(message, Cancel):
            self.cancelled.append(message.request_id)


# Kernels are compiled once for all tests.
DEFAULTS = {"kv_cache_memory": 8 << 20, "max_num_batched_tokens": 64, "cache_dir": str(CACHE)}


class HostileWorker(PromptWorker):
    """Worker that pulls through a connector with scripted faults, over NIXL or shared memory."""

    def connect(self, sockets: WorkerSockets, storage: KVStorage, guard: TransferSecurity | None) -> HostileConnector:
        inner = NixlConnector if sockets.config.kv_connector == "nixl" else ShmConnector
        return HostileConnector(storage, sockets.poller.wake, inner)


def open_worker(
    model: Path,
    folder: Path,
    name: str,
    role: WorkerRole,
    kind: type[PromptWorker] = PromptWorker,
    **settings: object,
) -> PromptWorker:
    own = {"control": f"ipc://{folder}/control", "peer_endpoint": f"ipc://{folder}/{name.replace(':', '-')}"}
    config = WorkerConfig(
        name=name,
        role=role,
        device="cpu",
        cores=(0,),
        model=str(model),
        served_model_name="tiny",
        **(own | DEFAULTS | settings),  # type: ignore[arg-type]
    )
    made = kind(config, assemble(config, Silent()))
    OPENED.add(made)
    return made


# Workers of the test that runs, also those that no proxy has admitted yet.
OPENED: WeakSet[PromptWorker] = WeakSet()


def close_sockets() -> None:
    """Close the sockets of workers that a failed test left open: they would block the destructor of their context, and
    with it some later test."""
    for worker in list(OPENED):
        if not worker.context.zmq_context.closed:
            worker.context.destroy(0)
    OPENED.clear()


@dataclass
class WorkerAnswer:
    """Content of a request's frames, by the worker that sent them."""

    frames: list[Tokens] = field(default_factory=list)
    failures: list[Failed] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return bool(self.failures) or any(frame.finish_reason for frame in self.frames)

    @property
    def ids(self) -> list[int]:
        return self.choice(0)

    def choice(self, number: int) -> list[int]:
        """Return the tokens of a choice, merged by index; frames must never disagree."""
        tokens: dict[int, int] = {}
        for frame in self.frames:
            for index, token in enumerate(frame.ids, frame.index):
                if frame.choice == number:
                    assert tokens.setdefault(index, token) == token
        assert sorted(tokens) == list(range(len(tokens)))
        return [tokens[index] for index in sorted(tokens)]

    def ended(self, n: int) -> bool:
        return bool(self.failures) or len({frame.choice for frame in self.frames if frame.finish_reason}) == n


class ScriptedProxy:
    """Proxy that welcomes every worker and records all messages."""

    def __init__(self, folder: Path, incarnation: str = "proxy") -> None:
        self.incarnation = incarnation
        self.context = open_context()
        self.server = ControlServer(self.context, f"ipc://{folder}/control")
        self.underway = FramesUnderway(self.server)
        self.hellos: dict[str, Hello] = {}
        self.duties: dict[str, RoleChange] = {}
        # Messages about each worker's prefix cache; none unless they are wanted.
        self.wants_prefixes = True
        self.prefixes: dict[str, list[PrefixDelta]] = {}
        # Where the time of attempts went; nothing unless it is wanted.
        self.wants_times = False
        self.times: list[AttemptTimes] = []
        self.answers: dict[str, WorkerAnswer] = {}
        self.heartbeats: dict[str, Heartbeat] = {}
        self.goodbyes: dict[str, Goodbye] = {}
        self.progress: list[Progress] = []
        self.vectors: dict[str, Embedding] = {}
        self.leases: list[LeaseState] = []
        self.leases_told: list[LeasesTold] = []
        self.kept: dict[type[Message], list[Any]] = {
            Progress: self.progress,
            AttemptTimes: self.times,
            LeaseState: self.leases,
            LeasesTold: self.leases_told,
        }
        self.workers: list[PromptWorker] = []

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.server.close()
        self.context.term()

    def hear(self, message: Message) -> None:
        if isinstance(message, Hello):
            self.hellos[message.name] = message
            self.welcome(message)
        elif isinstance(message, RoleChange):
            self.duties[message.sender] = message
            self.welcome(message)
        elif isinstance(message, PrefixDelta):
            self.prefixes.setdefault(message.sender, []).append(message)
        elif isinstance(message, Heartbeat):
            self.heartbeats[message.sender] = message
            self.server.send(StillHere(self.incarnation, message.sender))
        elif isinstance(message, Goodbye):
            self.goodbyes[message.sender] = message
        elif isinstance(message, Tokens):
            self.answers.setdefault(message.request_id, WorkerAnswer()).frames.append(message)
        elif isinstance(message, Step):
            for row in rows_of(message):
                self.hear(frame_of(message, *row))
        elif isinstance(message, Embedding):
            self.vectors[message.request_id] = message
        elif type(message) in self.kept:
            self.kept[type(message)].append(message)
        elif isinstance(message, Failed):
            self.answers.setdefault(message.request_id, WorkerAnswer()).failures.append(message)

    def welcome(self, message: Hello | RoleChange) -> None:
        welcome = Welcome(self.incarnation, message.sender, role=message.role, draining=message.draining)
        self.server.send(replace(welcome, prefixes=self.wants_prefixes, times=self.wants_times, leases=True))

    def turn_until(self, condition: Callable[[], bool]) -> None:
        """Let every worker and the proxy take turns until the condition holds."""
        deadline = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true in time"
            self.turn()

    def turn(self) -> None:
        for worker in self.workers:
            worker.turn()
        self.hear_all()

    def hear_all(self) -> None:
        """Hear what has come, and all that workers have said so far."""
        for message in self.underway.receive():
            self.hear(message)

    def admit(self, *workers: PromptWorker) -> None:
        self.workers += workers
        self.turn_until(lambda: all(worker.link.proxy == self.incarnation for worker in workers))
        for worker in workers:
            self.underway.count(worker.link.sockets)

    def submit(
        self,
        worker: PromptWorker,
        name: str,
        prompt: list[int],
        params: SamplingParams,
        salt: str | None = None,
        **more: Any,
    ) -> None:
        """Submit a request, which shares no prefix unless it has another's salt. `more` are fields of Submit."""
        salted = name if salt is None else salt
        fields = {"attempt": 0, "cache_salt": salted, **more}
        assert self.server.send(
            Submit(self.incarnation, worker.incarnation, name, prompt=prompt, sampling=params.to_wire(), **fields)
        )

    def submit_pair(
        self,
        prefill: PromptWorker,
        decode: PromptWorker,
        name: str,
        prompt: list[int],
        params: SamplingParams,
        salt: str | None = None,
        **more: Any,
    ) -> None:
        common = {
            "request_id": name, "attempt": 0, "prompt": prompt, "sampling": params.to_wire(),
            "cache_salt": name if salt is None else salt, **more,
        }  # fmt: skip
        self.submit_halves(prefill, decode, common, common)

    def submit_halves(
        self, prefill: PromptWorker, decode: PromptWorker, first: dict[str, Any], second: dict[str, Any]
    ) -> None:
        """Submit a prefill and a decode request, with these fields for each."""
        transfer = f"t-{first['request_id']}.{first['attempt']}"
        assert self.server.send(
            Submit(
                self.incarnation, prefill.incarnation, phase="prefill", transfer_id=transfer,
                peer=decode.incarnation, **first,
            )
        )  # fmt: skip
        assert self.server.send(
            Submit(
                self.incarnation, decode.incarnation, phase="decode", transfer_id=transfer,
                peer=prefill.incarnation, peer_endpoint=prefill.peers_in.endpoint, **second,
            )
        )  # fmt: skip

    def cancel(self, worker: PromptWorker, name: str) -> None:
        assert self.server.send(Cancel(self.incarnation, worker.incarnation, name, 0))

    def cancel_everywhere(self, name: str) -> None:
        """Cancel a request at every worker, which take this before any of them makes another step, however long the
        sockets' threads need to bring it."""
        for worker in self.workers:
            self.cancel(worker, name)
        deadline = time.monotonic() + DEADLINE
        while any(name not in worker.cancelled for worker in self.workers):
            assert time.monotonic() < deadline, "a worker got no Cancel"
            for worker in self.workers:
                worker.poller.wait(0.001)
                for link, message in worker.link.receive_all():
                    worker.hear(message, time.monotonic(), link)

    def finish(self, *names: str) -> list[WorkerAnswer]:
        self.turn_until(lambda: all(name in self.answers and self.answers[name].finished for name in names))
        return [self.answers[name] for name in names]


def is_clean(worker: PromptWorker) -> bool:
    """Return whether nothing is left of any request and every block is free, or leased."""
    side, other = worker.prefill, worker.decode
    worker.machine.pool.check()
    left = (worker.requests, side.halves, side.jobs.open, side.jobs.held, side.kv_sender.open)
    right = (other.waiting, other.parked, other.draining, other.kv_receiver.open)
    owed = len(side.outbox) + len(other.peers.outbox)
    idle = not (worker.machine.engine.sequences or any(left) or any(right) or len(worker.grammars) or owed)
    worker.leases.book.check()
    leased = len(worker.leases.book.pins.owned)
    return idle and worker.machine.pool.available == worker.machine.pool.capacity - leased


def everyone_clean(proxy: ScriptedProxy) -> None:
    proxy.turn_until(lambda: all(map(is_clean, proxy.workers)))


def told(proxy: ScriptedProxy, worker: PromptWorker) -> set[int]:
    """Return the keys that a worker has cached, as its messages say, in which there is no gap."""
    held = HeldPrefixes()
    for message in proxy.prefixes.get(worker.incarnation, []):
        assert held.take(message)
    return set(held.keys)


def greedy(max_tokens: int, **settings: object) -> SamplingParams:
    return SamplingParams(**({"max_tokens": max_tokens, "seed": 3, "temperature": 0.0} | settings))  # type: ignore[arg-type]


def drawn(max_tokens: int, **settings: object) -> SamplingParams:
    return greedy(max_tokens, temperature=1.0, ignore_eos=True, **settings)


def prompt(length: int) -> list[int]:
    return [3 + (7 * position) % 200 for position in range(length)]
