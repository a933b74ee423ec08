# SPDX-License-Identifier: Apache-2.0
"""A worker process: sockets and deadlines around `Engine.step`."""

import logging
import secrets
import time
from types import FrameType

from pontil.runtime.command_pipe import CommandPipe
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.disaggregation.joint_connector import JointConnector
from pontil.runtime.disaggregation.publisher import publisher_for
from pontil.runtime.disaggregation.rank_pools import RankPools
from pontil.runtime.engine.sequences.sequence import FinishReason
from pontil.runtime.errors import RequestError
from pontil.runtime.reporting import Reporter
from pontil.runtime.threads import ThreadFailures
from pontil.runtime.transfer.connector import SliceConnector
from pontil.runtime.transfer.cut_connector import CutConnector
from pontil.runtime.transfer.security import TransferSecurity
from pontil.runtime.wire.links.keys import Keys
from pontil.runtime.wire.links.sockets import PeerServer, Poller, WorkerSocket, open_context
from pontil.runtime.wire.messages import Cancel, Message, PrefixRequest, Submit
from pontil.runtime.worker.generate.decode import DecodeSide
from pontil.runtime.worker.generate.grammar_manager import GrammarManager
from pontil.runtime.worker.generate.load_gauge import LoadGauge
from pontil.runtime.worker.generate.output_processor import OutputProcessor
from pontil.runtime.worker.generate.prefill import PrefillSide
from pontil.runtime.worker.generate.prefix_reporter import PrefixReporters
from pontil.runtime.worker.generate.prompt_monitor import PromptMonitor, is_late
from pontil.runtime.worker.generate.stage import StageSetting, open_stage
from pontil.runtime.worker.links.connectors import open_connector
from pontil.runtime.worker.links.proxy_link import BEAT, HeartbeatLoad, ProxyLink, make_hello
from pontil.runtime.worker.links.proxy_links import ProxyLinks
from pontil.runtime.worker.links.stalled_links import StalledLinks
from pontil.runtime.worker.process.counters import WorkerCounters
from pontil.runtime.worker.process.idle_work import IdleWork
from pontil.runtime.worker.process.log_fields import about
from pontil.runtime.worker.process.request_table import Failure, RequestTable
from pontil.runtime.worker.process.role_change import AssignedRole
from pontil.runtime.worker.process.step_reporter import StepReporter
from pontil.runtime.worker.process.supervisor_commands import SupervisorCommands
from pontil.runtime.worker.process.worker_request import WorkerRequest, key_of
from pontil.runtime.worker.start.assembly import WorkerResources
from pontil.runtime.worker.start.kv_tiers import open_tiers
from pontil.runtime.worker.start.prefault import Prefault

logger = logging.getLogger("pontil.worker")

# Seconds until a full connection is tried again, and a step when every block is promised to another sequence.
CONGESTION_PAUSE = STALL_PAUSE = 0.005
TOO_LATE = Failure("no worker had room for the request before its deadline", 503, late=True)


