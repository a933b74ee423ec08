# SPDX-License-Identifier: Apache-2.0
"""The life of a worker process, whatever it computes: it registers, takes requests, computes in steps, and leaves."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FrameType

from pontil.runtime.command_pipe import CommandPipe
from pontil.runtime.errors import GroupLeaves
from pontil.runtime.reporting import Reporter
from pontil.runtime.wire.links.sockets import Poller
from pontil.runtime.wire.messages import Message
from pontil.runtime.worker.links.proxy_link import Failure, HeartbeatLoad, ProxyLink
from pontil.runtime.worker.links.proxy_links import ProxyLinks
from pontil.runtime.worker.process.workload import Workload


class AssignedRole:
    """The last order of the supervisor, and its state. Nothing is reported before the first order.

    A draining worker has until `deadline` for its requests. It is drained once the proxy has confirmed, and so sends no
    more requests, and none is left. It `leaves_for_good` if no other process will come in its place.
    """

    def __init__(self, link: ProxyLinks, report: Reporter) -> None:
        self.link, self.report = link, report
        self.order: int | None = None
        self.deadline: float | None = None
        self.reported = True
        self.leaves_for_good = False

    def take(
        self, order: int, role: str, drain: float | None, now: float, *, for_good: bool = False, sleeps: bool = False
    ) -> None:
        """Accept an order. `drain` is None to serve new requests, else the seconds in which the present ones must end.
        One that `sleeps` drains since its model goes to sleep."""
        self.order, self.reported, self.leaves_for_good = order, False, for_good
        self.deadline = None if drain is None else now + drain
        self.link.turn_to(role, draining=drain is not None, sleeps=sleeps)

    def is_overdue(self, now: float) -> bool:
        """Return whether requests have to be moved. A drained worker has none but those with which an operator tries
        it."""
        return self.deadline is not None and not self.reported and now >= self.deadline

    @property
    def is_drained(self) -> bool:
        """Return whether no request is left, and the proxy sends no more."""
        return self.deadline is not None and self.reported

    def tell(self, *, idle: bool) -> None:
        """Report once that the order is carried out, as soon as it is."""
        draining = self.deadline is not None
        if not self.reported and self.link.is_known and (idle or not draining):
            self.reported = True
            self.report.settled(order=self.order or 0, drained=draining)


logger = logging.getLogger("pontil.worker")

# Seconds until a full connection is tried again.
CONGESTION_PAUSE = 0.005


class SupervisorCommands:
    """Reads and carries out commands. `poller` wakes the worker when one arrives, as long as the supervisor is
    there. `trials` are faults for so many seconds, by the kind of the command for each."""

    def __init__(
        self,
        pipe: CommandPipe,
        poller: Poller,
        assigned_role: AssignedRole,
        trials: Mapping[str, Callable[[float], None]],
    ) -> None:
        self.pipe, self.poller, self.assigned_role, self.trials = pipe, poller, assigned_role, trials
        poller.watch(pipe.descriptor)

    def obey(self, now: float) -> None:
        """Carry out the commands that have arrived."""
        if self.pipe.closed or not self.poller.may_show(self.pipe.descriptor):
            return
        for command in self.pipe.take():
            if command.get("kind") == "role":
                whys = {name: command.get(name, False) for name in ("for_good", "sleeps")}
                self.assigned_role.take(command["order"], command["role"], command["drain"], now, **whys)
            elif command.get("kind") == "log_level":
                logging.getLogger().setLevel(command["level"].upper())
            elif trial := self.trials.get(command.get("kind", "")):
                trial(command["seconds"])
        if self.pipe.closed:
            self.poller.unwatch(self.pipe.descriptor)


class StepReporter:
    """A reporter of steps. `steps` is the number of completed ones, which took `nanoseconds` together."""

    def __init__(self, report: Reporter) -> None:
        self.report = report
        self.steps = self.nanoseconds = self.begun = 0
        self.told_of_work = False

    def begin(self) -> None:
        self.begun = time.monotonic_ns()
        self.tell(True)

    def end(self, has_work: bool) -> None:
        """Count a completed step and report it."""
        self.steps += 1
        self.nanoseconds += time.monotonic_ns() - self.begun
        self.tell(has_work)

    def counters(self) -> dict[str, int]:
        """Return the counts under their names in heartbeats."""
        return {"steps": self.steps, "step_microseconds": self.nanoseconds // 1000}

    def rest(self, may_step: bool) -> None:
        """Report that no work is left to step. Reported work may end without another step: all of it was cancelled, or
        it is held up because the proxy accepts no messages. Neither is a step that hangs."""
        if self.told_of_work and not may_step:
            self.tell(False)

    def tell(self, working: bool) -> None:
        self.told_of_work = working
        self.report.stepped(self.steps, working)


class WorkerLoop:
    """The loop of one process around its workload. `now` is the last clock reading: one in each iteration, and one
    after a step, which may be long."""

    def __init__(self, workload: Workload, report: Reporter, pipe: CommandPipe | None = None) -> None:
        self.workload, self.report = workload, report
        self.sockets, self.link, self.idle_work = workload.sockets, workload.link, workload.idle_work
        self.stopping = False
        self.now = time.monotonic()
        self.outlook = workload.outlook()
        self.steps = StepReporter(report)
        self.assigned_role = AssignedRole(self.link, report)
        self.commands = (
            None if pipe is None else SupervisorCommands(pipe, self.sockets.poller, self.assigned_role, workload.trials)
        )

    def stop(self, number: int = 0, frame: FrameType | None = None) -> None:
        """Stop before the next turn. A signal may also come when the process is ending already."""
        if not self.stopping:
            self.stopping = True
            self.sockets.poller.wake()

    def run(self) -> None:
        """Serve until stopped. The worker reports that it is ready once its proxies have welcomed it."""
        if self.link.links:
            self.report.progress("registering with the proxy", waits=True)
        self.begin()
        while not self.link.is_registered(self.now) and not self.stopping:
            self.turn()
        self.report.ready(device=self.sockets.config.device, **self.workload.facts)
        self.idle_work.ready_at = self.now
        while not self.stopping:
            self.turn()
        self.leave()

    def begin(self) -> None:
        """Register. Commands that arrived during start-up apply from the registration on."""
        if self.commands is not None:
            self.commands.obey(self.now)
        self.tick(self.now)

    def leave(self) -> None:
        """On shutdown, return requests in flight so the proxy can redispatch at once. The last order may have come with
        the signal."""
        role = self.assigned_role
        if self.commands is not None:
            self.commands.obey(self.now)
        self.link.goodbye(drained=role.is_drained, for_good=role.leaves_for_good)
        self.workload.drop(Failure("the worker stops", 503, moved=True), None, self.now)
        self.link.flush()
        self.sockets.leaving.close()

    def turn(self) -> None:
        """Run one iteration: handle messages, check deadlines, make one step."""
        if not self.outlook.has_work:
            self.idle_work.begin()
        self.sockets.poller.begin_turn(self.patience)
        now = self.now = time.monotonic()
        if self.commands is not None:
            self.commands.obey(now)
        if not self.sockets.poller.is_quiet:
            for link, message in self.link.receive_all():
                self.hear(message, now, link)
        self.tick(now)
        self.compute(now)
        if self.assigned_role.is_overdue(self.now):
            self.workload.drop(Failure("the worker drains", 503, moved=True), None, self.now)
            self.outlook = self.workload.outlook()
        self.assigned_role.tell(idle=self.outlook.is_idle)
        self.steps.rest(self.outlook.has_work and not self.link.congested)
        self.stopping = self.stopping or self.outlook.is_over

    def compute(self, now: float) -> None:
        """Make one step, or use the time without work, and keep up with other workers. If these leave, stop."""
        outlook = self.workload.outlook()
        may_step = outlook.has_work and not self.link.congested
        try:
            if may_step:
                self.step()
            elif not outlook.is_awaited:
                self.idle_work.spend(now)
            self.workload.keep_up()
        except GroupLeaves as error:
            logger.info("stopping: %s", error)
            self.stopping = True
        self.outlook = self.workload.outlook()
        if may_step:
            self.steps.end(self.outlook.has_work)

    @property
    def patience(self) -> float:
        """The seconds to sleep if nothing arrives."""
        if self.outlook.is_awaited:
            return 0.0
        if self.link.congested:
            return CONGESTION_PAUSE
        patience = self.outlook.patience
        return patience if self.outlook.has_work else self.idle_work.patience(self.now, patience)

    def step(self) -> None:
        self.idle_work.end()
        self.steps.begin()
        self.workload.step(time.monotonic())
        self.now = time.monotonic()

    def hear(self, message: Message, now: float, link: ProxyLink | None = None) -> None:
        """Handle a message that came by this link, by default the first. Before a Welcome the proxy gives requests to
        the registration before, which it is about to hear has ended."""
        link = link or self.link.links[0]
        if self.sockets.is_mine(message) and (link.proxy is None or not self.workload.take(message, now)):
            self.lose(link.heard(message, now))

    def tick(self, now: float) -> None:
        """Do what else others and time ask for, and send the heartbeats that are due."""
        self.workload.poll(now)
        self.sockets.poller.end_turn()
        if absence := self.link.look(now):
            self.report.progress(absence, waits=True)
        for gone in self.link.tick(self.load, now):
            self.lose(gone)

    def lose(self, proxy: str | None) -> None:
        """Drop the requests of a proxy that is gone. Where there is only one, all are its own."""
        if proxy is not None:
            dropped = self.workload.drop(None, proxy if self.link.only is None else None, self.now)
            # At an ordinary stop it goes first, and has nothing left by then.
            level = logging.WARNING if dropped else logging.INFO
            logger.log(level, "the proxy is gone: %d requests are dropped; waiting for the next", dropped)

    def load(self, link: ProxyLink | None = None) -> HeartbeatLoad:
        """Return the load for the proxy of this link, by default the first."""
        load = self.workload.load(link or self.link.links[0])
        counters = {**load.counters, **self.steps.counters(), **self.sockets.counters()}
        return replace(load, step=self.steps.steps, counters=counters)

    def close(self) -> None:
        self.sockets.closing.close()
