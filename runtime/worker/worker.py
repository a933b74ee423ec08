# SPDX-License-Identifier: Apache-2.0
"""A worker process: sockets and deadlines around `Engine.step`."""

import logging
import os
import secrets
import signal
import time
from types import FrameType

from pontil.runtime.config import WorkerConfig
from pontil.runtime.engine.engine import Output
from pontil.runtime.engine.sequence import Finish
from pontil.runtime.errors import ModelError, RequestError
from pontil.runtime.reporting import Reporter
from pontil.runtime.text.grammar import LIBRARY
from pontil.runtime.transfer.connector import Connector
from pontil.runtime.transfer.over_auto import OverAuto
from pontil.runtime.transfer.over_shm import OverShm
from pontil.runtime.transfer.over_tcp import OverTcp
from pontil.runtime.wire.messages import SCHEMA, Cancel, Failed, Hello, Message, Submit
from pontil.runtime.wire.sockets import PeerClient, PeerServer, Poller, WorkerSocket, open_context
from pontil.runtime.worker.assembly import Machine, assemble
from pontil.runtime.worker.decode_desk import DecodeDesk
from pontil.runtime.worker.grammar_desk import GrammarDesk
from pontil.runtime.worker.live import FirstAdmissions, Live, key_of, make_live, tokens_frame
from pontil.runtime.worker.prefill_desk import PrefillDesk
from pontil.runtime.worker.proxy_link import BEAT, Load, ProxyLink

logger = logging.getLogger("pontil.worker")

# How soon a full line to the proxy is tried again, and a step when every block was promised to somebody else.
CONGESTION_PAUSE = STALL_PAUSE = 0.005
# A worker that had nothing to do for so long has leisure: the next request is not on its way yet.
QUIET = 1.0


def run_worker(config: WorkerConfig, report: Reporter) -> None:
    """Load, register, serve until SIGTERM. Raises PontilError for what a user can mend."""
    machine = assemble(config, report)
    worker = Worker(config, machine, report)
    signal.signal(signal.SIGTERM, worker.stop)
    signal.signal(signal.SIGINT, worker.stop)
    try:
        worker.run()
    finally:
        worker.close()


