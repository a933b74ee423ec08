# SPDX-License-Identifier: Apache-2.0
"""Moves of leases to other workers, which keep them from then on: from workers that drain, and behind prompts that had
to be computed elsewhere."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pontil.runtime.proxy.fleet.registered_worker import RegisteredWorker
from pontil.runtime.proxy.leases.fleet_leases import FleetLeases
from pontil.runtime.proxy.leases.lease_quota import room_in
from pontil.runtime.proxy.leases.lease_view import LeaseView
from pontil.runtime.proxy.requests.generation import LEASING_ROLES, Generation, submits
from pontil.runtime.proxy.requests.request import Request, Work
from pontil.runtime.proxy.requests.ticket import ChosenAdapter, Ticket
from pontil.runtime.proxy.routing.policy import Route
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.wire.lease_messages import REFUND
from pontil.runtime.wire.messages import Submit

# Moves of one proxy at once: each needs memory for its prompt in two workers.
MOST_OPEN = 4
# The tries of one target: it pulls the blocks, and if that fails it computes them.
MOST_TRIES = 2
# The worker that hands a prompt over draws the first token, and the other one has to draw one to take part.
PULLED_TOKENS = 2


@dataclass(slots=True, eq=False)
class LeasedPromptWork(Generation):
    """The prompt of a lease, which the worker `target` computes, or pulls, and keeps from now on. `is_over` is called
    when that has ended, well or not."""

    lease: Mapping[str, Any] = field(kw_only=True)
    target: str = field(kw_only=True)
    is_over: Callable[[], None] = field(kw_only=True, repr=False)

    def messages(self, request: Request, sender: str, secret: str | None, deadline: float | None) -> Sequence[Submit]:
        made = submits(request, sender, secret, deadline)
        return [replace(one, lease=dict(self.lease)) if one.receiver == self.target else one for one in made]

    def ended(self, request: Request) -> None:
        self.is_over()


class LeaseMoves:
    """The moves of the leases that one proxy bills. Of those of a worker that drains it asks for each prompt once more,
    billed to nobody: another worker pulls its blocks, or computes them. The lease's time goes on meanwhile, and its
    first worker keeps it until the other one does. Where none can, the rest is refunded. Others `follow` prompts.

    `try_at` sends work by a route, or not at all. `tries` counts those that failed, by lease and target."""

    def __init__(self, leases: FleetLeases, try_at: Callable[[Route, Ticket, Work], Request]) -> None:
        self.leases, self.try_at = leases, try_at
        self.registry = leases.registry
        self.open: dict[str, LeaseView] = {}
        self.tries: dict[str, Counter[str]] = {}

    def tick(self) -> None:
        """Begin what is to be moved. Called when a worker begins to drain, and a few times a second."""
        sources = {name: one for name, one in self.registry.workers.items() if one.hello.draining}
        if not sources:
            self.tries.clear()
            return
        for view in [view for view in self.leases.billed_here if view.worker in sources and view.id not in self.open]:
            if len(self.open) >= MOST_OPEN:
                return
            self.move(view, sources[str(view.worker)])

    def move(self, view: LeaseView, source: RegisteredWorker) -> None:
        """Have another worker take a lease; if none is left that can, have its worker refund it."""
        target = self.target_for(view, source)
        if target is None:
            self.leases.order(view, REFUND)
            return
        tried = self.tries.setdefault(view.id, Counter())[target.hello.sender]
        pair = Route(source.load_with(view.tokens), target.load)
        can_hand_over = source.contact.is_proved and not pair.is_cut
        pulls = not tried and can_hand_over and view.tokens + PULLED_TOKENS <= target.context
        route = pair if pulls else Route.alone(target.load)
        view.target, self.open[view.id] = target.hello.sender, view
        self.try_at(route, ticket_of(view), self.work(view, pulls))

    def follow(self, request: Request) -> None:
        """Have the leases of a request's caller follow its prompt, which has ended at a worker that had to compute what
        they are on: theirs had no room, or is gone. The blocks are there now, so that costs nobody anything."""
        route = request.attempts.route
        if not self.leases.views or route is None or request.trial:
            return
        worker = self.registry.workers.get(route.prefill.incarnation)
        if worker is None:
            return
        prefix = request.work.prefix_keys(worker.hello.block_size, request.ticket)
        if prefix is None:
            return
        prefix.grow([worker.prefixes])
        for key in prefix.keys:
            view = self.leases.ends.get((request.work.group, request.ticket.caller, key))
            if view is not None and route.prefill.found < view.tokens and self.may_follow(view, worker):
                self.leases.resume(view, worker.hello.sender, view.next_move())

    def may_follow(self, view: LeaseView, worker: RegisteredWorker) -> bool:
        """Return whether a worker may take a lease of which it has the blocks: it does the same work as the one that
        has it, or had it."""
        holder = self.registry.workers.get(view.worker or "")
        if view.proxy != self.leases.incarnation or view.id in self.open or holder is worker or worker.hello.draining:
            return False
        does_same = (
            worker.load.role in LEASING_ROLES
            if holder is None
            else (worker.load.role, worker.release) == (holder.load.role, holder.release)
        )
        return does_same and room_in(worker) >= view.term.size

    def target_for(self, view: LeaseView, source: RegisteredWorker) -> RegisteredWorker | None:
        """Return the worker with the most room for leases, of those of this release: between equals the one that came
        last, since others may be about to drain as well."""
        if not view.prompt.ids or self.registry.graph is not None:
            return None
        tries = self.tries.get(view.id, Counter())
        taken = Counter[str]()
        for one in self.open.values():
            taken[str(one.target)] += one.term.size
        rooms = {
            worker.hello.sender: room_in(worker) - taken[worker.hello.sender]
            for worker in self.registry.of(view.group).serving(source.release)
            if tries[worker.hello.sender] < MOST_TRIES and view.tokens <= worker.context
        }
        fitting = [name for name, room in rooms.items() if room >= view.term.size]
        name = max(reversed(fitting), key=lambda name: rooms[name], default=None)
        return None if name is None else self.registry.workers[name]

    def work(self, view: LeaseView, pulls: bool) -> LeasedPromptWork:
        target = str(view.target)
        lease = {
            "id": view.id,
            "owner": view.owner,
            "seconds": view.term.seconds,
            "tokens": view.tokens,
            "must": True,
            "age": self.leases.age(view),
            "moves": view.next_move(),
        }
        params = SamplingParams(PULLED_TOKENS if pulls else 0, seed=0, temperature=0.0, ignore_eos=True)
        return LeasedPromptWork(
            view.prompt.tokens,
            params,
            further=view.group,
            lease=lease,
            target=target,
            is_over=lambda: self.ended(view, target),
        )

    def ended(self, view: LeaseView, target: str) -> None:
        """Take note of a try's end. Unless the lease is there, the next tick makes another one."""
        del self.open[view.id]
        view.target = None
        if view.worker != target:
            self.tries.setdefault(view.id, Counter())[target] += 1


def ticket_of(view: LeaseView) -> Ticket:
    prompt, adapted = view.prompt, view.prompt.adapted
    adapter = ChosenAdapter("", adapted.digest, prompt.directory, start=adapted.start) if adapted.digest else None
    return Ticket("lease", cache_salt=prompt.salt, adapter=adapter)
