# SPDX-License-Identifier: Apache-2.0
"""The life of a worker process that makes no tokens: it registers, takes tasks, computes them in steps, and leaves."""

import logging
import secrets
import time
from abc import ABC, abstractmethod
from types import FrameType

from pontil.runtime.command_pipe import CommandPipe
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.reporting import Reporter
from pontil.runtime.threads import ThreadFailures
from pontil.runtime.wire.links.keys import Keys
from pontil.runtime.wire.links.sockets import Poller, WorkerSocket, open_context
from pontil.runtime.wire.messages import Embed, Failed, Hello, Message, NodeTask
from pontil.runtime.worker.links.proxy_link import BEAT, HeartbeatLoad, ProxyLink
from pontil.runtime.worker.links.proxy_links import ProxyLinks
from pontil.runtime.worker.process.request_table import Failure
from pontil.runtime.worker.process.role_change import AssignedRole
from pontil.runtime.worker.process.step_reporter import StepReporter
from pontil.runtime.worker.process.supervisor_commands import SupervisorCommands
from pontil.runtime.worker.process.times_reporter import TimesReporter

logger = logging.getLogger("pontil.worker")

CONGESTION_PAUSE = 0.005


class PlainWorker(ABC):
    """One process with tasks of its proxies."""

    def __init__(self, config: WorkerConfig, report: Reporter, pipe: CommandPipe | None = None) -> None:
        self.config, self.report = config, report
        self.incarnation = secrets.token_hex(8)
        self.stopping = False
        self.now = time.monotonic()
        self.stale = 0
        self.step_reporter = StepReporter(report)
        self.failures = ThreadFailures()
        self.keys = None if config.keys is None else Keys.of(config.keys)
        self.context = open_context(self.keys, self.failures, config.deadlines.link_timeout)
        self.poller = Poller()
        self.controls = [WorkerSocket(self.context, self.incarnation, one) for one in config.controls]
        for one in self.controls:
            self.poller.register(one)
        self.open_sockets()
        self.link = ProxyLinks([ProxyLink(one, self.hello()) for one in self.controls], self.controls)
        self.times = TimesReporter(self.incarnation, self.link)
        self.assigned_role = AssignedRole(self.link, report)
        self.commands = None if pipe is None else SupervisorCommands(pipe, self.poller, self.assigned_role)

    def open_sockets(self) -> None:  # noqa: B027
        """Open what the worker needs besides the connection to the proxy, before it introduces itself."""

    @abstractmethod
    def hello(self) -> Hello:
        """Return the introduction with which the worker registers."""

    @abstractmethod
    def take(self, message: Message, now: float) -> bool:
        """Handle a message of the proxy; return False for one about the registration."""

    @property
    @abstractmethod
    def has_work(self) -> bool:
        """Return whether a step has something to compute."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Return whether nothing of a proxy's is left here."""

    @abstractmethod
    def compute(self, now: float) -> None:
        """Compute one step, and send its results."""

    @abstractmethod
    def poll(self, now: float) -> None:
        """End the tasks that are late, and do what else time and other workers ask for."""

    @abstractmethod
    def give_back(self, failure: Failure) -> None:
        """End all tasks with this failure; another worker computes those that are `moved`."""

    @abstractmethod
    def orphan(self, proxy: str) -> None:
        """Drop the tasks of this proxy, which is gone."""

    @property
    @abstractmethod
    def counts(self) -> tuple[int, int]:
        """Return the numbers of tasks that wait, and of seats that are free."""

    @property
    @abstractmethod
    def max_model_len(self) -> int | None:
        """Return the longest input in tokens, if it has tokens."""

    def stop(self, number: int = 0, frame: FrameType | None = None) -> None:
        self.stopping = True
        self.poller.wake()

    def run(self) -> None:
        """Serve until stopped. The worker reports that it is ready once the proxy has welcomed it."""
        self.report.progress("registering with the proxy", waits=True)
        if self.commands is not None:
            self.commands.obey(self.now)
        self.tick(self.now)
        while not self.link.is_registered(self.now) and not self.stopping:
            self.turn()
        length = {} if self.max_model_len is None else {"max_model_len": self.max_model_len}
        self.report.ready(device=self.config.device, **length)
        while not self.stopping:
            self.turn()
        self.leave()

    def leave(self) -> None:
        """On shutdown, return the tasks so the proxy can redispatch at once."""
        self.link.goodbye(drained=self.assigned_role.is_drained)
        self.give_back(Failure("the worker stops", 503, moved=True))
        self.link.flush()

    def turn(self) -> None:
        """Run one iteration: handle messages, check deadlines, compute one step."""
        self.poller.wait(self.patience)
        now = self.now = time.monotonic()
        if self.commands is not None:
            self.commands.obey(now)
        for link, message in self.link.receive_all():
            self.hear(message, now, link)
        self.tick(now)
        if self.may_step:
            self.step_reporter.begin()
            self.compute(now)
            self.now = time.monotonic()
            self.step_reporter.end(self.has_work)
        if self.assigned_role.is_overdue(self.now):
            self.give_back(Failure("the worker drains", 503, moved=True))
        self.assigned_role.tell(idle=self.is_idle)
        self.step_reporter.rest(self.may_step)

    @property
    def patience(self) -> float:
        """The seconds to sleep if nothing arrives."""
        if self.link.congested:
            return CONGESTION_PAUSE
        return 0.0 if self.has_work else BEAT

    @property
    def may_step(self) -> bool:
        return self.has_work and not self.link.congested

    def hear(self, message: Message, now: float, link: ProxyLink | None = None) -> None:
        """Handle a message that came by this link, by default the first."""
        link = link or self.link.links[0]
        if getattr(message, "receiver", None) != self.incarnation:
            self.stale += 1
        elif not self.take(message, now):
            known = link.proxy
            if gone := link.heard(message, now):
                self.orphan(gone)
            if link.proxy != known:
                link.told.begin()
                logger.info("registered with the proxy")

    def refuse(self, message: Embed | NodeTask, failure: Failure) -> None:
        """Report a failure to the proxy."""
        level = logging.INFO if failure.moved else logging.WARNING
        logger.log(
            level, "request %s: %s", message.request_id, failure.reason, extra={"request": message.request_id}
        )  # fmt: skip
        address = self.incarnation, message.sender, message.request_id, message.attempt
        self.link.send(Failed(*address, failure.reason, failure.status, failure.moved, failure.late))

    def tick(self, now: float) -> None:
        if absence := self.link.look(now):
            self.report.progress(absence, waits=True)
        self.poll(now)
        self.times.flush()
        for gone in self.link.tick(self.load, now):
            self.orphan(gone)

    def measured(self) -> tuple[dict[str, int], dict[str, int] | None]:
        """Return the counters and the gauges that a kind of worker has besides."""
        return {}, None

    def load(self, link: ProxyLink | None = None) -> HeartbeatLoad:
        """Return the load for the proxy of this link, by default the first."""
        link = link or self.link.links[0]
        waiting, free = self.counts
        counted, gauges = self.measured()
        counters = {
            "generated_tokens": 0,
            "generated_before": 0,
            "prompt_tokens_computed": link.told.computed,
            "prompt_tokens_computed_before": link.told.computed_before,
            "stale_messages": self.stale,
            "malformed_frames": sum(one.malformed for one in self.controls),
            **self.step_reporter.counters(),
            **counted,
            **{f"thread_failures_{name}": count for name, count in self.failures.counts().items()},
        }
        return HeartbeatLoad(0, waiting, free, self.step_reporter.steps, counters, gauges)

    def close(self) -> None:
        for one in self.controls:
            one.close(linger=0.5)
        self.poller.close()
        self.context.term()
