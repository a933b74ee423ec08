# SPDX-License-Identifier: Apache-2.0
"""The program that puts a load on a planned site."""

from pontil.runtime.planner.device_profile import HostTimes
from pontil.runtime.planner.shared_cores import OwnCores


class PlannedClients:
    """Clients elsewhere, whose work costs the machine nothing; or with the times of a `host` one program on its cores,
    as `pontil bench` is there: it does one thing after the other, and is free at `free_at`."""

    def __init__(self, cores: OwnCores, host: HostTimes | None) -> None:
        self.cores, self.free_at = cores, 0.0
        times = HostTimes(0.0, 0.0, 0.0, 0.0, 0.0) if host is None else host
        self.request, self.token, self.event = times.client_request, times.client_token, times.client_event
        self.turn = times.client_turn

    def send(self, now: float, prompt_tokens: int) -> tuple[float, float]:
        """Return when a request is begun that could be begun now, and when it leaves."""
        begun = max(now, self.free_at)
        return begun, self.work(now, self.request + self.token * prompt_tokens)

    def hear(self, at: float) -> float:
        """Return when an event is read that comes at a time: in the turn of others, if that goes on."""
        return self.work(at, self.event if at <= self.free_at else self.event + self.turn)

    def work(self, at: float, milliseconds: float) -> float:
        if not milliseconds:
            return at
        self.free_at = self.cores.serve(max(at, self.free_at), milliseconds / 1e3)
        return self.free_at
