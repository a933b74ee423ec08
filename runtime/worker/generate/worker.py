# SPDX-License-Identifier: Apache-2.0
"""A worker that generates: deadlines, messages and transfers around `Engine.step`."""

import logging
import os
import time
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from pontil.runtime.command_pipe import CommandPipe
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.engine.sequences.sequence import FinishReason, SequenceState
from pontil.runtime.errors import RequestError
from pontil.runtime.grammar.grammar import LIBRARY
from pontil.runtime.reporting import Reporter
from pontil.runtime.wire.messages import SCHEMA, AdapterTable, Cancel, Hello, LeaseOrder, Message, PrefixRequest, Submit
from pontil.runtime.worker.generate.block_transfers import BlockTransfers, Connect, open_transport
from pontil.runtime.worker.generate.decode import DecodeSide
from pontil.runtime.worker.generate.grammar_manager import GrammarManager
from pontil.runtime.worker.generate.load_gauge import LoadGauge
from pontil.runtime.worker.generate.output_processor import OutputProcessor
from pontil.runtime.worker.generate.prefill import PrefillSide
from pontil.runtime.worker.generate.prefix_leases import PrefixLeases
from pontil.runtime.worker.generate.stage import open_stage
from pontil.runtime.worker.generate.worker_adapters import WorkerAdapters, loads_adapters, open_loads
from pontil.runtime.worker.links.log_fields import about
from pontil.runtime.worker.links.proxy_link import BEAT, Failure, HeartbeatLoad, ProxyLink
from pontil.runtime.worker.links.stalled_links import StalledLinks
from pontil.runtime.worker.links.worker_sockets import WorkerSockets
from pontil.runtime.worker.process.counters import WorkerCounters
from pontil.runtime.worker.process.idle_work import IdleWork
from pontil.runtime.worker.process.loop import WorkerLoop
from pontil.runtime.worker.process.request_table import RequestTable
from pontil.runtime.worker.process.worker_request import WorkerRequest, key_of
from pontil.runtime.worker.process.workload import Outlook, Workload
from pontil.runtime.worker.start.assembly import WorkerResources
from pontil.runtime.worker.start.kv_tiers import open_tiers
from pontil.runtime.worker.start.prefault import IdleReturn, Prefault

logger = logging.getLogger("pontil.worker")

# Seconds until a peer that takes no messages is tried again, and a step when every block is promised to another
# sequence.
CONGESTION_PAUSE = STALL_PAUSE = 0.005
BUSY = Outlook(True, False, 0.0)
TOO_LATE = Failure("no worker had room for the request before its deadline", 503, late=True)
# Seconds from one check of the prompts to the next.
LOOK_EVERY = 0.5


@dataclass(slots=True)
class PromptMonitor:
    """A monitor of prompts without a first token: those that advance, and those past their deadline. `seen` has the
    number of computed tokens of each at the last check. The caller passes the time."""

    next_look: float = 0.0
    seen: dict[str, int] = field(default_factory=dict)

    def is_due(self, now: float) -> bool:
        due = now >= self.next_look
        if due:
            self.next_look = now + LOOK_EVERY
        return due

    def begun(self, requests: Iterable[WorkerRequest]) -> list[WorkerRequest]:
        """Return these requests, of whose prompts a first part was computed, as `advanced` will not before the next."""
        found = list(requests)
        self.seen |= {request.key: request.sequence.computed for request in found}
        return found

    def advanced(self, requests: Iterable[WorkerRequest]) -> list[WorkerRequest]:
        """Return the requests whose prompt is being computed and has advanced since the last check."""
        before, self.seen, found = self.seen, {}, list[WorkerRequest]()
        for request in requests:
            sequence = request.sequence
            if sequence.state is SequenceState.RUNNING and 0 < sequence.computed < len(sequence.prompt):
                self.seen[request.key] = sequence.computed
                if sequence.computed > before.get(request.key, 0):
                    found.append(request)
        return found


def is_late(request: WorkerRequest, now: float) -> bool:
    """Return whether the request has waited, for its turn or for room, past its deadline. A prompt that is being
    computed is never late here: its progress is reported, and the proxy knows whether the client still waits."""
    sequence, deadline = request.sequence, request.submit.deadline
    waits = sequence.state is SequenceState.WAITING and not sequence.history.admissions and not request.submit.delivered
    return waits and deadline is not None and now >= request.arrived + deadline


