# SPDX-License-Identifier: Apache-2.0
"""Disturbances of workers and proxies, each for no longer than its client is connected."""

import math
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from pontil.launcher.child.child import Child
from pontil.launcher.child.child_state import ChildState, DrainState
from pontil.launcher.child.process import ChildProcess
from pontil.launcher.control.control_socket import ControlConnection
from pontil.launcher.foundation.errors import LaunchError, OptionError
from pontil.launcher.logs.console import Console
from pontil.launcher.options.worker_roles import GENERATING_ROLES
from pontil.launcher.supervisor.chaos import ChaosTerms, Take
from pontil.launcher.supervisor.process_table import told
from pontil.launcher.tools.disturbances.disturbance import Disturbance, FaultAction, FaultKind, advance, begin

LONGEST_SECONDS = 120.0
PROXY = "proxy"
DISTURBED_ROLES = (*GENERATING_ROLES, PROXY)
# Seconds between messages to a client that show that the supervisor is alive.
BEAT = 5.0


class ChaosSupervisor(Protocol):
    """The supervisor as a runner sees it: its children may be disturbed while it `monitors` them."""

    console: Console
    children: list[Child]
    monitors: bool

    @property
    def serving(self) -> bool: ...


@dataclass(slots=True)
class OpenDisturbance:
    """A disturbance with the connection that it lasts as long as, and the times of its beginning and last message."""

    client: ControlConnection
    disturbance: Disturbance
    begun: float
    last_beat: float


class ChaosRunner:
    """Takes the command `chaos`, and passes on others. With a `fault` it disturbs a worker that generates or a proxy,
    and answers when that is over; without one it states the facts. Each child has at most one disturbance."""

    def __init__(self, supervisor: ChaosSupervisor, terms: ChaosTerms, others: Take) -> None:
        self.supervisor, self.terms, self.others = supervisor, terms, others
        self.open: list[OpenDisturbance] = []
        self.clock = time.monotonic

    def take(self, client: ControlConnection, request: dict[str, Any]) -> None:
        if request.get("command") != "chaos":
            self.others(client, request)
            return
        try:
            if not self.supervisor.monitors or not self.supervisor.serving:
                raise LaunchError("The launch is starting or stopping: try again when it is ready.")
            if "fault" not in request:
                client.end("", **self.facts(request.get("since")))
            else:
                self.begin(client, request)
        except (OptionError, LaunchError) as error:
            client.end(error.message, error.exit_code)

    def facts(self, since: object) -> dict[str, Any]:
        """Return the terms, the children, and their exits since a time, by default none."""
        start = since if isinstance(since, int | float) else math.inf
        children = self.supervisor.children
        exits = [
            {"name": child.name, "at": cause.at, **told(cause, self.clock())}
            for child in children
            for cause in child.exits
            if cause.at >= start
        ]
        return asdict(self.terms) | {
            "now": self.clock(),
            "children": [self.row(child) for child in children],
            "exits": exits,
        }

    def row(self, child: Child) -> dict[str, Any]:
        pids = [process.process.pid for process in child.processes]
        return {
            "name": child.name,
            "role": child.plan.role,
            "group": child.plan.group,
            "ranks": child.plan.ranks,
            "ready": child.state is ChildState.READY,
            "pids": pids,
            "disturbed": child.name in self.disturbed,
            "given_up": child.state is ChildState.GIVEN_UP,
            "starts": child.starts,
        }

    @property
    def disturbed(self) -> list[str]:
        return [open_disturbance.disturbance.worker for open_disturbance in self.open]

    def begin(self, client: ControlConnection, request: dict[str, Any]) -> None:
        """Disturb a child. Raises OptionError for what is no disturbance, LaunchError for what is not possible now."""
        fault, seconds, rank = fault_named(request["fault"]), duration(request.get("seconds")), request.get("rank", 0)
        child = self.child_named(request.get("worker"))
        if type(rank) is not int or not 0 <= rank < child.plan.ranks:
            raise OptionError(f"{child.name} has ranks 0 to {child.plan.ranks - 1}, not {rank!r}.")
        if fault.is_of_links and child.plan.role == PROXY:
            raise OptionError(f"Links of workers are disturbed, and {child.name} is a proxy.")
        if fault.is_of_links and rank:
            raise OptionError(f"Links are disturbed at rank 0, which takes commands, not at rank {rank}.")
        if child.name in self.disturbed:
            raise LaunchError(f"{child.name} is being disturbed already.")
        if child.state is not ChildState.READY:
            raise LaunchError(f"{child.name} is not ready to be disturbed: it is {child.state.value}.")
        if not any(self.is_whole(peer) for peer in self.standing_in_for(child)):
            raise LaunchError(f"Nobody would serve without {child.name} now.")
        process, now = process_of(child, rank), self.clock()
        assert process is not None
        disturbance, action = begin(fault, child.name, rank, process.signs.started_at, seconds, now)
        self.supervisor.console.line(f"chaos: {process.name}: {fault.value}" + described(fault, seconds))
        self.open.append(OpenDisturbance(client, disturbance, now, now))
        carry_out(action, process, seconds)
        self.advance(now)

    def child_named(self, name: object) -> Child:
        """Return the worker or proxy of this name. Raises OptionError if there is none, or if nobody could ever stand
        in for it."""
        candidates = [child for child in self.supervisor.children if child.plan.role in DISTURBED_ROLES]
        for child in candidates:
            if child.name == name:
                if child.plan.role == PROXY and not self.standing_in_for(child):
                    raise OptionError(f"{child.name} is the only proxy of this launch: nobody would serve without it.")
                return child
        names = ", ".join(child.name for child in candidates) or "none"
        raise OptionError(f"There is no worker {str(name)[:80]!r} to disturb: this launch has {names}.")

    def standing_in_for(self, child: Child) -> list[Child]:
        """Return the other proxies, or the other workers of the same group."""
        plan, is_proxy = child.plan, child.plan.role == PROXY
        return [
            peer
            for peer in self.supervisor.children
            if peer is not child and peer.plan.group == plan.group and (peer.plan.role == PROXY) == is_proxy
        ]

    def is_whole(self, child: Child) -> bool:
        fit = child.plan.role in DISTURBED_ROLES and child.state is ChildState.READY
        return fit and child.drain_state is DrainState.WORKING and child.name not in self.disturbed

    def advance(self, now: float) -> None:
        """Make the steps that are due, and undo what nobody wants any more."""
        for open_disturbance in list(self.open):
            disturbance = open_disturbance.disturbance
            process = self.process(disturbance)
            life = None if process is None else process.signs.started_at
            is_wanted = self.supervisor.monitors and self.supervisor.serving and not open_disturbance.client.gone
            open_disturbance.disturbance, action = advance(disturbance, life, is_wanted, now)
            if process is not None:
                carry_out(action, process, disturbance.until - now)
            if open_disturbance.disturbance.is_over:
                self.conclude(open_disturbance, now)
            elif now - open_disturbance.last_beat >= BEAT:
                open_disturbance.last_beat = now
                open_disturbance.client.beat()

    def process(self, disturbance: Disturbance) -> ChildProcess | None:
        child = next((child for child in self.supervisor.children if child.name == disturbance.worker), None)
        return None if child is None else process_of(child, disturbance.rank)

    def conclude(self, open_disturbance: OpenDisturbance, now: float) -> None:
        self.open.remove(open_disturbance)
        lives = self.process(open_disturbance.disturbance)
        has_survived = lives is not None and lives.signs.started_at == open_disturbance.disturbance.life
        open_disturbance.client.end("done", begun=open_disturbance.begun, ended=now, survived=has_survived)

    def waits(self, now: float) -> Sequence[float]:
        """Return the seconds until each disturbance's next step."""
        return [open_disturbance.disturbance.due - now for open_disturbance in self.open]

    def close(self) -> None:
        """Undo everything, since the launch ends. The supervisor no longer monitors."""
        self.advance(self.clock())


