# SPDX-License-Identifier: Apache-2.0
"""Commands of the control socket: runs one change at a time, carries out its state machine's actions, and answers the
client."""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pontil.launcher.child.child import Child
from pontil.launcher.child.child_state import ChildState
from pontil.launcher.foundation.errors import LaunchError, OptionError
from pontil.launcher.foundation.held_devices import HeldDevices
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.logs.console import Console
from pontil.launcher.plan.child_plan import ChildPlan, devices_of
from pontil.launcher.plan.topology import Topology
from pontil.launcher.supervisor.rollouts.plan import LaunchSnapshot, is_counted, planned
from pontil.launcher.supervisor.rollouts.rollout import Rollout, RolloutPhase, advance
from pontil.launcher.supervisor.rollouts.rollout_step import (
    ActionKind,
    RolloutGoal,
    RolloutLimits,
    WorkerAction,
    WorkerSnapshot,
)

# Seconds between messages to a client that show that the supervisor is alive.
BEAT = 5.0
NOWHERE = HostDevices((), 0, 0)


@dataclass(frozen=True, slots=True)
class RolloutContext:
    """The context of changes: the launch as planned, the machine for more workers (None: there is none), and the time
    limits."""

    topology: Topology
    machine: HostDevices | None
    shares_devices: bool
    limits: RolloutLimits


class RolloutClient(Protocol):
    """The one that asked for a change: a command on the control socket, or a proxy's page. Writing to one that has left
    is no error."""

    def say(self, text: str) -> None: ...
    def end(self, text: str, code: int = 0, **facts: Any) -> None: ...
    def beat(self) -> None: ...
    def ask(self, workers: Sequence[str]) -> None:
        """Ask for the verdict on these workers."""

    @property
    def verdict(self) -> str | None:
        """The verdict on what was asked last, empty if it is good; None while there is none."""


class DeviceStatements(Protocol):
    """The run directory, in which this launch states its devices for others."""

    def others(self, *, wait: bool = True) -> AbstractContextManager[HeldDevices]: ...
    def hold(self, devices: HeldDevices) -> list[str]: ...


class RolloutSupervisor(Protocol):
    """The supervisor as a runner sees it. The runner adds and removes workers among its children once the supervisor
    `monitors` them, as long as the launch is `serving`."""

    console: Console
    children: list[Child]
    monitors: bool

    @property
    def directory(self) -> DeviceStatements: ...
    @property
    def serving(self) -> bool: ...
    @property
    def most_workers(self) -> Mapping[str, int]:
        """The most workers that each model may have, by group, where their memory is limited."""

    def child(self, plan: ChildPlan) -> Child: ...
    def reload(self) -> Sequence[str]: ...