class Worker(Workload):
    """The requests of one process that can prefill, decode, or both; its role is only the proxy's preference."""

    def __init__(self, sockets: WorkerSockets, machine: WorkerResources, connect: Connect) -> None:
        config, self.machine = sockets.config, machine
        sockets.closing.callback(machine.driver.close)
        sockets.leaving.callback(machine.driver.stop)
        machine.guard.begin(sockets.closing, sockets.failures)
        self.peers_in = sockets.serve_peers()
        link = sockets.connect_proxies(introduction(sockets, machine, self.peers_in.endpoint))
        machine.driver.watch(sockets.poller)
        sockets.closing.callback(machine.rounds.close)
        sockets.leaving.callback(machine.rounds.leave)
        if tiers := open_tiers(config, machine, sockets.poller.wake, sockets.failures):
            sockets.closing.callback(tiers.close)
        self.transfers = BlockTransfers(sockets, machine, connect)
        prefault = Prefault(machine.storage, machine.pool, config.kv_cache_ahead_memory)
        timeout, kept = config.kv_cache_idle_timeout, config.kv_cache_idle_memory
        pinned, erase = machine.storage.pinned, self.transfers.pools.erase
        idle_return = None if pinned else IdleReturn(prefault, timeout, kept, erase)
        self.stalls = StalledLinks(sockets.poller, sockets.opened, lambda: self.decode.peers.sockets)
        super().__init__(
            sockets,
            link,
            IdleWork(machine.engine, prefault, machine.lent_cores, machine.recorder, idle_return, machine.grammars),
            {
                "kv_tokens": machine.pool.capacity * machine.layout.block_size,
                "kv_cache_dtype": machine.layout.dtype,
                "max_model_len": machine.config.max_model_len,
            },
            {"cut": self.transfers.cut, "stall": self.stalls.stall} if config.allow_chaos else {},
        )
        self.engine_counters, self.prompts = WorkerCounters(machine.engine), PromptMonitor()
        self.leases = PrefixLeases.of(config, sockets.incarnation, link, machine)
        self.requests = RequestTable(sockets.incarnation, link)
        self.prefill = PrefillSide(sockets.incarnation, config.deadlines, machine, self.peers_in, self.transfers)
        self.decode = DecodeSide(sockets, machine, self.transfers)
        sockets.closing.callback(self.decode.peers.close)
        self.stage = open_stage(machine, link, sockets, self.peers_in)
        sockets.closing.callback(self.stage.end)
        link.limit_seats(self.stage.seats)
        self.grammars = GrammarManager(machine.grammars, sockets.poller.wake, sockets.failures)
        sockets.closing.callback(self.grammars.close)
        self.adapters = WorkerAdapters(
            sockets.incarnation, link, open_loads(sockets, machine), config.adapter_directory
        )
        self.prefill.may_compute = self.decode.may_compute = self.adapters.loads.submit
        sockets.closing.callback(self.idle_work.begin)
        self.gauge = LoadGauge(
            machine, self.prefill, self.decode, (self.grammars, self.adapters.loads), self.engine_counters,
            self.stage, link, self.requests, self.leases,
        )  # fmt: skip
        self.processor = OutputProcessor(
            self.requests, link, machine.engine, self.prefill, self.engine_counters, self.cancel
        )

    def take(self, message: Message, now: float) -> bool:
        if isinstance(message, Submit):
            self.submit(message, now)
        elif isinstance(message, Cancel):
            request = self.requests.get(key_of(message.request_id, message.attempt))
            if request is not None and request.proxy == message.sender:
                self.cancel(request, now)
        elif isinstance(message, LeaseOrder):
            self.leases.obey(message, now)
        elif isinstance(message, AdapterTable):
            self.adapters.take(message)
        elif isinstance(message, PrefixRequest):
            self.leases.reporters.begin(message.sender)
            return False
        else:
            return self.stage.take(message, now)
        return True

    def poll(self, now: float) -> None:
        self.take_messages(now)
        for request in self.grammars.poll(now):
            self.start(request, now)
        for request in self.adapters.loads.poll(self.used_adapters):
            self.compute(request, now)
        self.decode.poll(now)
        while self.decode.going_on:
            self.requests.choices_left(*self.decode.going_on.pop())
        self.prefill.kv_sender.flush()
        self.tick(now)

    def take_messages(self, now: float) -> None:
        """Handle what peers and followers have sent."""
        if not self.sockets.poller.is_quiet:
            for message in self.peers_in.receive_all():
                if self.sockets.is_mine(message) and not self.stage.take(message, now):
                    self.prefill.take(message, now)
            for message in self.decode.peers.receive_all():
                if self.sockets.is_mine(message):
                    self.decode.take(message, now)
        for done in self.machine.driver.take():
            self.transfers.answered(done)
            self.adapters.loads.parts.answered(done)
        self.machine.rounds.hear()

    def tick(self, now: float) -> None:
        """Check all deadlines."""
        self.prefill.tick(now)
        self.decode.tick(now)
        for key, reason in self.stage.tick(now):
            if request := self.requests.get(key):
                self.cancel(request, now, Failure(reason, 503))
        if self.prompts.is_due(now):
            self.requests.tell_progress(self.prompts.advanced(self.requests.values()))
            for request in [one for one in self.requests.values() if is_late(one, now)]:
                self.cancel(request, now, TOO_LATE)
        self.stalls.tick(now)
        if self.decode.peers.take_news():
            self.link.hurry()
        self.settle(now)

    def outlook(self) -> Outlook:
        engine, are_due = self.machine.engine, self.machine.rounds.are_due
        has_work = engine.has_work
        if has_work and engine.sequences:
            # In nearly every turn under load.
            if not (engine.scheduler.stalled or are_due):
                return BUSY
            return Outlook(True, False, STALL_PAUSE if engine.scheduler.stalled else 0.0, is_awaited=are_due)
        owed = bool(self.prefill.outbox.backlogs or self.decode.peers.outbox.backlogs)
        is_idle = not (
            engine.sequences or owed or self.prefill.kv_sender.open or self.decode.kv_receiver.open
            or self.decode.draining or self.requests
        ) and self.stage.is_idle and self.leases.is_idle  # fmt: skip
        if has_work:
            patience = STALL_PAUSE if engine.scheduler.stalled else 0.0
        else:
            patience = CONGESTION_PAUSE if owed else BEAT
        return Outlook(has_work, is_idle, patience, is_awaited=are_due)

    def step(self, now: float) -> None:
        outputs = self.machine.engine.step()
        ended = time.monotonic()
        self.engine_counters.step_times.add(self.machine.engine.collected, ended - now)
        self.stage.after(outputs, ended)
        # Before the tokens: a client that has its answer may send the next turn at once.
        self.leases.reporters.tell()
        self.leases.computed(outputs, ended)
        self.leases.tell(ended)
        self.processor.process(outputs, ended)
        # Before blocks are recorded: a next attempt may find them.
        if self.machine.engine.begun:
            begun = [one for sequence in self.machine.engine.begun if (one := self.requests.get(sequence.id))]
            self.requests.tell_progress(self.prompts.begun(begun))
        self.idle_work.after_step(now, ended)
        self.settle(ended)

    def keep_up(self) -> None:
        self.machine.rounds.keep_up()

    def settle(self, now: float) -> None:
        """Remove the requests that the two sides have finished, and report those that failed there to the proxy. Send
        what waits for it and for followers."""
        sides: tuple[PrefillSide | DecodeSide, ...] = (self.prefill, self.decode)
        for side in sides:
            while side.failed:
                request, reason = side.failed.pop()
                self.adapters.loads.cancel(request)
                self.requests.end(request.key, Failure(reason, 503))
            while side.over:
                self.requests.end(side.over.pop().key)
        while self.grammars.failed:
            request, reason, status = self.grammars.failed.pop()
            self.requests.end(request.key, Failure(reason, status))
        while self.adapters.loads.failed:
            request, reason, status = self.adapters.loads.failed.pop()
            self.requests.end(request.key, Failure(reason, status))
        self.adapters.tick(self.asked_adapters)
        self.stage.keep_only(self.requests, now)
        self.leases.reporters.tell()
        self.leases.tick(self.requests, now)
        self.machine.driver.flush()

    def submit(self, message: Submit, now: float) -> None:
        self.adapters.meet(message)
        try:
            request = self.stage.make_request(message)
            if not self.machine.scheduler.fits(request.sequence):
                raise RequestError("the request needs more KV memory than this worker has")
            if request.key not in self.requests:
                self.leases.submitted(request)
        except RequestError as error:
            self.link.refuse(message, Failure(str(error), error.status))
            return
        if request.key in self.requests:
            return
        request = self.requests.add(request)
        if not self.stage.begin(request, now):
            self.requests.end(request.key)
            return
        logger.debug(
            "takes a request's phase %s: %d prompt tokens",
            message.phase,
            len(message.prompt),
            extra=about(message),
        )
        if self.grammars.submit(request, now):
            self.start(request, now)

    def start(self, request: WorkerRequest, now: float) -> None:
        """Start a request, unless its adapter is not in memory. One whose prompt another worker waits for asks for its
        adapter after that one has room for it: else each of two could have in memory what the other waits for."""
        if request.hands_over and not request.is_held:
            self.prefill.submitted(request, now)
        elif self.adapters.loads.submit(request):
            self.compute(request, now)

    def used_adapters(self) -> set[str]:
        """Return the digests of the adapters of all requests that do not wait for theirs, or for what comes before.
        While a prompt that another worker waits for has no room, those that themselves wait for another worker have
        none in use: else each of two could have in memory what the other waits for."""
        waiting, prefill, decode = self.adapters.loads.waiting, self.prefill, self.decode
        idle, gives_room = {one.key for one in waiting}, any(one.hands_over and not one.is_held for one in waiting)
        for key, one in self.requests.items():
            if prefill.awaits_peer(one) or gives_room and decode.awaits_peer(one):
                idle.add(key)
        return self.asked_adapters(idle)

    def asked_adapters(self, but: Container[str] = ()) -> set[str]:
        """Return the digests of the adapters of all requests, but for those with these keys."""
        found = {one.submit.adapter for key, one in self.requests.items() if key not in but}
        for key, sequences in self.machine.engine.sequences.items():
            if key not in but:
                found.update(one.prefix.adapter.digest for one in sequences)
        return found

    def compute(self, request: WorkerRequest, now: float) -> None:
        """Begin to compute a request, for which everything it waited for is here."""
        if request.submit.transfer_id is None:
            self.machine.engine.add(request.sequence, request.known)
        elif request.is_held:
            self.prefill.kept.submitted(request, now)
        elif request.hands_over:
            self.prefill.compute(request, now)
        else:
            self.decode.submitted(request, now)

    def cancel(self, request: WorkerRequest, now: float, failure: Failure | None = None) -> None:
        """End an attempt in any state; a failure is reported to the proxy."""
        waited = self.grammars.cancel(request) or self.adapters.loads.cancel(request)
        if request.hands_over:
            self.prefill.cancel(request, now)
        elif request.submit.transfer_id is not None and not waited:
            self.decode.cancel(request, now)
        elif not waited:
            self.machine.engine.end(request.key, FinishReason.ABORTED)
        # Once nothing is held for it: its times say until when that was.
        self.requests.end(request.key, failure)

    def drop(self, failure: Failure | None, proxy: str | None, now: float) -> int:
        dropped = [request for request in self.requests.values() if proxy is None or request.proxy == proxy]
        for request in dropped:
            self.cancel(request, now, failure)
        if failure is None:
            # A model of several stages has no other proxy.
            self.stage.orphan(now)
        else:
            self.leases.give_up(now)
        self.settle(now)
        return len(dropped)

    def load(self, link: ProxyLink) -> HeartbeatLoad:
        return self.gauge.load(link)