def fault_named(name: object) -> FaultKind:
    try:
        return FaultKind(name)
    except ValueError:
        kinds = ", ".join(kind.value for kind in FaultKind)
        raise OptionError(f"A fault is one of {kinds}, not {str(name)[:80]!r}.") from None


def duration(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST_SECONDS:
        raise OptionError(f"A disturbance takes 0 to {LONGEST_SECONDS:g} seconds, not {str(value)[:80]}.")
    return float(value)


def described(fault: FaultKind, seconds: float) -> str:
    return "" if fault is FaultKind.KILL else f" for {seconds:.1f} s"


def process_of(child: Child, rank: int) -> ChildProcess | None:
    """Return the process of a rank, as long as it has not ended."""
    processes = child.group.processes if child.group else []
    return processes[rank] if rank < len(processes) and processes[rank].ended is None else None


def carry_out(action: FaultAction | None, process: ChildProcess, seconds: float) -> None:
    """Act upon a process; links are cut or stalled for so many seconds."""
    match action:
        case FaultAction.KILL:
            process.signal(signal.SIGKILL)
        case FaultAction.STOP:
            process.signal(signal.SIGSTOP)
        case FaultAction.CONTINUE:
            process.signal(signal.SIGCONT)
        case FaultAction.CUT | FaultAction.STALL:
            process.send({"kind": action.value, "seconds": seconds})
        case FaultAction.MEND:
            process.send({"kind": FaultAction.CUT.value, "seconds": 0.0})
        case FaultAction.RELEASE:
            process.send({"kind": FaultAction.STALL.value, "seconds": 0.0})