class Worker:
    """One process that can prefill, decode, or both; its role is only the proxy's preference."""

    def __init__(self, config: WorkerConfig, machine: Machine, report: Reporter) -> None:
        self.config, self.machine, self.report = config, machine, report
        self.incarnation = secrets.token_hex(8)
        self.stopping = False
        self.steps = 0
        self.told_of_work = False
        self.busy_at = 0.0
        self.stale = 0
        self.generated_before = self.computed_before = self.results_dropped = 0
        self.dropped = (0, 0)
        self.requests: dict[str, Live] = {}
        self.admissions = FirstAdmissions()
        self.context = open_context()
        self.poller = Poller()
        self.peers_in = PeerServer(self.context, config.peer_endpoint)
        self.control = WorkerSocket(self.context, self.incarnation, config.control)
        self.poller.register(self.peers_in)
        self.poller.register(self.control)
        self.connector = self.open_connector()
        self.link = ProxyLink(self.control, self.hello())
        kv = machine.layout.fingerprint()
        self.prefill = PrefillDesk(self.incarnation, machine, self.peers_in, self.connector, kv)
        self.decode = DecodeDesk(
            self.incarnation, config.name, machine, self.connector, kv, self.connect, self.disconnect
        )
        self.grammars = GrammarDesk(machine.grammars, self.poller.wake)

    def open_connector(self) -> Connector:
        config, storage, wake = self.config, self.machine.storage, self.poller.wake
        if config.kv_connector == "auto":
            return OverAuto(storage, wake, config.transfer_host)
        if config.kv_connector == "shm":
            return OverShm(storage, wake)
        if config.kv_connector == "tcp":
            return OverTcp(storage, wake, config.transfer_host)
        raise ModelError(f"--kv-connector {config.kv_connector} is not known: this version has auto, shm and tcp")

    def hello(self) -> Hello:
        config, machine = self.config, self.machine
        return Hello(
            self.incarnation,
            SCHEMA,
            config.name,
            config.role,
            os.getpid(),
            config.device,
            config.served_model_name,
            machine.fingerprint,
            machine.layout.fingerprint(),
            self.peers_in.endpoint,
            machine.layout.block_size,
            machine.pool.capacity,
            config.max_num_seqs,
            machine.config.max_model_len,
            config.max_num_batched_tokens,
            kernels=machine.kernels,
            dtype=machine.layout.dtype,
            grammars=LIBRARY,
        )

    def connect(self, endpoint: str) -> PeerClient:
        socket = PeerClient(self.context, self.incarnation, endpoint)
        self.poller.register(socket)
        return socket

    def disconnect(self, socket: PeerClient) -> None:
        self.poller.unregister(socket)
        socket.close()

    def stop(self, number: int = 0, frame: FrameType | None = None) -> None:
        self.stopping = True
        self.poller.wake()

    def run(self) -> None:
        """Serve until stopped. Ready means that the proxy has welcomed this worker, not that it would like to be."""
        self.report.progress("registering")
        self.tick(time.monotonic())
        while self.link.proxy is None and not self.stopping:
            self.turn()
        self.report.ready(
            device=self.config.device,
            kv_tokens=self.machine.pool.capacity * self.machine.layout.block_size,
            max_model_len=self.machine.config.max_model_len,
        )
        while not self.stopping:
            self.turn()
        self.link.goodbye()

    def turn(self) -> None:
        """Take messages, keep deadlines, make one step."""
        working = self.machine.engine.has_work
        self.poller.wait(self.patience(working))
        self.take_messages()
        for live in self.grammars.poll(time.monotonic()):
            self.start(live, time.monotonic())
        self.decode.poll(time.monotonic())
        self.tick(time.monotonic())
        if self.machine.engine.has_work and not self.link.congested:
            self.step()
        elif self.machine.scheduler.has_spare_work and time.monotonic() - self.busy_at >= QUIET:
            self.machine.engine.keep_answers()
        self.settle()
        self.report_idleness()

    def patience(self, working: bool) -> float:
        """How long to sleep when nothing arrives."""
        if self.link.congested:
            return CONGESTION_PAUSE
        if working:
            return STALL_PAUSE if self.machine.scheduler.stalled else 0.0
        if self.machine.scheduler.has_spare_work:
            return min(BEAT, max(0.0, self.busy_at + QUIET - time.monotonic()))
        return BEAT

    def report_idleness(self) -> None:
        """A step told that work waits. That may end without another step: all of it cancelled, or held up because the
        proxy does not take what was made. Neither is a step that hangs."""
        if self.told_of_work and (self.link.congested or not self.machine.engine.has_work):
            self.tell_of_work(False)

    def tell_of_work(self, working: bool) -> None:
        self.told_of_work = working
        self.report.stepped(self.steps, working)

    def step(self) -> None:
        self.tell_of_work(True)
        outputs = self.machine.engine.step()
        self.steps += 1
        for output in outputs:
            self.deliver(output)
        for output in outputs:
            self.conclude(output)
        self.prefill.announce()
        self.busy_at = time.monotonic()
        self.tell_of_work(self.machine.engine.has_work)

    def deliver(self, output: Output) -> None:
        """Tell the proxy of accepted tokens, and the prefill desk of choices that are done with there."""
        live = self.requests.get(output.sequence.id)
        if live is None:
            self.drop(output)
            return
        self.link.send(tokens_frame(self.incarnation, live, output))
        if output.failure is not None:
            self.break_off(live, output.failure)
        elif output.finish is not None and self.is_handing_over(live):
            self.prefill.ended(output)

    def break_off(self, live: Live, reason: str) -> None:
        """One of its choices cannot go on, because of what was asked for: the request ends."""
        self.fail(live.submit, reason, 400)
        if self.is_handing_over(live):
            self.forget(live.key)
            self.prefill.break_off(live)
        else:
            self.cancel(live)

    def drop(self, output: Output) -> None:
        """A result for nobody who is known here (A2): it is told to nobody, and not counted as if it were."""
        generated, computed = self.dropped
        self.results_dropped += 1
        self.dropped = generated + output.count, computed + (output.sequence.prompt_computed if output.opens else 0)

    def is_handing_over(self, live: Live) -> bool:
        return live.submit.transfer_id is not None and live.submit.phase == "prefill"

    def conclude(self, output: Output) -> None:
        """Forget a request once all its choices ended, each of which was delivered. The prefill desk keeps its own."""
        live = self.requests.get(output.sequence.id)
        if live is not None and live.key not in self.machine.engine.sequences and not self.is_handing_over(live):
            self.forget(live.key)

    def forget(self, key: str) -> Live | None:
        """Nothing more is done for this attempt."""
        live = self.requests.pop(key, None)
        if live is not None:
            self.admissions.remember(live)
        return live

    def take_messages(self) -> None:
        now = time.monotonic()
        for message in self.control.receive_all():
            self.take_control(message, now)
        for message in self.peers_in.receive_all():
            if self.is_mine(message):
                self.prefill.take(message, now)
        for line in list(self.decode.lines.values()):
            for message in line.socket.receive_all() if line.socket else ():
                if self.is_mine(message):
                    self.decode.take(message, now)

    def is_mine(self, message: Message) -> bool:
        """Whether a message was meant for this incarnation; one for a predecessor is stale."""
        mine = getattr(message, "receiver", None) == self.incarnation
        self.stale += not mine
        return mine

    def take_control(self, message: Message, now: float) -> None:
        if not self.is_mine(message):
            return
        if isinstance(message, Submit):
            self.submit(message, now)
        elif isinstance(message, Cancel):
            live = self.requests.get(key_of(message.request_id, message.attempt))
            if live is not None and live.proxy == message.sender:
                self.cancel(live)
        else:
            self.hear_of_registration(message, now)

    def hear_of_registration(self, message: Message, now: float) -> None:
        """A ledger begins with a registration: what was generated before it, was generated for another."""
        known = self.link.proxy
        if self.link.heard(message, now):
            self.orphan()
        if self.link.proxy != known:
            self.generated_before, self.computed_before = self.engine_counts

    @property
    def engine_counts(self) -> tuple[int, int]:
        """Tokens generated, and prompt tokens computed for the first time: what the proxy was told of."""
        engine, (generated, computed) = self.machine.engine, self.dropped
        return engine.generated - generated, engine.prompt_computed - computed

    def submit(self, message: Submit, now: float) -> None:
        try:
            live = make_live(message, self.machine)
            if not self.machine.scheduler.fits(live.sequence):
                raise RequestError("the request needs more KV memory than this worker has")
        except RequestError as error:
            self.fail(message, str(error), error.status)
            return
        if live.key in self.requests:
            return
        live = self.requests[live.key] = self.admissions.recall(live)
        if self.grammars.submit(live, now):
            self.start(live, now)

    def start(self, live: Live, now: float) -> None:
        """All that the request needs before is here."""
        if live.submit.transfer_id is None:
            self.machine.engine.add(live.sequence, live.known)
        elif live.submit.phase == "prefill":
            self.prefill.submitted(live, now)
        else:
            self.decode.submitted(live, now)

    def cancel(self, live: Live) -> None:
        self.forget(live.key)
        if self.grammars.cancel(live):
            return
        if live.submit.transfer_id is None:
            self.machine.engine.end(live.key, Finish.ABORTED)
        elif live.submit.phase == "prefill":
            self.prefill.cancel(live)
        else:
            self.decode.cancel(live)

    def orphan(self) -> None:
        """The proxy that owns our requests is gone: nobody waits for them any more."""
        logger.warning("the proxy is gone: %d requests are cancelled", len(self.requests))
        for live in list(self.requests.values()):
            self.cancel(live)

    def tick(self, now: float) -> None:
        self.prefill.tick(now)
        self.decode.tick(now)
        if self.link.tick(self.load(), now):
            self.orphan()

    def settle(self) -> None:
        """Forget the requests that the desks are done with, and tell the proxy of those they gave up on."""
        desks: tuple[PrefillDesk | DecodeDesk, ...] = (self.prefill, self.decode)
        for desk in desks:
            while desk.failed:
                live, reason = desk.failed.pop()
                if self.forget(live.key) is not None:
                    self.fail(live.submit, reason, 503)
            while desk.over:
                self.forget(desk.over.pop().key)
        while self.grammars.failed:
            live, reason, status = self.grammars.failed.pop()
            if self.forget(live.key) is not None:
                self.fail(live.submit, reason, status)

    def fail(self, submit: Submit, reason: str, status: int) -> None:
        logger.warning("request %s: %s", submit.request_id, reason)
        self.link.send(Failed(self.incarnation, submit.sender, submit.request_id, submit.attempt, reason, status))

    def load(self) -> Load:
        scheduler, tally = self.machine.scheduler, self.decode.tally
        generated, computed = self.engine_counts
        counters = {
            "handoffs_complete": tally.complete,
            "handoffs_failed": tally.failed,
            "handoffs_cancelled": tally.cancelled,
            "handoffs_expired": self.prefill.expired,
            "prefix_cache_queries": scheduler.prefix.queried,
            "prefix_cache_hits": scheduler.prefix.hit,
            "preemptions": scheduler.preemptions,
            "recomputed_tokens": scheduler.recomputed,
            "draft_tokens": self.machine.engine.drafted,
            "accepted_draft_tokens": self.machine.engine.accepted,
            "generated_tokens": generated,
            "generated_before": self.generated_before,
            "prompt_tokens_computed": computed,
            "prompt_tokens_computed_before": self.computed_before,
            "results_dropped": self.results_dropped,
            "kv_transfer_bytes": tally.bytes,
            "stale_messages": self.stale,
            "malformed_frames": self.control.malformed + self.peers_in.malformed,
        }
        running = len(scheduler.running) + len(scheduler.parked)
        waiting = len(scheduler.waiting) + len(self.decode.waiting) + len(self.prefill.halves) + len(self.grammars)
        return Load(running, waiting, self.machine.pool.available, self.steps, counters)

    def close(self) -> None:
        self.grammars.close()
        self.connector.close()
        for line in self.decode.lines.values():
            if line.socket is not None:
                line.socket.close()
        self.peers_in.close()
        self.control.close(linger=0.5)
        self.poller.close()
        self.context.term()
