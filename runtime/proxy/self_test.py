# SPDX-License-Identifier: Apache-2.0
"""Self-test requests of the proxy: one through every pair of workers, to see tokens arrive and KV blocks move (G2), and
one in sound through all stages of a model that speaks.

They are served like a client's request, but appear in no row of the usage log, no metric of requests and no bill; the
ledger books their tokens with the workers only, as discarded by reason `self_test`. Each has a `cache_salt` of its own,
so that no other prompt ever finds their blocks.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from typing import Any, Protocol

from pontil.runtime.errors import PontilError
from pontil.runtime.foundation.staged_model import StagedModel, group_of
from pontil.runtime.proxy.fleet.known_processes import ASLEEP
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.proxy.routing.policy import Route, Team, WorkerLoad
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.threads import is_set_within
from pontil.runtime.tokenizer.tokenizer import Tokenizer

# A block of the usual size, and a part of another. All layers of a model compute them: of one with 8 billion weights a
# core computes 13 tokens a second, and a launch is not ready before.
PROMPT_TOKENS = 24
TEXT = "Count the panes of every window in the glassmaker's house, from the cellar to the roof, and write them down. "
# One token of the prefill worker and one of the decode worker; their ids do not matter.
PARAMS = SamplingParams(max_tokens=2, seed=0, temperature=0.0, ignore_eos=True)
# Seconds until a failed route is tested again: it may only have been busy.
RETRY_SECONDS = 30.0
LOG = logging.getLogger("pontil.self_test")

Told = Callable[[Sequence[dict[str, Any]]], None]


class StageTrial(Protocol):
    """A test through several stages of a model. The dispatcher chooses among the `workers`. It is asked for with the
    prompt `question`, and `failure` says what does not work where it fails."""

    @property
    def name(self) -> str: ...

    @property
    def workers(self) -> tuple[WorkerLoad, ...]: ...

    @property
    def phases(self) -> dict[str, str]:
        """The workers by incarnation; the test is made again when they are others."""

    @property
    def question(self) -> str: ...

    @property
    def failure(self) -> str: ...

    def objection(self, stream: Stream) -> str | None:
        """Return why a completed answer is not what it should be, or None."""


TrialRoute = Route | StageTrial


@dataclass(frozen=True, slots=True)
class SelfTestResult:
    """The result of one route's request. For a pair: the bytes of KV that were pulled, and the seconds of copying them
    where they are known. `error` is a sentence without its full stop."""

    route: str
    bytes: int = 0
    seconds: float | None = None
    error: str | None = None

    @property
    def shown(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


class SelfTest:
    """Background tests of every route on `begin`, and from then on of each new one when it appears (`look_again`), one
    after the other. `passed` is set once a whole round had a route that works, and sound worked where the model makes
    it; at once if no test is `wanted`.

    `routes` returns the current routes, `submit` sends a request by one of them.
    """

    def __init__(
        self,
        wanted: bool,
        tokenizer_at: Callable[[TrialRoute], Tokenizer],
        routes: Callable[[], Sequence[TrialRoute]],
        submit: Callable[[TrialRoute, list[int], SamplingParams, str], Stream],
    ) -> None:
        self.tokenizer_at, self.routes, self.submit = tokenizer_at, routes, submit
        self.passed = not wanted
        self.begun = False
        self.results: dict[Team, SelfTestResult] = {}
        self.told: list[Told] = []
        self.progress: Callable[[str], None] = LOG.debug
        self.wakeup = asyncio.Event()

    def begin(self, told: Told, progress: Callable[[str], None]) -> None:
        """Test the routes that are not tested yet; `told` gets the results of all routes, or of those up to one that
        fails."""
        self.begun, self.progress = True, progress
        self.told.append(told)
        self.wakeup.set()

    def look_again(self) -> None:
        """Look for new routes."""
        if self.begun:
            self.wakeup.set()

    @property
    def failing(self) -> bool:
        return any(result.error for result in self.results.values())

    async def run(self) -> None:
        while True:
            await is_set_within(self.wakeup, RETRY_SECONDS if self.failing else None)
            self.wakeup.clear()
            await self.test_all()

    async def test_all(self) -> None:
        """Run one round. Results of routes that are gone are forgotten, and failed routes are tested again when due."""
        listeners, self.told = self.told, []
        routes = {tuple(route.phases): route for route in self.routes()}
        self.results = {
            team: result for team, result in self.results.items() if team in routes and result.error is None
        }
        due = [team for team in routes if team not in self.results]
        for number, team in enumerate(due, 1):
            if listeners:
                self.progress(f"self-test {number} of {len(due)}: {routes[team].name}")
            result = await self.test(routes[team])
            if team not in {tuple(route.phases) for route in self.routes()}:
                continue
            self.note(team, result)
            if result.error and listeners:
                break
        self.passed = self.passed or self.is_passed(list(routes.values()))
        for tell in listeners:
            tell([result.shown for result in self.results.values()])

    def is_passed(self, routes: Sequence[TrialRoute]) -> bool:
        """Return whether a route works, and every trial of several stages."""
        works = [(route, self.worked(route)) for route in routes]
        in_stages = [has_worked for route, has_worked in works if not isinstance(route, Route)]
        return all(in_stages) and any(has_worked for route, has_worked in works if isinstance(route, Route))

    def worked(self, route: TrialRoute) -> bool:
        result = self.results.get(tuple(route.phases))
        return result is not None and result.error is None

    async def test(self, route: TrialRoute) -> SelfTestResult:
        stream = self.submit(route, self.prompt(route), PARAMS, secrets.token_hex(8))
        try:
            await stream.all()
        except PontilError as error:
            failure = f"{route.name} does not serve" if isinstance(route, Route) else route.failure
            return SelfTestResult(route.name, error=f"{failure}: {error}")
        finally:
            stream.cancel()
        return self.judge(route, stream)

    def prompt(self, route: TrialRoute) -> list[int]:
        tokenizer = self.tokenizer_at(route)
        if not isinstance(route, Route):
            return tokenizer.encode(route.question, False) or [0]
        room = min(worker.context for worker in route.workers) - PARAMS.max_tokens
        ids = tokenizer.encode(TEXT, False) or [0]
        return list(islice(cycle(ids), max(1, min(PROMPT_TOKENS, room))))

    def judge(self, route: TrialRoute, stream: Stream) -> SelfTestResult:
        """Judge a completed answer. Between two workers the blocks must have been pulled, too: decode may compute the
        prompt itself when they do not arrive."""
        if not isinstance(route, Route):
            return SelfTestResult(route.name, error=route.objection(stream))
        pull = stream.request.reports.pulled
        if not route.is_pair:
            return SelfTestResult(route.name)
        if not pull.bytes:
            why = f" ({pull.error})" if pull.error else ""
            return SelfTestResult(
                route.name, error=f"no KV block moved from {route.prefill.name} to {route.decode.name}{why}"
            )
        return SelfTestResult(route.name, pull.bytes, pull.seconds)

    def note(self, team: Team, result: SelfTestResult) -> None:
        self.results[team] = result
        if result.error is not None:
            LOG.warning("self-test: %s", result.error)
        else:
            LOG.info("self-test: %s works, %d bytes of KV moved", result.route, result.bytes)

    @property
    def shown(self) -> list[dict[str, Any]]:
        """Return every current route with its state."""
        rows = []
        for route in self.routes():
            result = self.results.get(tuple(route.phases))
            state = "UNTESTED" if result is None else "PASSED" if result.error is None else "FAILED"
            rows.append({"route": route.name, "state": state} | (result.shown if result else {}))
        return rows


@dataclass(slots=True)
class Readiness:
    """The readiness of a server: what it offers can be asked for now (D21). `reaches` returns whether a worker takes a
    message now. One that `is_draining` admits no more requests."""

    registry: Registry
    graph: StagedModel | None
    self_test: SelfTest
    reaches: Callable[[str], bool]
    is_draining: bool = False

    @property
    def objection(self) -> str | None:
        """The reason why the server is not ready, or None. It is ready if the start-up self-test has passed, and a
        worker of the model can be reached, or of each of its stages: without one of them it would refuse something that
        its model can do. Of several models one is enough: what ends one is no reason to keep clients from others."""
        if self.is_draining:
            return "the server is shutting down"
        if not (self.self_test.passed or self.registry.workers):
            return "no worker is ready yet"
        if not self.self_test.passed:
            return "the self-test has not passed yet"
        lacking = [name for name in self.stages if not self.has_worker(name)]
        if None in lacking and not any(map(self.is_served, self.registry.further)):
            return "no worker is ready yet"
        lacking = [name for name in lacking if name is not None]
        if lacking:
            stage_names = f"stage {lacking[0]}" if len(lacking) == 1 else f"stages {', '.join(map(str, lacking))}"
            return f"no worker of the {stage_names} is ready: requests that need it are refused, others are answered"
        return None

    @property
    def stages(self) -> list[str | None]:
        """The first stage, which is None, and those that the model needs or that have processes here."""
        if self.graph is None:
            return [None]
        needed = [node.name for node in self.graph.nodes if not node.optional or self.has_process(node.name)]
        return [None, *(name for name in needed if group_of(self.graph, name) is not None)]

    def has_process(self, stage: str) -> bool:
        group = group_of(self.graph, stage)
        return any(self.registry.may_be_of(row, group) for row in self.registry.processes.rows)

    def has_worker(self, stage: str | None) -> bool:
        return self.is_served(group_of(self.graph, stage))

    def is_served(self, group: str | None) -> bool:
        """Return whether a request for these workers can be served, by one that wakes for it too."""
        if any(row.state == ASLEEP and self.registry.may_be_of(row, group) for row in self.registry.processes.rows):
            return True
        loads = self.registry.of(group).loads
        return any(self.reaches(load.incarnation) for load in loads)
