# SPDX-License-Identifier: Apache-2.0
"""The watch of one proxy over the load of the workers that generate."""

from collections.abc import Callable, Mapping

from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.proxy.balance.fleet_load import AskedWork, FleetLoad, QueuedWork
from pontil.runtime.proxy.balance.forecast import Forecast
from pontil.runtime.proxy.balance.limit_watch import LimitWatch
from pontil.runtime.proxy.balance.needs import TimeLimits
from pontil.runtime.proxy.balance.role_keeper import RoleKeeper
from pontil.runtime.proxy.fleet.operator_changes import OperatorChanges

NOTHING: Mapping[str, float] = {}
NO_FACTORS: Mapping[tuple[str, str], float] = {}


class LoadWatch:
    """Looks at the load once a second. Of several proxies the first has roles follow it: exactly one decides. Times
    are predicted where there is a `forecast`."""

    def __init__(
        self,
        config: ProxyConfig,
        asked: AskedWork,
        queued: Callable[[], QueuedWork],
        changes: OperatorChanges,
        clock: Callable[[], float],
        forecast: Forecast | None = None,
    ) -> None:
        self.changes, self.clock, self.forecast = changes, clock, forecast
        limits = TimeLimits.of(config.ttft_limit, config.tpot_limit)
        self.load = FleetLoad(changes.registry.generating, asked, queued, limits, config.disagg == "auto")
        decides = config.balance == "auto" and config.number == 0
        self.keeper = RoleKeeper(self.load, changes, clock) if decides else None
        self.limits = LimitWatch(config.ttft_limit, config.tpot_limit)

    def tick(self) -> None:
        now = self.clock()
        if not self.load.is_due(now):
            return
        self.load.look(now)
        if self.keeper is not None:
            self.keeper.look()
        if self.load.needs is not None:
            self.limits.look(now, self.load.needs, self.load.counts())
        hello = self.load.group.any_hello
        if self.forecast is not None and hello is not None:
            self.forecast.compare(hello.model_fingerprint)

    def wanted(self) -> Mapping[str, int]:
        """Return how many workers of each role the load needs."""
        return self.load.wanted()

    def token_seconds(self, group: str | None) -> float | None:
        """Return the seconds in which a worker of a group computes a prompt token; None while that is not known, and
        of groups that are not watched."""
        return self.load.prompt_token(self.load.group.available) if group == self.load.group.key else None

    @property
    def paces(self) -> Mapping[tuple[str, str], float]:
        workers = self.load.group.available
        prompts = {(worker.hello.name, "prompts"): worker.pace.prompts for worker in workers}
        return prompts | {(worker.hello.name, "answers"): worker.pace.steps for worker in workers}

    @property
    def errors(self) -> Mapping[str, float]:
        return NOTHING if self.forecast is None else self.forecast.errors.means

    @property
    def factors(self) -> Mapping[tuple[str, str], float]:
        return NO_FACTORS if self.forecast is None else self.forecast.factors
