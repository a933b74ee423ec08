# SPDX-License-Identifier: Apache-2.0
"""The self-test's requests to the models of a proxy: by which routes, with which tokenizer, and billed to nobody."""

from typing import Protocol

from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.proxy.admission.in_flight import InFlight
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.requests.generation import Generation
from pontil.runtime.proxy.requests.request import Request, Work
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.proxy.routing.policy import Route, every_route
from pontil.runtime.proxy.self_test import TrialRoute
from pontil.runtime.proxy.stage_runs import StageRuns
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.tokenizer import Tokenizer


class TriedProxy(Protocol):
    """The proxy, as its trials see it."""

    config: ProxyConfig
    registry: Registry
    in_flight: InFlight
    runs: StageRuns

    def try_at(self, route: Route, ticket: Ticket, work: Work) -> Request: ...


class ModelTrials:
    """The trials of one proxy."""

    def __init__(self, proxy: TriedProxy) -> None:
        self.proxy = proxy

    def routes(self) -> list[TrialRoute]:
        """Return what is tried: each route of a request, and an answer in sound. A model that has answered before it
        slept is not tried again."""
        proxy = self.proxy
        groups = [group for group in proxy.registry.answering if not proxy.in_flight.waking.is_proved(group.key)]
        teams = [(group, release) for group in groups for release in group.current.releases]
        loads = [[worker.load for worker in group.current.releases[release]] for group, release in teams]
        routes = [route for load in loads for route in every_route(load, proxy.config.disagg)]
        return [*routes, *proxy.runs.trials()]

    def submit(self, route: TrialRoute, prompt: list[int], params: SamplingParams, cache_salt: str) -> Stream:
        """Dispatch a self-test request: by this route or not at all, and billed to no caller."""
        proxy = self.proxy
        if not isinstance(route, Route):
            return proxy.runs.try_out(prompt, params, cache_salt)
        ticket = Ticket("self-test", cache_salt=cache_salt)
        work = Generation(prompt, params, further=proxy.registry.group_at(route.decode.incarnation))
        return proxy.in_flight.stream([proxy.try_at(route, ticket, work)])

    def tokenizer_at(self, route: TrialRoute) -> Tokenizer:
        registry, in_flight = self.proxy.registry, self.proxy.in_flight
        return in_flight.tokenizer_of(registry.group_at(route.decode.incarnation) if isinstance(route, Route) else None)
