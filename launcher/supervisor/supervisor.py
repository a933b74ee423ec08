# SPDX-License-Identifier: Apache-2.0
"""The supervisor: starts a topology, watches it, restarts children that exit, and ends it without leaving a process
behind."""

import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pontil.launcher.child.child import Child
from pontil.launcher.child.child_state import ChildState, DrainState
from pontil.launcher.child.health import HealthLimits
from pontil.launcher.child.kept_memory import SharedWeights
from pontil.launcher.child.process import ChildProcess
from pontil.launcher.child.reports import ChangeReport, UseReport
from pontil.launcher.child.starter import ProcessStarter
from pontil.launcher.control.control_socket import NAME, ControlSocket
from pontil.launcher.control.run_directory import RunDirectory
from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.host.notify import Notifier, NotifyState
from pontil.launcher.host.oom import OomWatch, kill_counter
from pontil.launcher.host.service_port import NOTHING, ServicePort
from pontil.launcher.keys.key_file import follow
from pontil.launcher.logs.console import Console
from pontil.launcher.plan.child_plan import ChildPlan
from pontil.launcher.plan.topology import Topology
from pontil.launcher.supervisor.announcement import Announcement, SelfTestMonitor
from pontil.launcher.supervisor.chaos import WARNING, ChaosTerms, open_chaos
from pontil.launcher.supervisor.child_streams import ChildStreams
from pontil.launcher.supervisor.model_memory import ModelMemory
from pontil.launcher.supervisor.page_changes import take_change
from pontil.launcher.supervisor.process_table import ProcessTable
from pontil.launcher.supervisor.recovery import Recovery
from pontil.launcher.supervisor.reload import Reloader
from pontil.launcher.supervisor.restart_policy import RestartPolicy
from pontil.launcher.supervisor.rollouts.rollout_step import RolloutLimits
from pontil.launcher.supervisor.rollouts.runner import RolloutContext, RolloutRunner, drain_proxy
from pontil.launcher.supervisor.signals import SignalPipe, has_terminal

# Longest time in seconds until a stopped child is noticed when nothing else happens.
PATIENCE = 0.5
# The same while a child is silent: CPU activity takes several samples to see.
WATCHING = 0.2
# Seconds without reading from the children after which their silence proves nothing: the supervisor did not listen.
ABSENCE = 1.5
# Seconds that the proxy gets beyond its drain timeout to end.
DRAIN_MARGIN = 2.0
# Seconds from SIGTERM to SIGKILL, and from SIGKILL to giving up on a process that hangs in the kernel.
TERM_GRACE = 2.0
KILL_GRACE = 5.0


@dataclass(frozen=True, slots=True)
class Orders:
    """A supervisor's orders. `starter` starts children; `gpu_tool` queries GPU memory, if there are GPUs. More workers
    can be added on `machine`; `shares_devices` says whether several may use one device; `chaos` has the terms under
    which workers may be disturbed, if they may. Proxies take connections at the `address`. Workers may share `weights`
    in memory. It `holds` its workers if they are to be drained from their start."""

    topology: Topology
    starter: ProcessStarter
    drain_timeout: float
    policy: RestartPolicy = RestartPolicy()
    limits: HealthLimits = HealthLimits()
    self_test: bool = False
    gpu_tool: str | None = None
    machine: HostDevices | None = None
    shares_devices: bool = False
    reloader: Reloader | None = None
    chaos: ChaosTerms | None = None
    address: tuple[str, int] | None = None
    weights: SharedWeights = field(default_factory=SharedWeights)
    holds: bool = False