def introduction(sockets: WorkerSockets, machine: WorkerResources, endpoint: str) -> Hello:
    """Return what the worker registers with. Peers greet it at the endpoint."""
    config, layout = sockets.config, machine.layout
    return Hello(
        sockets.incarnation, SCHEMA, config.name, config.role, os.getpid(), config.device, config.served_model_name,
        machine.fingerprint, layout.fingerprint(), endpoint, layout.block_size, machine.pool.num_blocks,
        config.step_size.seats, machine.config.max_model_len, config.step_size.tokens, kernels=machine.kernels,
        dtype=machine.dtype, grammars=LIBRARY, kv_cache_dtype=machine.kv_cache_dtype, node=config.node,
        revision=config.revision, version=config.version,
        # Of a release that is served beside another one: computing it takes a while.
        tokenizer_digest=None if config.revision is None else machine.tokenizer.digest,
        adapters=dict(machine.adapters.by_name), loads_adapters=loads_adapters(config, machine),
        invocations=machine.adapters.invocations,
    )  # fmt: skip


def make_worker(
    config: WorkerConfig,
    machine: WorkerResources,
    report: Reporter,
    pipe: CommandPipe | None = None,
    connect: Connect | None = None,
) -> WorkerLoop:
    """Open the sockets of a worker that generates, and all that it needs beside the engine."""
    sockets = WorkerSockets(config)
    with sockets.opening():
        made = WorkerLoop(Worker(sockets, machine, connect or open_transport), report, pipe)
        machine.rounds.meet(sockets.poller)
        return made
