# SPDX-License-Identifier: Apache-2.0
"""The proxy's core: admits requests, dispatches them to workers and handles their messages, in one event loop."""

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pontil.runtime.accounting.ledger import Ledger
from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.errors import Unavailable
from pontil.runtime.foundation.entry_points import entry_point
from pontil.runtime.foundation.staged_model import StagedModel
from pontil.runtime.proxy.admission.control import ModelAdmissions
from pontil.runtime.proxy.admission.in_flight import InFlight
from pontil.runtime.proxy.admission.model_waking import ModelWaking
from pontil.runtime.proxy.admission.request_queue import RequestQueue
from pontil.runtime.proxy.answer_frames import AnswerFrames, LeaseFrames, MessageRouter, TimesFrames
from pontil.runtime.proxy.balance.fleet_load import QueuedWork
from pontil.runtime.proxy.balance.load_watch import LoadWatch
from pontil.runtime.proxy.control_link import ControlLink
from pontil.runtime.proxy.dispatch.dispatcher import Dispatcher
from pontil.runtime.proxy.fleet.fleet_adapters import FleetAdapters
from pontil.runtime.proxy.fleet.operator_changes import OperatorChanges
from pontil.runtime.proxy.fleet.registered_worker import RegisteredWorker
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.fleet.registry_snapshot import RegistrySnapshot
from pontil.runtime.proxy.forever_tasks import ForeverTasks
from pontil.runtime.proxy.leases.fleet_leases import FleetLeases
from pontil.runtime.proxy.leases.lease_moves import LeaseMoves
from pontil.runtime.proxy.metrics.all_series import DIED, SILENT, Metrics
from pontil.runtime.proxy.model_trials import ModelTrials
from pontil.runtime.proxy.registrar import Registrar
from pontil.runtime.proxy.requests.bookkeeper import CHECKPOINT, Bookkeeper
from pontil.runtime.proxy.requests.remote_kv import KVTransfers
from pontil.runtime.proxy.requests.request import Request, Work
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.proxy.resume.resumable import ResumableStreams
from pontil.runtime.proxy.routing.policy import Route
from pontil.runtime.proxy.self_test import Readiness, SelfTest
from pontil.runtime.proxy.siblings.proxies import Fleet
from pontil.runtime.proxy.stage_runs import NoRuns, StageRuns, graph_of
from pontil.runtime.timeline.timelines import Timelines
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import (
    AdapterState,
    AttemptTimes,
    Embedding,
    Failed,
    Goodbye,
    Heartbeat,
    Hello,
    LeaseState,
    LeasesTold,
    Message,
    NodeOutput,
    PrefixDelta,
    Progress,
    RoleChange,
    Step,
    StillHere,
    Tokens,
)

TICK = 0.25
# Ticks between two searches of the queue for requests that can no longer be served in time.
SWEEP_TICKS = 2
LOG = logging.getLogger("pontil.proxy")
NO_MORE: Mapping[str, Tokenizer] = {}