class Supervisor:
    """The supervisor's loop. All of it runs on the main thread, woken by the children's pipes and by signals."""

    def __init__(
        self,
        orders: Orders,
        console: Console,
        directory: RunDirectory,
        notifier: Notifier | None = None,
        selector: selectors.BaseSelector | None = None,
    ) -> None:
        self.orders = orders
        self.console = console
        self.directory = directory
        self.notifier = notifier or Notifier({})
        self.selector = selector or selectors.DefaultSelector()
        self.oom = OomWatch(kill_counter())
        self.table = ProcessTable(orders.gpu_tool)
        self.recovery = Recovery(orders.policy, console, ModelMemory(orders.topology.model_memory, console))
        self.port = ServicePort(orders.address)
        self.children: list[Child] = []
        self.asked: list[int] = []
        self.failure: LaunchError | None = None
        self.monitors = False
        self.looked = time.monotonic()
        self.streams = ChildStreams(
            self.selector,
            console,
            time.monotonic,
            self.take,
        )
        self.announcement = Announcement(
            orders.topology, console, SelfTestMonitor(orders.self_test), self.looked, orders.limits.start
        )
        self.had_terminal = has_terminal()
        limits = RolloutLimits(orders.drain_timeout, orders.limits.start)
        self.rollouts = RolloutRunner(
            self, RolloutContext(orders.topology, orders.machine, orders.shares_devices, limits)
        )
        self.chaos = open_chaos(self, orders.chaos, self.rollouts.take)
        self.control = ControlSocket(directory.path / NAME, self.selector, self.chaos.take)

    def run(self) -> int:
        """Serve until told to end, and return the exit code. Raises LaunchError if the launch failed by itself."""
        try:
            with SignalPipe() as signals:
                self.selector.register(signals, selectors.EVENT_READ, lambda: self.obey(signals.take()))
                self.control.open()
                self.port.open()
                self.orders.starter.open(self.selector, time.monotonic)
                self.start(self.prepare())
                self.monitor()
                self.port.close()
                self.drain()
                self.terminate()
        finally:
            self.cleanup()
        if self.failure is not None:
            raise self.failure
        return self.exit_code

    @property
    def most_workers(self) -> Mapping[str, int]:
        return self.recovery.models.most_workers

    @property
    def serving(self) -> bool:
        return not self.asked and self.failure is None

    @property
    def draining(self) -> bool:
        return self.asked == [signal.SIGTERM] and self.failure is None

    @property
    def phase(self) -> NotifyState:
        """The phase as a service manager sees it."""
        if not self.serving:
            return NotifyState.STOPPING
        return NotifyState.SERVING if self.announcement.made else NotifyState.STARTING

    @property
    def exit_code(self) -> int:
        return 0 if self.draining else 128 + self.asked[-1]

    @property
    def living(self) -> list[Child]:
        return [child for child in self.children if child.alive]

    @property
    def proxies(self) -> list[Child]:
        return [child for child in self.children if child.plan.is_proxy]

    # The steps of run().

    def prepare(self) -> Sequence[ChildPlan]:
        """Find the model, alone, so that workers never race to fetch it. Return the plans to start; none if that
        failed."""
        child = self.child(self.orders.topology.prepare)
        self.children = [child]
        self.spawn(child)
        while child.alive and self.serving:
            self.run_once()
        if not self.serving:
            return ()
        self.children = []
        if "paths" not in child.facts:
            exit_cause = child.exits[-1]
            self.failure = exit_cause.error(
                exit_cause.failure or f"The process that looks for the model {exit_cause.describe()}."
            )
            return ()
        self.recovery.models.sizes = child.facts.get("sizes", {})
        return self.orders.topology.with_models(child.facts["paths"]).children

    def start(self, plans: Sequence[ChildPlan]) -> None:
        """Start these children, those that compute when they can be forked."""
        self.children += [self.child(plan) for plan in plans]
        self.recovery.models.begin(self.children, time.monotonic())
        for child in [child for child in self.children if self.orders.holds and not child.plan.is_follower]:
            child.assign(child.plan.role, 0.0)
        starting = [child for child in self.children if child.state is not ChildState.ASLEEP]
        for child in sorted(starting, key=lambda child: child.plan.computes):
            while child.plan.computes and self.orders.starter.is_warming and self.serving:
                self.run_once()
            if self.serving:
                self.spawn(child)

    def monitor(self) -> None:
        self.monitors = True
        if self.orders.chaos is not None:
            self.console.line(WARNING)
        while self.serving:
            self.run_once()
            self.reconcile(time.monotonic())
        self.monitors = False
        self.chaos.close()
        self.rollouts.close()

    def drain(self) -> None:
        """Drain the proxy: it admits nothing more and ends when its requests have. Without one here, ask the workers:
        not ranks of a worker on another host, which have no requests of their own."""
        if not self.draining:
            return
        workers = [child for child in self.children if not child.plan.is_follower]
        leaders = [child for child in self.proxies or workers if child.state is ChildState.READY]
        if leaders:
            self.console.line("stopping: waiting for requests in flight (a second signal ends at once)")
        for child in leaders:
            ask_to_drain(child, self.orders.drain_timeout)
        deadline = time.monotonic() + self.orders.drain_timeout + DRAIN_MARGIN
        while self.draining and any(map(has_work, leaders)) and time.monotonic() < deadline:
            self.run_once()

    def terminate(self) -> None:
        """Ask, wait, kill. One more signal than before ends the wait."""
        signals = len(self.asked)
        for child in self.living:
            ask_to_end(child, for_good=bool(self.asked))
        self.wait_for_the_end(TERM_GRACE, lambda: len(self.asked) == signals)
        for child in self.living:
            child.kill()
        self.wait_for_the_end(KILL_GRACE, lambda: True)

    def cleanup(self) -> None:
        for child in self.living:
            child.kill()
        for child in self.children:
            child.memory.close()
        self.port.close()
        self.orders.starter.close()
        self.orders.weights.close()
        self.table.close()
        self.control.close()
        self.selector.close()
        self.directory.remove()
        self.notifier.close()

    # Helpers of these steps.

    def child(self, plan: ChildPlan) -> Child:
        descriptors = self.port.handed if plan.is_proxy else NOTHING
        return Child(plan, self.orders.starter, descriptors, self.orders.weights)

    def take(self, process: ChildProcess, report: ChangeReport | UseReport) -> None:
        if isinstance(report, UseReport):
            self.recovery.models.hear(process, report, time.monotonic())
        else:
            take_change(process, report, self.rollouts.take)

    def spawn(self, child: Child) -> None:
        now = time.monotonic()
        try:
            child.start(now)
        except OSError as error:
            self.console.line(f"{child.name} cannot be started ({error.strerror}); trying again")
            child.due = now + self.orders.policy.max_delay
            return
        if child.plan.is_proxy:
            follow(child, self.children)
        self.streams.watch(child)

    def run_once(self) -> None:
        """Sleep until an event and handle it: record exits, kill sick children, update the proxies."""
        for key, _ in self.selector.select(self.patience()):
            key.data()
        now = time.monotonic()
        self.excuse_silence(now)
        for child in self.living:
            if self.streams.record_ends(child, now, self.oom):
                child.settle_ends(now)
            elif process := child.judge(self.orders.limits, now):
                it = f"all ranks of {child.name}" if child.plan.followers else "it"
                self.console.line(f"{process.name} {process.complaint}: killing {it}")
                child.kill()
        self.chaos.advance(now)
        self.oom.look(now)
        self.table.tell(self.children, now)
        self.control.flush()
        self.notifier.tick(self.phase, now)

    def excuse_silence(self, now: float) -> None:
        if now - self.looked > ABSENCE:
            for process in (process for child in self.living for process in child.processes):
                process.excuse_silence(now)
        self.looked = now

    def patience(self) -> float:
        now, usual = time.monotonic(), PATIENCE
        if any(child.is_silent(self.orders.limits, now) for child in self.children):
            usual = WATCHING
        starts = [child for child in self.children if child.state is ChildState.BACKOFF]
        if self.orders.starter.is_warming:
            starts = [child for child in starts if not child.plan.computes]
        waits = [child.due - now for child in starts]
        return max(0.0, min([usual, *waits, *self.chaos.waits(now)])) if self.serving else usual

    def obey(self, signals: Sequence[int]) -> None:
        """Handle signals. SIGCHLD only wakes, and SIGHUP reloads, unless the terminal is gone."""
        for number in signals:
            if number == signal.SIGHUP and has_terminal() == self.had_terminal:
                self.reload()
            elif number != signal.SIGCHLD:
                self.asked.append(number)

    def reload(self) -> Sequence[str]:
        """Reload the options; return the outcome in words."""
        reloader = self.orders.reloader if self.monitors else None
        self.notifier.reloading()
        lines = reloader.reload(self.children) if reloader else ["Nothing was reloaded: the launch is still starting."]
        for text in lines:
            self.console.line(f"reload: {text}")
        self.notifier.reloaded()
        return lines

    def reconcile(self, now: float) -> None:
        """Move towards the plan: children that exited wait and start again, and a complete launch is announced."""
        for child in self.children:
            if child.state is ChildState.EXITED and not child.dismissed:
                self.failure = self.failure or self.recovery.answer(child, self.children, self.announcement.made, now)
        self.rollouts.advance(now)
        if self.rollouts.leaves_models_alone:
            self.recovery.models.advance(self.children, self.table.resource_usage.usages, now)
        self.control.flush()
        for child in self.children:
            if child.is_due(now) and self.serving:
                self.spawn(child)
        self.failure = self.announcement.advance(self.children, now) or self.failure

    def wait_for_the_end(self, grace: float, patient: Callable[[], bool]) -> None:
        deadline = time.monotonic() + grace
        while self.living and patient() and time.monotonic() < deadline:
            self.run_once()


def has_work(child: Child) -> bool:
    """Return whether a child that was asked to drain has not: a proxy ends then, a worker reports it."""
    return child.alive and child.drain_state is not DrainState.DRAINED


def ask_to_drain(child: Child, timeout: float) -> None:
    """Have a child of a launch that ends have no requests any more."""
    if child.running and child.plan.is_proxy:
        drain_proxy(child, timeout, hand_over=False)
    else:
        child.assign(child.plan.role, timeout, for_good=True)


def ask_to_end(child: Child, *, for_good: bool) -> None:
    """Have a child of a launch that ends do so. Where the end was asked for, a worker tells its proxies that none comes
    in its place: what only its release could continue does not wait. A launch that fails is started again by its
    service manager, so there it does."""
    if for_good and child.state is ChildState.READY and not child.plan.is_proxy and not child.for_good:
        child.assign(child.plan.role, 0.0, for_good=True)
    child.stop()