class Worker:
    """One process that can prefill, decode, or both; its role is only the proxy's preference."""

    def __init__(
        self, config: WorkerConfig, machine: WorkerResources, report: Reporter, pipe: CommandPipe | None = None
    ) -> None:
        self.config, self.machine, self.report = config, machine, report
        self.incarnation = secrets.token_hex(8)
        self.stopping = False
        # The last clock reading: one in each iteration, and one after a step, which may be long.
        self.now = time.monotonic()
        self.stale = 0
        self.step_reporter = StepReporter(report)
        self.engine_counters = WorkerCounters(machine.engine)
        prefault = Prefault(machine.storage, machine.pool)
        self.idle_work = IdleWork(machine.engine, prefault, machine.lent_cores, machine.recorder)
        self.prompts = PromptMonitor()
        self.keys = None if config.keys is None else Keys.of(config.keys)
        self.failures = ThreadFailures()
        self.context = open_context(self.keys, self.failures, config.deadlines.link_timeout)
        self.poller = Poller()
        self.peers_in = PeerServer(self.context, config.peer_endpoint)
        self.controls = [WorkerSocket(self.context, self.incarnation, one) for one in config.controls]
        self.poller.register(self.peers_in)
        for one in self.controls:
            self.poller.register(one)
        self.guard = None if self.keys is None else TransferSecurity(self.keys.transfer)
        self.driver = machine.driver
        self.driver.watch(self.poller)
        self.tiers = open_tiers(config, machine, self.poller.wake, self.failures)
        self.transport = self.open_connector()
        self.connector = JointConnector(self.transport, machine.storage, self.driver.orders, self.driver.pools)
        grants = None if self.guard is None else self.guard.grants
        self.publisher = publisher_for(machine.storage, self.poller.wake, self.failures)
        self.pools = RankPools(machine.storage, self.driver.orders, grants, self.publisher)
        hello = make_hello(self.incarnation, config, machine, self.peers_in.endpoint)
        self.link = ProxyLinks([ProxyLink(one, hello) for one in self.controls], self.controls)
        self.prefixes = PrefixReporters(self.link.links, machine.pool.index)
        self.requests = RequestTable(self.incarnation, self.link)
        role = self.assigned_role = AssignedRole(self.link, report)
        self.stalls = StalledLinks(self.poller, (*self.controls, self.peers_in), lambda: self.decode.peers.sockets)
        stall = self.stalls.stall if config.allow_chaos else None
        self.commands = None if pipe is None else SupervisorCommands(pipe, self.poller, role, self.transport, stall)
        kv, limits = machine.layout.fingerprint(), config.deadlines
        self.prefill = PrefillSide(self.incarnation, machine, self.peers_in, self.connector, kv, self.pools, limits)
        self.decode = DecodeSide(
            self.incarnation, config.name, machine, self.connector, self.pools, kv, self.context, self.poller, limits
        )
        setting = StageSetting(
            config, self.incarnation, self.context, self.poller, self.peers_in, self.keys, self.failures
        )
        self.stage = open_stage(machine, self.link, setting)
        self.link.limit_seats(self.stage.seats)
        self.grammars = GrammarManager(machine.grammars, self.poller.wake, self.failures)
        self.gauge = LoadGauge(
            machine, self.prefill, self.decode, self.grammars, self.engine_counters, self.failures,
            (*self.controls, self.peers_in), self.stage, self.link, self.requests,
        )  # fmt: skip
        self.processor = OutputProcessor(
            self.requests, self.link, machine.engine, self.prefill, self.engine_counters, self.cancel
        )

    def open_connector(self) -> SliceConnector:
        made = open_connector(self.config, self.machine.storage, self.poller.wake, self.guard, self.failures)
        return CutConnector(made, self.poller.wake) if self.config.allow_chaos else made

    def stop(self, number: int = 0, frame: FrameType | None = None) -> None:
        self.stopping = True
        self.poller.wake()

    def run(self) -> None:
        """Serve until stopped. The worker reports that it is ready once the proxy has welcomed it."""
        self.report.progress("registering with the proxy", waits=True)
        # Commands that arrived during start-up apply from the registration on.
        if self.commands is not None:
            self.commands.obey(self.now)
        self.tick(self.now)
        while not self.link.is_registered(self.now) and not self.stopping:
            self.turn()
        self.report.ready(
            device=self.config.device,
            kv_tokens=self.machine.pool.capacity * self.machine.layout.block_size,
            kv_cache_dtype=self.machine.layout.dtype,
            max_model_len=self.machine.config.max_model_len,
        )
        while not self.stopping:
            self.turn()
        self.leave()

    def leave(self) -> None:
        """On shutdown, return in-flight requests so the proxy can redispatch at once."""
        self.link.goodbye(drained=self.assigned_role.is_drained)
        self.cancel_all(Failure("the worker stops", 503, moved=True))
        self.link.flush()
        self.driver.stop()

    def turn(self) -> None:
        """Run one iteration: handle messages, check deadlines, make one step."""
        working = self.machine.engine.has_work
        if not working:
            self.idle_work.begin()
        self.poller.begin_turn(self.patience(working))
        now = self.now = time.monotonic()
        if self.commands is not None:
            self.commands.obey(now)
        self.take_messages(now)
        self.poller.end_turn()
        for request in self.grammars.poll(now):
            self.start(request, now)
        self.decode.poll(now)
        while self.decode.going_on:
            self.requests.choices_left(*self.decode.going_on.pop())
        self.prefill.kv_sender.flush()
        self.tick(now)
        if self.may_step:
            self.step()
        else:
            self.idle_work.spend(now)
        self.settle()
        self.carry_out_role_change()
        self.driver.flush()
        self.step_reporter.rest(self.may_step)

    @property
    def may_step(self) -> bool:
        return self.machine.engine.has_work and not self.link.congested

    def patience(self, working: bool) -> float:
        """Return the seconds to sleep if nothing arrives."""
        if self.link.congested:
            return CONGESTION_PAUSE
        if working:
            return STALL_PAUSE if self.machine.scheduler.stalled else 0.0
        if self.prefill.outbox.backlogs or self.decode.peers.outbox.backlogs:
            return CONGESTION_PAUSE
        return self.idle_work.patience(self.now, BEAT)

    def step(self) -> None:
        self.idle_work.end()
        self.step_reporter.begin()
        began = time.monotonic()
        outputs = self.machine.engine.step()
        self.now = self.idle_work.busy_at = time.monotonic()
        self.stage.after(outputs, self.now)
        # Before the tokens: a client that has its answer may send the next turn at once.
        self.prefixes.tell()
        self.processor.process(outputs, self.now)
        # Before blocks are recorded: a next attempt may find them.
        begun = [one for sequence in self.machine.engine.begun if (one := self.requests.get(sequence.id))]
        self.requests.tell_progress(self.prompts.begun(begun))
        self.idle_work.after_step(began, self.now)
        self.step_reporter.end(self.machine.engine.has_work)

    def carry_out_role_change(self) -> None:
        if self.assigned_role.is_overdue(self.now):
            self.cancel_all(Failure("the worker drains", 503, moved=True))
        self.assigned_role.tell(idle=self.is_idle)

    @property
    def is_idle(self) -> bool:
        """Return whether no request is left, and no block that a peer still pulls."""
        open_transfers = self.prefill.kv_sender.open or self.decode.kv_receiver.open or self.decode.draining
        owed = self.prefill.outbox.backlogs or self.decode.peers.outbox.backlogs
        busy = self.requests or self.machine.engine.sequences or open_transfers or owed
        return not busy and self.stage.is_idle

    def take_messages(self, now: float) -> None:
        for link, message in self.link.receive_all():
            self.take_control(message, now, link)
        for message in self.peers_in.receive_all():
            if self.is_mine(message) and not self.stage.take(message, now):
                self.prefill.take(message, now)
        for message in self.decode.peers.receive_all():
            if self.is_mine(message):
                self.decode.take(message, now)
        for done in self.driver.take():
            self.connector.take(done)
            self.prefill.ranks_answered(done)

    def is_mine(self, message: Message) -> bool:
        """Return whether a message was meant for this incarnation; one for a predecessor is stale."""
        mine = getattr(message, "receiver", None) == self.incarnation
        self.stale += not mine
        return mine

    def take_control(self, message: Message, now: float, link: ProxyLink | None = None) -> None:
        """Handle a message that came by this link, by default the first."""
        link = link or self.link.links[0]
        if not self.is_mine(message):
            return
        if isinstance(message, Submit):
            self.submit(message, now)
        elif isinstance(message, Cancel):
            request = self.requests.get(key_of(message.request_id, message.attempt))
            if request is not None and request.proxy == message.sender:
                self.cancel(request)
        elif not self.stage.take(message, now):
            self.hear_of_registration(message, now, link)

    def hear_of_registration(self, message: Message, now: float, link: ProxyLink) -> None:
        known = link.proxy
        if gone := link.heard(message, now):
            self.orphan(gone)
        if link.proxy != known:
            link.told.begin()
            logger.info("registered with the proxy")
        if link.proxy != known or isinstance(message, PrefixRequest):
            self.prefixes.begin(link)

    def submit(self, message: Submit, now: float) -> None:
        try:
            request = self.stage.make_request(message)
            if not self.machine.scheduler.fits(request.sequence):
                raise RequestError("the request needs more KV memory than this worker has")
        except RequestError as error:
            self.requests.refuse(message, Failure(str(error), error.status))
            return
        if request.key in self.requests:
            return
        request = self.requests.add(request)
        if not self.stage.begin(request, now):
            self.requests.end(request.key)
            return
        logger.debug(
            "takes a request's phase %s: %d prompt tokens", message.phase, len(message.prompt),
            extra=about(message),
        )  # fmt: skip
        if self.grammars.submit(request, now):
            self.start(request, now)

    def start(self, request: WorkerRequest, now: float) -> None:
        """Start a request, for which everything it waited for is here."""
        if request.submit.transfer_id is None:
            self.machine.engine.add(request.sequence, request.known)
        elif request.is_held:
            self.prefill.kept.submitted(request, now)
        elif request.hands_over:
            self.prefill.submitted(request, now)
        else:
            self.decode.submitted(request, now)

    def cancel(self, request: WorkerRequest, failure: Failure | None = None) -> None:
        """End an attempt in any state; a failure is reported to the proxy."""
        self.requests.end(request.key, failure)
        if self.grammars.cancel(request):
            return
        if request.submit.transfer_id is None:
            self.machine.engine.end(request.key, FinishReason.ABORTED)
        elif request.hands_over:
            self.prefill.cancel(request, self.now)
        else:
            self.decode.cancel(request, self.now)

    def cancel_all(self, failure: Failure | None = None) -> None:
        """Cancel all requests. With a failure that says `moved`, another worker continues them from the last token
        sent."""
        for request in list(self.requests.values()):
            self.cancel(request, failure)

    def orphan(self, proxy: str) -> None:
        """Cancel the requests of this proxy, which is gone. A model of several stages has no other one."""
        orphans = [request for request in self.requests.values() if self.link.only or request.proxy == proxy]
        logger.warning("the proxy is gone: %d requests are cancelled; waiting for the next", len(orphans))
        for request in orphans:
            self.cancel(request)
        self.stage.orphan(self.now)

    def tick(self, now: float) -> None:
        if absence := self.link.look(now):
            self.report.progress(absence, waits=True)
        self.requests.times.flush()
        self.prefill.tick(now)
        self.decode.tick(now)
        for key, reason in self.stage.tick(now):
            if request := self.requests.get(key):
                self.cancel(request, Failure(reason, 503))
        if self.prompts.is_due(now):
            self.requests.tell_progress(self.prompts.advanced(self.requests.values()))
            for request in [one for one in self.requests.values() if is_late(one, now)]:
                self.cancel(request, TOO_LATE)
        self.stalls.tick(now)
        if self.decode.peers.take_news():
            self.link.hurry()
        for gone in self.link.tick(self.load, now):
            self.orphan(gone)
        self.prefixes.tell()

    def settle(self) -> None:
        """Remove the requests that the two sides have finished, and report those that failed there to the proxy."""
        sides: tuple[PrefillSide | DecodeSide, ...] = (self.prefill, self.decode)
        for side in sides:
            while side.failed:
                request, reason = side.failed.pop()
                self.requests.end(request.key, Failure(reason, 503))
            while side.over:
                self.requests.end(side.over.pop().key)
        while self.grammars.failed:
            request, reason, status = self.grammars.failed.pop()
            self.requests.end(request.key, Failure(reason, status))
        self.stage.keep_only(self.requests, self.now)

    def load(self, link: ProxyLink | None = None) -> HeartbeatLoad:
        """Return the load for the proxy of this link, by default the first."""
        return self.gauge.load(link or self.link.links[0], self.step_reporter, self.stale)

    def close(self) -> None:
        self.idle_work.begin()
        self.grammars.close()
        self.connector.close()
        if self.tiers is not None:
            self.tiers.close()
        self.publisher.close()
        self.stage.end()
        self.decode.peers.close()
        self.peers_in.close()
        for one in self.controls:
            one.close(linger=0.5)
        self.driver.close()
        self.poller.close()
        self.context.term()