class RolloutRunner:
    """Runs one change: `take` a request, then `advance` until the change is over. A client that disconnects has no
    effect on it."""

    def __init__(self, supervisor: RolloutSupervisor, context: RolloutContext) -> None:
        self.supervisor, self.context = supervisor, context
        self.change: Rollout | None = None
        self.client: RolloutClient | None = None
        self.title = ""
        self.last_beat = 0.0

    def take(self, client: RolloutClient, request: dict[str, Any]) -> None:
        command = request.get("command")
        if command == "describe":
            client.end("", **self.facts)
        elif not self.supervisor.serving:
            client.end("The launch is stopping.", 1)
        elif not self.supervisor.monitors:
            client.end("The launch is still starting: try again when it is ready.", 1)
        elif command == "reload":
            client.end("\n".join(self.supervisor.reload()))
        elif self.change is not None:
            client.end(f"Another change is under way ({self.title}): wait until it is done.", 1)
        else:
            self.begin(client, request)

    def begin(self, client: RolloutClient, request: dict[str, Any]) -> None:
        try:
            change = self.planned(request)
        except (OptionError, LaunchError) as error:
            client.end(error.message, error.exit_code)
            return
        self.change, self.client = change, client
        self.title = f"{request['command']}{' --proxies' if request.get('proxies') else ''}"
        if change.is_over:
            self.conclude(change)

    def planned(self, request: dict[str, Any]) -> Rollout:
        """Return the change. One that adds workers takes devices, of which no other launch may take any meanwhile.
        Raises OptionError and LaunchError for what cannot be."""
        if request.get("command") != "scale":
            return planned(request, self.snapshot(self.machine))
        with self.supervisor.directory.others(wait=False) as held_devices:
            change = planned(request, self.snapshot(replace(self.machine, held=held_devices)))
            self.hold([step.plan for step in change.steps if step.plan is not None])
        return change

    def hold(self, coming: Sequence[ChildPlan] = ()) -> None:
        """State for other launches what the workers have, and those that are to come."""
        plans = [*(child.plan for child in self.workers), *coming]
        for line in self.supervisor.directory.hold(devices_of(plans, self.machine)):
            self.supervisor.console.line(line)

    @property
    def facts(self) -> dict[str, Any]:
        topology = self.context.topology
        rows = [child.row for child in self.supervisor.children]
        return {"pid": os.getpid(), "url": topology.url, "control": topology.control, "processes": rows}

    @property
    def workers(self) -> list[Child]:
        return [child for child in self.supervisor.children if not child.plan.is_proxy]

    @property
    def proxies(self) -> list[Child]:
        return [child for child in self.supervisor.children if child.plan.is_proxy]

    @property
    def machine(self) -> HostDevices:
        return self.context.machine or NOWHERE

    def snapshot(self, machine: HostDevices) -> LaunchSnapshot:
        context, workers = self.context, [(child.plan, place_of(child)) for child in self.workers]
        proxies = [child.name for child in self.proxies]
        most, first = self.supervisor.most_workers, context.topology.first_number
        return LaunchSnapshot(workers, machine, context.limits, context.shares_devices, proxies, most, first)

    @property
    def leaves_models_alone(self) -> bool:
        """Return whether models may sleep and wake now: there is no change, or it waits for the room of some."""
        return self.change is None or self.change.phase is RolloutPhase.ROOM

    def advance(self, now: float) -> None:
        """Make all moves that are possible now."""
        while self.change is not None:
            is_of_proxies = self.change.steps[0].aim is RolloutGoal.RELIEVED
            peers = self.proxies if is_of_proxies else self.workers
            if self.change.phase is RolloutPhase.TRIAL and self.client is not None:
                self.change = replace(self.change, verdict=self.client.verdict)
            move = advance(self.change, {child.name: place_of(child, peers) for child in peers}, now)
            if move is None:
                break
            self.change, actions = move
            for action in actions:
                self.carry_out(action, self.change)
            if self.change.is_over:
                self.conclude(self.change)
        if self.client is not None and now - self.last_beat >= BEAT:
            self.last_beat = now
            self.client.beat()

    def carry_out(self, action: WorkerAction, change: Rollout) -> None:
        if action.text:
            self.tell(action.text)
        step, verb = action.step, action.verb
        if verb is ActionKind.ADD and step.plan is not None:
            self.add(step.plan, change.limits.drained_from_its_start(step))
        if verb in (ActionKind.ADD, ActionKind.SAY):
            return
        child = next(child for child in self.supervisor.children if child.name == step.name)
        match verb:
            case ActionKind.DRAIN if child.plan.is_proxy:
                child.dismissed = True
                drain_proxy(child, change.limits.drain, hand_over=True, alone=len(self.proxies) == 1)
            case ActionKind.DRAIN:
                child.assign(child.plan.role, change.limits.drain, for_good=step.aim is RolloutGoal.GONE)
            case ActionKind.TRY:
                self.ask(child)
            case ActionKind.ASSIGN:
                child.assign(step.role or child.plan.role, None)
            case ActionKind.STOP | ActionKind.KILL:
                end(child, verb)
            case ActionKind.RENEW:
                self.renew(child, change.limits.drained_from_its_start(step))
            case ActionKind.REMOVE:
                self.supervisor.children.remove(child)
                child.memory.close()

    def ask(self, child: Child) -> None:
        """Ask for the verdict on a drained worker."""
        if self.client is not None:
            self.client.ask([worker.name for worker in child.plan.workers])

    def add(self, plan: ChildPlan, drain: float | None) -> None:
        added = self.supervisor.child(plan)
        if drain is not None:
            added.assign(plan.role, drain)
        if is_counted(plan, self.supervisor.most_workers):
            added.rest()
        self.supervisor.children.append(added)

    def renew(self, child: Child, drain: float | None) -> None:
        """Replace a child that has ended by a fresh one with no record of exits."""
        fresh = self.supervisor.child(child.plan)
        fresh.memory = child.memory
        if drain is not None:
            fresh.assign(child.plan.role, drain)
        self.supervisor.children[self.supervisor.children.index(child)] = fresh

    def tell(self, text: str) -> None:
        self.supervisor.console.line(text)
        if self.client is not None:
            self.client.say(text)

    def conclude(self, change: Rollout) -> None:
        self.hold()
        if change.failure is not None:
            self.supervisor.console.line(f"{self.title} failed: {change.failure}")
        if self.client is not None:
            self.client.end(f"{change.failure}." if change.failure else "done", 1 if change.failure else 0)
        self.change = self.client = None

    def close(self) -> None:
        """End the change under way, since the launch ends."""
        if self.change is not None:
            self.conclude(self.change.fail("the launch is stopping"))


def end(child: Child, verb: ActionKind) -> None:
    """Ask a process to end, or kill it."""
    child.dismissed = True
    if verb is ActionKind.STOP:
        child.stop()
    elif child.alive:
        child.kill()


def drain_proxy(child: Child, timeout: float, *, hand_over: bool, alone: bool = False) -> None:
    """Have a proxy end once its requests have. One that is to `hand_over` leaves the streams that can be continued to
    others at the end of the timeout, or to its successor where it is `alone`: nobody takes connections meanwhile."""
    if child.running:
        child.move(ChildState.DRAINING)
        flags = {name: True for name, is_so in (("hand_over", hand_over), ("alone", alone)) if is_so}
        child.running.send({"kind": "drain", "timeout": timeout} | flags)


def place_of(child: Child, peers: Sequence[Child] = ()) -> WorkerSnapshot:
    """Return a child as a change sees it. One that sleeps although a peer of its model does not waits for room."""
    waits = child.state is ChildState.ASLEEP and any(
        peer.plan.group == child.plan.group and peer.state not in (ChildState.ASLEEP, ChildState.GIVEN_UP)
        for peer in peers
        if not peer.plan.is_proxy
    )
    return WorkerSnapshot(child.name, child.state, child.drain_state, child.obeys, len(child.exits), waits)
