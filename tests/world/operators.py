# SPDX-License-Identifier: Apache-2.0
"""Operators' changes: asked of the supervisor's rollouts as its control socket does, and taken back."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from served_proxy import ProxyProcess
from site_plan import SitePlan
from supervised_site import HostLaunch, SupervisedSite
from virtual_time import SeededWorld

from pontil.launcher.options.worker_roles import NODE, TEXT_ROLES

if TYPE_CHECKING:
    from link_faults import SeedFault
    from seed_run import SeedRun

# Seconds between two looks at a change, and in which each must end.
LOOK, ENDS_WITHIN = 0.2, 120.0
# The role that a worker of each role is given for a while; one that makes no tokens can have no other, and says so.
OTHER_ROLE = dict.fromkeys(("prefill", "mixed", *TEXT_ROLES, NODE), "decode") | {"decode": "prefill"}
# Changes of how many workers there are, of all proxies one after the other, and of the workers' release (releases.py).
# Where there are keys, those are changed instead of the release.
NEW_KEYS = "new keys"
SCALE, RESTART_PROXIES, UPGRADE = "scale", "restart proxies", "upgrade"
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
        return f"{self.request['command']} {self.request.get('names') or self.request.get('counts') or 'proxies'}"

    def say(self, text: str) -> None:
        self.world.note("said", text)

    def beat(self) -> None:
        return

    def ask(self, workers: Sequence[str]) -> None:
        raise AssertionError("no change here is gated")

    verdict: str | None = None

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
        timeout = DRAIN_TIMEOUTS[int(fault.draw * len(DRAIN_TIMEOUTS))]
        if fault.kind in (RESTART_PROXIES, NEW_KEYS):
            first, alone = self.site.plan.proxy_names[0], self.site.plan.proxies == 1
            asked = {"command": "restart", "proxies": True, "drain_timeout": timeout, "force": alone}
            if fault.kind == RESTART_PROXIES:
                self.watch(self.ask(asked, first))
                return
            self.site.change_keys()
            self.insist(asked, first)
            self.wait_until_whole(self.world.now() + ENDS_WITHIN)
            return
        if fault.kind == SCALE:
            self.scale(fault, timeout)
            return
        request: dict[str, Any] = {"command": fault.kind, "names": [fault.target]}
        role = self.site.plan.role_of(fault.target)
        back = {"command": "undrain", "names": [fault.target]} if fault.kind == "drain" else None
        if fault.kind == "role":
            back = None if role in (*TEXT_ROLES, NODE) else request | {"role": role}
            request["role"] = OTHER_ROLE[role]
        else:
            request["drain_timeout"] = timeout
        self.watch(self.ask(request, fault.target))
        if back is not None:
            self.world.after(fault.seconds, lambda: self.insist(back, fault.target))

    def wait_until_whole(self, latest: float) -> None:
        """A change of keys is not over before all workers have the new ones."""
        self.busy(LOOK)
        if self.world.now() < latest and not self.site.has_its_keys:
            self.world.after(LOOK, self.wait_until_whole, latest)

    def scale(self, fault: "SeedFault", timeout: float) -> None:
        """Ask for one worker more or fewer of the target's role, and later for the planned ones."""
        plan = self.site.plan
        own = sorted(name for name in plan.worker_names if plan.host_of(name) == plan.host_of(fault.target))
        planned, kind = Counter(map(plan.asked_as, own)), plan.asked_as(fault.target)
        fewer = planned[kind] > 1 and fault.draw * 1000 % 1 < 0.5
        counts = {kind: planned[kind] + (-1 if fewer else 1)}
        self.watch(self.ask({"command": SCALE, "counts": counts, "drain_timeout": timeout}, fault.target))
        back = {"command": SCALE, "counts": dict(planned), "drain_timeout": timeout}
        self.world.after(fault.seconds, self.scale_back, back, fault.target, own)

    def scale_back(self, request: dict[str, Any], name: str, own: list[str]) -> None:
        """Ask for the planned workers, once those that are there have their roles again: counts are those of roles."""
        roles = planned_roles(self.site.plan)
        children = [child for child in self.site.launch_of(name).supervisor.children if child.name in own]
        if all(child.plan.role == roles[child.name] for child in children):
            self.insist(request, name, own)
        else:
            self.busy(LOOK)
            self.world.after(LOOK, self.scale_back, request, name, own)

    def ask(self, request: dict[str, Any], name: str) -> ChangeClient:
        """Ask the launch that has, or had, a process of this name."""
        client = ChangeClient(self.world, request, self.site.launch_of(name))
        self.put(client)
        return client

    def put(self, client: ChangeClient) -> None:
        """Have a launch hear of what it is asked for."""
        self.asked.append(client)
        if client.launch.is_over:
            self.hang_up()
        else:
            client.launch.supervisor.rollouts.take(client, client.request)
            client.launch.wake()

    def hang_up(self) -> None:
        """End what was asked of launches whose host is gone."""
        for client in self.asked:
            if client.launch.is_over and client.ended_at is None:
                client.end("its host is gone", 1)

    def watch(self, client: ChangeClient) -> None:
        if client.ended_at is None and self.world.now() < client.began + ENDS_WITHIN:
            self.busy(LOOK)
            self.world.after(LOOK, lambda: self.watch(client))

    def insist(
        self, request: dict[str, Any], name: str, own: list[str] | None = None, client: ChangeClient | None = None
    ) -> None:  # fmt: skip
        """Ask again until it is done, and the launch has its `own` workers: another change may have been under way."""
        if client is None or client.ended_at is not None and (client.code or not self.has_all(name, own)):
            client = self.ask(request, name)
        elif client.ended_at is not None or self.world.now() >= client.began + ENDS_WITHIN:
            return
        self.busy(LOOK)
        self.world.after(LOOK, lambda: self.insist(request, name, own, client))

    def has_all(self, name: str, own: list[str] | None) -> bool:
        workers = [child.name for child in self.site.launch_of(name).supervisor.children if not child.plan.is_proxy]
        return own is None or sorted(workers) == own


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
        if (child.plan.role, child.drain_state.value) != (roles.get(child.name), "working"):
            yield f"{child.name} is {child.drain_state.value} as {child.plan.role}"
    for process in run.site.proxies:
        assert process.proxy is not None
        for worker in process.proxy.registry.workers.values():
            name = worker.hello.name
            if worker.role != roles.get(name) or worker.leaving:
                yield f"{process} sees {name} {'draining ' if worker.leaving else ''}as {worker.role}"


def who_asked_a_leaving_proxy_has_an_answer(run: "SeedRun") -> Iterator[str]:
    """A proxy that restarts in order leaves nobody without an answer, or the id of a stream that goes on elsewhere. One
    who sends or reads slowly may be late; who ends its own way, or sends behind another request, may have none."""
    if any(fault.kind in ("full", "slow disk", "stop") for fault in run.faults):
        # An answer ends when its row is written.
        return
    left = [one for one in run.site.world.processes if one.ends is not None and isinstance(one, ProxyProcess)]
    for call in run.calls:
        wish = call.wish
        if wish.shares or wish.shuts or wish.reads or wish.sends:
            continue
        for one in call.tries:
            asked = next((at for at in left if at.name == one.proxy and at.ends and at.ends >= one.began), None)
            if one.ended == "lost" and asked is not None and asked.code == 0:
                yield f"{one.name} was lost with {asked}"


def planned_roles(plan: SitePlan) -> dict[str, str]:
    return {name: plan.role_of(name) for name in plan.registered_names}
