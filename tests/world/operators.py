# SPDX-License-Identifier: Apache-2.0
"""Operators' changes: asked of the supervisor's rollouts as its control socket does, and taken back."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from site_plan import SitePlan
from supervised_site import HostLaunch, SupervisedSite
from virtual_time import SeededWorld

if TYPE_CHECKING:
    from faults import SeedFault
    from seed_run import SeedRun

# Seconds between two looks at a change, and in which each must end.
LOOK, ENDS_WITHIN = 0.2, 120.0
# The role that a worker of each role is given for a while.
OTHER_ROLE = {"prefill": "decode", "decode": "prefill", "mixed": "decode"}
# Seconds until the requests of a drained worker are moved: so many, or none.
DRAIN_TIMEOUTS = (0.0, 0.5, 3.0)


class ChangeClient:
    """The one that asked for a change (RolloutClient). A refusal is an end with words."""

    def __init__(self, world: SeededWorld, request: dict[str, Any], launch: HostLaunch) -> None:
        self.world, self.request, self.launch, self.began = world, request, launch, world.now()
        self.ended_at: float | None = None
        self.ends = self.code = 0
        self.text = ""

    def __repr__(self) -> str:
        return f"{self.request['command']} {self.request['names'][0]}"

    def say(self, text: str) -> None:
        self.world.note("said", text)

    def beat(self) -> None:
        return

    def end(self, text: str, code: int = 0, **facts: Any) -> None:
        self.world.note("changed", self, text, code)
        self.ended_at, self.text, self.code = self.world.now(), text, code
        self.ends += 1


class Operators:
    """Those who ask for changes. Calls `busy` while one of a fault is not over."""

    def __init__(self, world: SeededWorld, site: SupervisedSite, busy: Callable[[float], None]) -> None:
        self.world, self.site, self.busy = world, site, busy
        self.asked: list[ChangeClient] = []

    def act(self, fault: "SeedFault") -> None:
        """Ask for a change; after the seconds of the fault, take it back."""
        request: dict[str, Any] = {"command": fault.kind, "names": [fault.target]}
        role = fault.target.split(":")[0]
        back = {"command": "undrain", "names": [fault.target]} if fault.kind == "drain" else None
        if fault.kind == "role":
            back = request | {"role": role}
            request["role"] = OTHER_ROLE[role]
        else:
            request["drain_timeout"] = DRAIN_TIMEOUTS[int(fault.draw * len(DRAIN_TIMEOUTS))]
        self.watch(self.ask(request))
        if back is not None:
            self.world.after(fault.seconds, lambda: self.insist(back))

    def ask(self, request: dict[str, Any]) -> ChangeClient:
        launch = self.site.launch_of(request["names"][0])
        client = ChangeClient(self.world, request, launch)
        self.asked.append(client)
        if launch.is_over:
            self.hang_up()
        else:
            launch.supervisor.rollouts.take(client, request)
            launch.wake()
        return client

    def hang_up(self) -> None:
        """End what was asked of launches whose host is gone."""
        for client in self.asked:
            if client.launch.is_over and client.ended_at is None:
                client.end("its host is gone", 1)

    def watch(self, client: ChangeClient) -> None:
        if client.ended_at is None and self.world.now() < client.began + ENDS_WITHIN:
            self.busy(LOOK)
            self.world.after(LOOK, lambda: self.watch(client))

    def insist(self, request: dict[str, Any], client: ChangeClient | None = None) -> None:
        """Ask again until it is done."""
        if client is None or client.ended_at is not None and client.code:
            client = self.ask(request)
        elif client.ended_at is not None or self.world.now() >= client.began + ENDS_WITHIN:
            return
        self.busy(LOOK)
        self.world.after(LOOK, lambda: self.insist(request, client))


def every_change_ends(run: "SeedRun") -> Iterator[str]:
    """Every change ends once, done or refused with words, within a bound."""
    for client in run.made.operators.asked:
        if client.ended_at is None or client.ended_at - client.began > ENDS_WITHIN:
            yield f"{client} did not end within {ENDS_WITHIN:g} s"
        elif client.ends != 1 or not client.text:
            yield f"{client} ended {client.ends} times, as {client.text!r}"


def all_work_in_their_roles_again(run: "SeedRun") -> Iterator[str]:
    """Every worker serves in the role that it was planned in, as the supervisor and every proxy see it."""
    roles = planned_roles(run.plan)
    for child in run.site.children:
        if child.plan.is_proxy:
            continue
        if (child.plan.role, child.drain_state.value) != (roles[child.name], "working"):
            yield f"{child.name} is {child.drain_state.value} as {child.plan.role}"
    for process in run.site.proxies:
        assert process.proxy is not None
        for worker in process.proxy.registry.workers.values():
            name = worker.hello.name
            if worker.role != roles.get(name) or worker.leaving:
                yield f"{process} sees {name} {'draining ' if worker.leaving else ''}as {worker.role}"


def planned_roles(plan: SitePlan) -> dict[str, str]:
    return {name: name.split(":")[0] for name in plan.worker_names}
