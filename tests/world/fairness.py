# SPDX-License-Identifier: Apache-2.0
"""Fairness: no worker that generates is idle while a request waits that it could take, nobody waits for what another
tenant asks for, and limits are those that a key has."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import ceil, inf
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from clients import ClientTry
from greedy_tenants import IN_A_MINUTE, MOST_AT_ONCE
from kinds import those_of
from releases import is_bound
from served_proxy import ProxyProcess
from site_plan import CALLERS, LIMITED, MODEST
from supervised_site import SupervisedSite
from virtual_time import HERE, SeededWorld
from worker_process import WorkerProcess

from pontil.gpu_ops.kv.attention import QUERY_TILE
from pontil.runtime.engine.prompt_turns import PromptTurns
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.wire.simulated.processes import WorldProcess

if TYPE_CHECKING:
    from seed_run import SeedRun

# Seconds between two looks, and after which a request that waits beside an idle worker waits too long.
LOOK, IDLE_WITHIN = 0.25, 2.0
# Seconds in which a tenant that asks for one token has it: some dozens of steps, where other tenants ask for seconds.
ONE_TOKEN_WITHIN = 0.5
# Steps in which a new prompt of one turn has it, if it is the only one of its caller.
SHORT_WITHIN = 3
# Words of a refusal for the rate of a key. The longest that one is told to wait, in whole seconds: until requests that
# were in flight may have ended, and until two more may begin, each a quarter longer.
PER_MINUTE = "per minute"
LONGEST_WAITS = {False: 2, True: ceil(1.25 * 2 * 60 / IN_A_MINUTE)}


class IdleWorkers:
    """Looks for requests that wait in a proxy beside a worker that has none, as long as both run. `since` has the time
    from which each pair was seen at every look."""

    def __init__(self, world: SeededWorld, site: SupervisedSite) -> None:
        self.world, self.site = world, site
        self.since: dict[tuple[str, str], float] = {}
        self.told: set[tuple[str, str]] = set()

    def look(self) -> None:
        now = self.world.now()
        self.since = {pair: self.since.get(pair, now) for pair in self.pairs()}
        for pair, began in self.since.items():
            if now - began > IDLE_WITHIN and pair not in self.told:
                self.told.add(pair)
                self.world.violate(f"no_worker_is_idle_beside_a_queue: {pair[0]} waits beside {pair[1]}")
        self.world.after(LOOK, self.look)

    def pairs(self) -> Iterator[tuple[str, str]]:
        for process in self.site.proxies:
            if process.stopped_at is None:
                for request, worker in waiting_beside_idle(process, self.site):
                    yield f"{request} in {process}", repr(worker)


def waiting_beside_idle(process: ProxyProcess, site: SupervisedSite) -> Iterator[tuple[str, WorkerProcess]]:
    """Yield the requests that a proxy may serve next, each with the workers that do nothing and could take it."""
    assert process.proxy is not None
    orders = [(key, admission.order) for key, admission in process.proxy.admissions.by_group.items()]
    firsts = [(key, one) for key, order in orders for one in order.heads()]
    heads = [(key, one) for key, one in firsts if has_seats(process, one)]
    workers = site.all_workers if heads else []
    for key, request in heads:
        group = process.proxy.registry.of(key)
        stays = is_bound(request) or request.release in group.current.releases
        known = group.serving(request.release if stays else None)
        usable = {one.hello.name for one in known if not one.leaving and one.role != "prefill"}
        for one in workers:
            # Behind a silent link it has done what the proxy has yet to hear of.
            is_heard = not process.world.network.is_silent(process.name, one.name)
            if one.name in usable and not one.has_requests and is_heard and goes_on(site, one):
                yield request.id, one


def goes_on(site: SupervisedSite, worker: WorkerProcess) -> bool:
    """Return whether a worker is not stopped, and no other rank that it meets in each of its steps."""
    ranks = [those_of(WorldProcess, [one.process for one in child.processes]) for child in site.children]
    return all(one.alive and one.stopped_at is None for each in ranks if worker in each for one in each)


def has_seats(process: ProxyProcess, request: Request) -> bool:
    """Return whether each later stage of a request has a free seat: a run begins with one in all of them."""
    assert process.proxy is not None
    stages = [process.proxy.registry.of(group).serving(None) for group in request.work.joint or ()]
    return all(any(worker.taken < worker.seats for worker in stage) for stage in stages)


def tries_of(run: "SeedRun", key: str) -> list[ClientTry]:
    return sorted(
        (one for call in run.calls if call.wish.key == key for one in call.tries), key=lambda one: one.began
    )  # fmt: skip


def limited_keys(run: "SeedRun") -> list[str]:
    return [key for key, settings in run.plan.allowances if "requests" in dict(settings)]


def one_token_comes_soon_beside_many(run: "SeedRun") -> Iterator[str]:
    """A tenant's request for one token does not wait for another's many choices and long prompts, where nothing is
    amiss."""
    for call in run.calls:
        waited = call.ended_at - call.began
        is_small = call.wish.key == MODEST[1] and call.wish.max_tokens == 1
        if is_small and waited > ONE_TOKEN_WITHIN and run.watch.was_calm(call.began, call.ended_at):
            yield f"client {call.wish.number} waited {waited:.2f} s for one token"


def limits_are_those_of_the_key(run: "SeedRun") -> Iterator[str]:
    """No tenant without limits is told of one; one that has them is not told to wait for longer than they take, and
    never has more requests in flight."""
    limited = [one for key in limited_keys(run) for one in tries_of(run, key_of(key))]
    for call in run.calls:
        for one in call.tries:
            if one.status == 429 and one not in limited and not one.continued:
                yield f"{one.name} has no limits, and is told: {one.reason}"
    for one in limited:
        longest = LONGEST_WAITS[PER_MINUTE in one.reason]
        if one.status == 429 and (one.retry_after is None or not 1 <= one.retry_after <= longest):
            yield f"{one.name} is told to come again after {one.retry_after} s, and not within {longest}: {one.reason}"
        beside = [other for other in limited if other.served_at is not None and is_served(other, one.served_at)]
        if len(beside) > MOST_AT_ONCE:
            yield f"{one.name} is served beside {len(beside) - 1} others of its key"


def who_waits_as_told_is_let_in(run: "SeedRun") -> Iterator[str]:
    """A tenant that comes again when it was told to is not refused once more for the rate of its key, where nobody else
    of it was let in meanwhile and nothing was amiss."""
    for key in limited_keys(run):
        all_tries = tries_of(run, key_of(key))
        for call in run.calls:
            for one, again in pairwise(call.tries):
                if {PER_MINUTE in each.reason for each in (one, again)} != {True}:
                    continue
                others = [
                    each for each in all_tries if each.status != 429 and one.began - 1 < each.began < again.ended_at
                ]
                if not others and run.watch.was_calm(one.began, again.ended_at):
                    yield f"{again.name} is refused, after {one.retry_after} s that it was told to wait"


def is_served(one: ClientTry, at: float | None) -> bool:
    """Return whether a try had the begin of its answer, and not its end, at a time."""
    return at is not None and one.served_at is not None and one.served_at <= at < (one.ended_at or inf)


class StarvedPrompts:
    """The steps in which new prompts of one turn wait for it, and within how many they should have it. Those of the
    background have what its part of a step leaves them."""

    def __init__(self) -> None:
        self.steps: dict[Sequence, int] = {}
        self.within: dict[Sequence, int] = {}

    def divided(self, turns: PromptTurns, prompts: list[Sequence], counts: dict[Sequence, int]) -> None:
        """Look at the division of one step."""
        first = min((one.standing.priority for one in prompts), default=0)
        level = [one for one in prompts if one.standing.priority == first and not one.standing.share.gives_way]
        begun = turns.levels[first].taken if level else {}
        waiting = [one for one in level if one not in begun and one not in counts and one.remaining <= QUERY_TILE]
        self.steps = {one: self.steps.get(one, 0) + 1 for one in waiting}
        self.within = {one: max(self.within.get(one, 0), most_steps(one, level)) for one in waiting}
        for one, steps in self.steps.items():
            if steps > self.within[one]:
                HERE.world.violate(
                    f"a_short_prompt_has_its_turn_soon: {one.id} has none in {steps} steps, and not {self.within[one]}"
                )


def most_steps(prompt: Sequence, level: list[Sequence]) -> int:
    """Return the steps within which a new prompt has its turn beside those of its level. A step has one turn at least;
    every other turn of its caller is a new prompt's, and callers have turns by their weights."""
    shares = {one.standing.share.caller: one.standing.share.weight for one in level}
    own = prompt.standing.share
    beside = sum(one.standing.share.caller == own.caller for one in level) - 1
    return SHORT_WITHIN + (2 * beside + 1) * (ceil(sum(shares.values()) / own.weight) - 1) + 2 * beside


def watch_turns() -> None:
    """Have the division of each step among prompts be looked at."""
    divide = PromptTurns.divide

    def divided(turns: Any, prompts: Iterable[Sequence], budget: int) -> dict[Sequence, int]:
        given = list(prompts)
        counts = divide(turns, given, budget)
        starved = STARVED.get(turns)
        if starved is None:
            starved = STARVED[turns] = StarvedPrompts()
        starved.divided(turns, given, counts)
        return counts

    untyped: Any = PromptTurns
    untyped.divide = divided


# Those of each engine.
STARVED: "WeakKeyDictionary[PromptTurns, StarvedPrompts]" = WeakKeyDictionary()


def key_of(name: str) -> str:
    return dict((*CALLERS.items(), MODEST, LIMITED))[name]
