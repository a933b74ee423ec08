# SPDX-License-Identifier: Apache-2.0
"""Two releases side by side: workers of another revision join, the old ones drain, and then all of it is taken back, as
docs/operate/fleet.md says. The other revision's model is another hash."""

from collections.abc import Callable, Iterable, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clients import ClientTry, ClientWish
from hash_model import NEXT_SALT, answer_of
from operators import ENDS_WITHIN, LOOK, Operators
from site_plan import SitePlan
from supervised_site import HostLaunch, SupervisedSite
from virtual_time import SeededWorld

from pontil.launcher.child.child_state import ChildState
from pontil.launcher.host.device_list import JOIN
from pontil.launcher.options.worker_roles import GENERATING_ROLES
from pontil.launcher.plan.child_plan import ChildPlan
from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.proxy.requests.request import Request

if TYPE_CHECKING:
    from link_faults import SeedFault
    from seed_run import SeedRun

NEXT = "next"
# The numbers of the new workers begin here: those of `scale` are lower.
FIRST_NUMBER = 10
# Seconds in which the new workers are waited for, and the old ones for their answers to end.
READY_WITHIN, DRAIN_TIMEOUT = 30.0, 60.0
# Seconds in which a proxy takes note of a death, and of the end of a wait.
NOTICED_WITHIN = 2.0


def next_name(worker: str) -> str:
    role, _, number = worker.partition(":")
    return f"{role}:{FIRST_NUMBER + int(number)}"


def is_next(worker: str) -> bool:
    return int(worker.rpartition(":")[2].partition(JOIN)[0]) >= FIRST_NUMBER


def next_plans(plan: SitePlan, folder: Path) -> tuple[ChildPlan, ...]:
    """Return the plans of the new release: a worker for each that generates."""
    names = [next_name(name) for name in plan.worker_names if plan.role_of(name) in GENERATING_ROLES]
    return tuple(plan.worker_plan(name, plan.controls, folder).configured(revision=NEXT) for name in names)


def salt_of_answer(run: "SeedRun", wish: ClientWish, one: ClientTry) -> int:
    """Return the release that made an answer: the first unless all of its choices are those of the other one."""
    if not run.site.had_next:
        return 0
    decode, vocab = run.model.tokenizer.decode, run.model.config.vocab_size

    def fits(salt: int) -> bool:
        for choice, (ids, text) in enumerate(zip(one.ids, one.texts, strict=True)):
            right = answer_of(wish.prompt, wish.seed, choice, wish.max_tokens, vocab, salt)
            says = decode(right) if wish.stop is None else decode(right).partition(wish.stop)[0]
            if ids != right[: len(ids)] or not (text == says if one.ended == "complete" else says.startswith(text)):
                return False
        return True

    return NEXT_SALT if not fits(0) and fits(NEXT_SALT) else 0


def was_begun_by_next(world: SeededWorld, tries: Iterable[str]) -> bool:
    """Return whether a worker of the other release has made a token for a client of tries with these names. Its
    sequences have them first."""
    return any(name.startswith(f"{one}-") for one in tries for name in world.salted)


def is_bound(request: Request) -> bool:
    """Return whether a request waits for workers of its release alone: its client may have a part of the answer."""
    return request.times.begun or request.ticket.has_part


def waits_for_its_release(site: SupervisedSite, since: float) -> float:
    """Return until when what the other release began, and was asked for at a time, may wait for workers of it, of which
    one was dead when its launch ended, or whose launch failed: nobody said that none will come, so that proxies wait as
    for any that died. Minus infinity: no such wait."""
    if site.unsaid_at is None or since > site.unsaid_at:
        return -inf
    return site.unsaid_at + NOTICED_WITHIN + ProxyConfig.failover_timeout


class ReleaseUpgrade:
    """One upgrade, and the way back."""

    def __init__(self, site: SupervisedSite, operators: Operators, fault: "SeedFault") -> None:
        self.world, self.site, self.operators, self.fault = site.world, site, operators, fault
        self.old = [name for name in site.plan.worker_names if site.plan.role_of(name) in GENERATING_ROLES]
        self.launch: HostLaunch | None = None

    @property
    def is_gone(self) -> bool:
        """Return whether the new workers' launch is."""
        return self.launch is None or self.launch.is_over

    def begin(self) -> None:
        if self.site.next is not None or self.site.launches[0].is_over:
            return
        launch = self.launch = self.site.begin_next(next_plans(self.site.plan, self.site.folder))
        children = launch.supervisor.children
        self.wait(lambda: all(one.state is ChildState.READY for one in children), READY_WITHIN, self.move)

    def wait(self, is_over: Callable[[], bool], within: float, then: Callable[[], object]) -> None:
        """Do something once something is so, or in a while, or once the new workers are gone."""
        self.operators.busy(LOOK)
        if within <= 0 or self.is_gone or is_over():
            then()
        else:
            self.world.after(LOOK, lambda: self.wait(is_over, within - LOOK, then))

    def move(self) -> None:
        self.drain(self.old)

    def drain(self, names: Sequence[str]) -> None:
        """Drain the old workers one after the other; a refusal leaves one as it is."""
        if not names or self.is_gone:
            self.wait(lambda: False, self.fault.seconds, self.go_back)
            return
        request: dict[str, Any] = {
            "command": "drain", "names": [names[0]], "drain_timeout": DRAIN_TIMEOUT, "force": True
        }  # fmt: skip
        client = self.operators.ask(request, names[0])
        self.wait(lambda: client.ended_at is not None, ENDS_WITHIN, lambda: self.drain(names[1:]))

    def go_back(self) -> None:
        """Have the old workers work, and then the new ones drain and end."""
        for name in self.old:
            self.operators.insist({"command": "undrain", "names": [name]}, name)
        self.wait(self.old_work, ENDS_WITHIN, self.end)

    def old_work(self) -> bool:
        return all(
            child.state is ChildState.READY and child.drain_state.value == "working"
            for child in self.site.children
            if child.name in self.old
        )

    def end(self) -> None:
        if self.launch is not None and not self.is_gone:
            self.launch.end(DRAIN_TIMEOUT)
            self.wait(lambda: False, ENDS_WITHIN, lambda: None)
