# SPDX-License-Identifier: Apache-2.0
"""The prediction of each request's times from the profile of a device, as it is sent to workers, and how wrong it was.

It is coarse: one formula for a request, from the loads by which it was routed, whatever their number. What it does not
know, such as other work on the machine, is learned: for each role a factor on the profile's times.
"""

import logging
from dataclasses import dataclass, field
from math import ceil, exp, log
from pathlib import Path

from pontil.runtime.errors import PontilError
from pontil.runtime.planner.device_profile import MOST_BYTES, DeviceProfile, ProfileError, read_profile
from pontil.runtime.planner.step_costs import StepCosts, StepWork
from pontil.runtime.proxy.requests.attempts import Expectation
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.routing.policy import WorkerLoad, tokens_before

LOG = logging.getLogger("pontil.proxy")
FIRST, EACH = "first_token", "per_token"
# Weight of the newest request in factors and errors, and the largest factor and error.
LEARNING, MOST = 0.05, 100.0
# Part of an answer's tokens after which it is seen: rows have half of it behind their prompts.
HALF = 0.5
SHORTEST = 1e-4


@dataclass(slots=True)
class ForecastError:
    """Mean errors of predicted times, as a part of the measured ones: None before the first."""

    means: dict[str, float] = field(default_factory=dict)

    def add(self, time: str, predicted: float, measured: float) -> None:
        error = min(MOST, abs(predicted - measured) / max(measured, SHORTEST))
        before = self.means.get(time)
        self.means[time] = error if before is None else before + LEARNING * (error - before)


class Forecast:
    """Predicts by one profile, while workers `fit` it. `factors` are those of roles and times, `errors` those of the
    corrected times."""

    def __init__(self, profile: DeviceProfile) -> None:
        self.about, self.costs = profile.about, StepCosts(profile.times)
        self.sizes, self.host = profile.sizes, profile.host
        self.fit: bool | None = None
        self.factors: dict[tuple[str, str], float] = {}
        self.errors = ForecastError()

    def compare(self, fingerprint: str) -> None:
        """Take the model that workers have: the times of another one would be those of nothing."""
        fit = fingerprint == self.about.fingerprint
        if self.fit is not fit and not fit:
            LOG.warning("nothing is predicted: --profile is of %s, and the workers' model is another", self.about.model)
        self.fit = fit

    def factor(self, role: str, time: str) -> float:
        return self.factors.get((role, time), 1.0)

    def expect(self, request: Request) -> None:
        """Note what is expected of an attempt that begins: its first one, of tokens."""
        route, params = request.attempts.route, request.params
        is_plain = request.is_clients and request.work.makes_tokens and request.work.group is None
        if not self.fit or route is None or request.attempts.number or not is_plain or request.share.gives_way:
            return
        first = self.first_token(route.prefill, len(request.prompt), is_pair=route.is_pair)
        each = self.per_token(route.decode, len(request.prompt), min(params.max_tokens, self.sizes.max_model_len))
        first *= self.factor(route.prefill.role, FIRST)
        each *= self.factor(route.decode.role, EACH)
        request.attempts.expected = Expectation(first, each, route.prefill.role, route.decode.role)

    def first_token(self, load: WorkerLoad, prompt: int, *, is_pair: bool) -> float:
        """Return the seconds from now to a prompt's first token, behind what its worker has to compute before."""
        costs, missing = self.costs, load.missing(prompt)
        tokens = max(1, missing + tokens_before(missing, load.all_uncomputed, load.prompts))
        rows = 0 if is_pair else load.all_in_flight
        chunk = (self.sizes.interleaved_tokens if rows else 0) or self.sizes.step_tokens
        steps = ceil(tokens / chunk)
        # All steps but the last are full; what a token reads is half of the prompt on average.
        seconds = (steps - 1) * costs.prompt.at(chunk) + costs.prompt.at(tokens - (steps - 1) * chunk)
        seconds += costs.prompt_read * tokens * (load.found + missing * HALF)
        if rows:
            seconds += steps * costs.beside(rows, rows * prompt, chunk)
        return seconds + (self.host.proxy_request + steps * self.host.worker_turn) / 1e3

    def per_token(self, load: WorkerLoad, prompt: int, answer: int) -> float:
        """Return the seconds of each token behind the first, beside the rows that a worker has now."""
        rows = min(load.seats, load.all_in_flight + 1)
        seconds = self.costs.step(StepWork(rows, rows * (prompt + answer * HALF), 0, 0.0))
        return seconds + (self.host.worker_turn + rows * self.host.worker_row) / 1e3

    def judge(self, request: Request) -> None:
        """Compare what was expected of a request that has ended with what happened, and learn from it."""
        expected, times = request.attempts.expected, request.times
        if expected is None or request.attempts.number or not request.complete or times.first_token is None:
            return
        longest = max(len(answer.ids) for answer in request.answers)
        self.learn(expected.prompt_role, FIRST, expected.first_token, times.first_token - request.attempts.sent)
        if longest > 1:
            each = (times.last_frame - times.first_token) / (longest - 1)
            self.learn(expected.answer_role, EACH, expected.per_token, each)

    def learn(self, role: str, time: str, predicted: float, measured: float) -> None:
        self.errors.add(time, predicted, measured)
        ratio = max(measured, SHORTEST) / max(predicted, SHORTEST)
        factor = self.factor(role, time) * exp(LEARNING * log(min(MOST, max(1 / MOST, ratio))))
        self.factors[role, time] = min(MOST, max(1 / MOST, factor))


def forecast_of(path: str | None) -> Forecast | None:
    """Return the forecast by a profile's file, None without one. Raises PontilError."""
    if path is None:
        return None
    try:
        with Path(path).open("rb") as opened:
            return Forecast(read_profile(opened.read(MOST_BYTES + 1)))
    except OSError as error:
        raise PontilError(f"--profile {path} cannot be read: {error.strerror}") from None
    except ProfileError as error:
        raise PontilError(f"--profile {path}: {error}") from None