class Proxy:
    """The proxy: `bind`, then `start` in the event loop; `close` ends every request. Workers may join and leave at any
    time. `further` has the tokenizers of the models beside the first, by name."""

    def __init__(
        self,
        config: ProxyConfig,
        tokenizer: Tokenizer,
        clock: Callable[[], float] | None = None,
        graph: StagedModel | None = None,
        further: Mapping[str, Tokenizer] = NO_MORE,
    ) -> None:
        self.config, self.incarnation = config, secrets.token_hex(8)
        clock = time.monotonic if clock is None else clock
        # The stages of the model, None for a model of one.
        graph = graph_of(config.graph) if graph is None else graph
        self.registry = Registry(config.worker_ttl, config.text_models, graph, tuple(further))
        self.metrics = Metrics()
        self.dispatcher = Dispatcher(
            config,
            self.incarnation,
            self.registry,
            self.metrics,
            clock,
            self.send,
            lambda request, reason: self.in_flight.fail(request, Unavailable(reason)),
        )
        self.fleet = Fleet(config, self.incarnation, self.metrics.render, lambda name: self.timelines.shown(name))
        self.books = Bookkeeper(config, self.incarnation, clock, self.metrics.threads, self.fleet.kept)
        leases = FleetLeases(config, self.incarnation, self.registry, self.books, clock, self.send)
        self.moves = LeaseMoves(leases, self.try_at)
        self.adapters = FleetAdapters(
            self.incarnation, self.registry, self.send, tuple(config.adapter_paths), bool(config.adapter_directory)
        )
        self.dispatcher.lookup.lacking = self.adapters.lacking
        self.admissions = ModelAdmissions(config, self.registry, self.dispatcher, self.metrics, clock, self.fleet.table)
        tokenizers: dict[str | None, Tokenizer] = {None: tokenizer}
        tokenizers.update(further)
        self.in_flight = InFlight(
            self.incarnation, tokenizers, self.dispatcher, self.admissions, self.books, self.metrics, clock
        )
        self.in_flight.on_finish = self.moves.follow
        self.streams = ResumableStreams(self.fleet, config.resume_window, self.in_flight)
        self.runs: StageRuns = NoRuns(self.metrics) if graph is None else entry_point("runs")(self, graph)
        trials = ModelTrials(self)
        self.self_test = SelfTest(config.self_test, trials.tokenizer_at, trials.routes, trials.submit)
        self.readiness = Readiness(
            self.registry, graph, self.self_test, lambda worker: self.send(StillHere(self.incarnation, worker))
        )
        about = {"version": config.version, "model_name": config.served_model_name}
        self.metrics.watch(self.requests, self.registry, about)
        self.metrics.watch_books(self.ledger, self.books.log, self.books.reuse)
        self.metrics.watch_leases(self.leases)
        changes, dispatcher = OperatorChanges(self.registry, clock), self.dispatcher
        self.load = LoadWatch(config, dispatcher.asked, self.queued_work, changes, clock, dispatcher.forecast)
        self.metrics.watch_load(self.load)
        dispatcher.waits.token_seconds = self.load.token_seconds
        self.link = ControlLink(config, self.metrics.threads)
        self.kv_transfers = KVTransfers(
            self.registry, None if self.link.keys is None else self.link.keys.kept, config.kv_transfers
        )
        self.tasks = ForeverTasks(self.metrics.threads, clock())
        self.router = self.make_router()

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the first model."""
        return self.in_flight.tokenizers[None]

    @property
    def clock(self) -> Callable[[], float]:
        return self.in_flight.clock

    @property
    def changes(self) -> OperatorChanges:
        return self.load.changes

    @property
    def graph(self) -> StagedModel | None:
        return self.runs.graph

    @property
    def leases(self) -> FleetLeases:
        return self.moves.leases

    @property
    def requests(self) -> dict[str, Request]:
        return self.in_flight.requests

    @property
    def waking(self) -> ModelWaking:
        return self.in_flight.waking

    @property
    def timelines(self) -> Timelines:
        return self.in_flight.timelines

    @property
    def ledger(self) -> Ledger:
        return self.books.ledger

    @property
    def queue(self) -> RequestQueue:
        return self.admissions.generating.queue

    def queued_work(self) -> QueuedWork:
        """Return what waits for the workers that generate."""
        queue = self.queue
        return QueuedWork(queue.tokens, queue.choices, queue.rate.output.value, queue.rate.answers)

    def make_router(self) -> MessageRouter:
        """Return the dispatch of every message to the code that handles it."""
        frames = AnswerFrames(
            self.requests,
            self.registry,
            self.ledger,
            self.metrics,
            self.dispatcher,
            self.admissions,
            self.in_flight,
            self.clock,
        )
        registrar = Registrar(
            self.incarnation, self.registry, self.ledger, self.metrics, self.clock, self.send, self.on_change,
            lambda workers: self.lose(workers, SILENT, "let go of its requests"), self.came,
            self.dispatcher.lookup.enabled,
        )  # fmt: skip
        handlers: dict[type[Message], Callable[[Any], None]] = {
            Hello: registrar.on_hello,
            Heartbeat: registrar.on_heartbeat,
            Goodbye: registrar.on_goodbye,
            RoleChange: registrar.on_role_change,
            PrefixDelta: registrar.on_prefix_delta,
            Tokens: frames.on_tokens,
            Step: frames.on_step,
            Progress: frames.on_progress,
            Failed: frames.on_failed,
            Embedding: frames.on_embedding,
            NodeOutput: frames.on_node_output,
            AttemptTimes: TimesFrames(self.timelines, self.metrics).on_times,
            LeaseState: LeaseFrames(self.leases, self.metrics).on_state,
            LeasesTold: self.leases.on_told,
            AdapterState: self.adapters.on_state,
            **self.runs.handlers,
        }
        return MessageRouter(
            self.incarnation,
            self.registry,
            self.metrics,
            self.clock,
            self.send,
            handlers,
            self.in_flight.turn,
            self.admissions.dispatch,
        )

    def came(self, message: Hello) -> None:
        """Tell a worker that has registered what it is to know before its first request."""
        self.leases.came(message)
        self.adapters.tell_worker(message)

    def bind(self) -> str:
        """Open the control endpoint and return its address. Raises PontilError when it cannot be bound."""
        return self.link.bind()

    def start(self, on_tick: Callable[[int], None] | None = None) -> None:
        """Serve in the running event loop. `on_tick` is called with the number of each tick, four times a second."""
        self.link.listen(self.router.on_messages)
        self.in_flight.start()
        self.tasks.works[:0] = [
            (self.tick_forever, (on_tick,)),
            (self.checkpoint_forever, ()),
            (self.self_test.run, ()),
            (self.fleet.watch, (self.books.lose,)),
            (self.streams.watch, ()),
        ]
        self.tasks.start()

    async def tick_forever(self, on_tick: Callable[[int], None] | None) -> None:
        while True:
            self.tick()
            if on_tick is not None:
                on_tick(self.tasks.ticks.number)
            await asyncio.sleep(TICK)

    async def checkpoint_forever(self) -> None:
        while True:
            self.books.checkpoint()
            self.streams.note_changes()
            await asyncio.sleep(CHECKPOINT if self.streams.journals else self.books.pause)

    def drain(self) -> None:
        """Admit no more requests; those in flight continue."""
        self.readiness.is_draining = True

    @property
    def idle(self) -> bool:
        return not self.requests

    def abandon(self) -> None:
        """End the requests that are still in flight."""
        for request in list(self.requests.values()):
            self.in_flight.fail(request, Unavailable("the server is shutting down: try again in a moment"))

    async def close(self) -> None:
        self.drain()
        self.abandon()
        await self.tasks.end()
        self.leases.end()
        await asyncio.to_thread(self.books.end)
        await self.in_flight.close()
        self.fleet.close(self.books.owes_rows)
        self.link.close()

    def submit(self, ticket: Ticket, *works: Work, snapshot: RegistrySnapshot | None = None) -> Stream:
        """Admit a request for each of these works, which are of one kind and for the same workers, or none of them.
        `snapshot` is the registry snapshot that earlier decisions about them used, if any. Raises Unavailable at once
        if they cannot be served in time, TooManyRequests for more than the key allows now."""
        if self.readiness.is_draining:
            raise Unavailable("the server is shutting down: try again in a moment")
        group = works[0].group
        snapshot = snapshot or self.registry.of(group).snapshot()
        if ticket.replay is not None and ticket.replay.worker is not None:
            (worker,) = snapshot.workers
            return self.in_flight.stream([self.try_at(Route.alone(worker), ticket, work) for work in works])
        admission = self.admissions.by_group[group]
        admission.check(ticket, works, snapshot.workers)
        requests = []
        for work in works:
            request = self.in_flight.open(ticket, work)
            request.release = snapshot.release
            admission.enter(request)
            self.books.admit(request)
            requests.append(request)
        self.waking.admit(group, len(requests))
        admission.dispatch()
        return self.in_flight.stream(requests)

    def try_at(self, route: Route, ticket: Ticket, work: Work) -> Request:
        request = self.in_flight.open(ticket, work, trial=True)
        request.begin(route, self.clock())
        self.dispatcher.launch(request)
        return request

    @property
    def ready(self) -> bool:
        """True if every kind of request that the model takes can be served now (D21)."""
        return self.readiness.objection is None

    def topology(self) -> list[dict[str, Any]]:
        """Return a row per process: name, role, pid, state, device, and a worker's load."""
        rows = self.registry.topology()
        if not any(row["role"] == "proxy" for row in rows):
            state = "DRAINING" if self.readiness.is_draining else "READY"
            own_row = {"name": self.config.name, "role": "proxy", "pid": os.getpid(), "state": state, "device": "cpu"}
            rows.insert(0, own_row)
        return rows

    def take_table(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take the supervisor's process table, and remove workers that it shows as dead at once."""
        self.changes.hear_table()
        self.lose(self.registry.show(rows), DIED, "died")
        self.waking.on_change()
        self.dispatcher.resume()
        self.admissions.dispatch()

    def on_change(self) -> None:
        """Resume stranded requests, as a worker may have become available, and move the leases of one that drains."""
        self.moves.tick()
        self.dispatcher.resume()
        self.self_test.look_again()
        self.waking.on_change()

    def tick(self) -> None:
        """Flush metrics and messages, expire silent workers, enforce deadlines and dispatch what can be; after a late
        tick, neither deadlines nor silence count, since the proxy itself may have caused them."""
        self.admissions.pass_time(self.clock())
        self.streams.tick()
        self.leases.tick()
        self.moves.tick()
        self.timelines.tick()
        self.dispatcher.flush()
        now = self.clock()
        if self.tasks.ticks.take(now):
            self.lose(self.registry.expire(now, self.changes.table_age), SILENT, "went silent")
            self.lose(self.registry.cut_off(now, self.readiness.reaches), SILENT, "lost its connection")
            self.enforce_deadlines(now)
        self.load.tick()
        self.waking.report()
        self.in_flight.slow_readers.tick()
        self.dispatcher.resume()
        self.admissions.dispatch()
        if malformed_count := self.link.new_malformed():
            self.metrics.dropped.labels("malformed").inc(malformed_count)

    def enforce_deadlines(self, now: float) -> None:
        if self.tasks.ticks.number % SWEEP_TICKS == 0:
            for request, error in self.admissions.hopeless():
                self.in_flight.fail(request, error)
        for request in list(self.requests.values()):
            if overdue := self.dispatcher.overdue(request, now):
                self.in_flight.fail(request, Unavailable(f"{overdue}: try again later"))

    def lose(self, workers: Sequence[RegisteredWorker], cause: str, how: str) -> None:
        """Retry on other workers the requests that depended on these, which are gone."""
        for worker in workers:
            LOG.warning("%s (pid %d) %s", worker.hello.name, worker.hello.pid, how)
            reason = f"{worker.hello.name} {how} while it served this request"
            self.ledger.left(worker.hello.sender)
            self.leases.lost(worker)
            for request in list(self.requests.values()):
                # Another stage of its run may have ended it meanwhile.
                is_open, drained = request.id in self.requests, worker.contact.drained
                if is_open and self.in_flight.left_by(request, worker.hello.sender, drained=drained):
                    self.dispatcher.retry(request, reason, cause)
            if cause == DIED:
                self.dispatcher.cancels.drop(worker.hello.sender)

    def send(self, message: Message) -> bool:
        return self.link.send(message)
