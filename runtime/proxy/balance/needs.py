# SPDX-License-Identifier: Apache-2.0
"""The workers that a load needs, by role: a pure function of what is asked, what steps cost, and the limits.

A split of workers has a pressure: the part of what its shorter role can take that is asked of it. Above 1 requests wait
longer and longer, or miss their limits.
"""

from dataclasses import dataclass, replace
from math import ceil, inf, log

from pontil.runtime.proxy.balance.goodput import FULL, GoodputModel

# A limit is kept by those for which it holds at this part of it.
CAREFUL = 0.85
# The part of the waits that are longer than this many times the mean is 1 %: they are about exponential.
LONGEST_WAITS = log(100)
# The least part of a prefill worker's time that counts as its own, where not even a prompt alone keeps the limit.
LEAST_SHARE = 0.1
MOST_WORKERS = 1024


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """The seconds that a launch is to keep: to the first token, and for each after it; None: no limit."""

    first_token: float | None = None
    per_token: float | None = None

    @classmethod
    def of(cls, ttft: float | None, tpot: float | None) -> "TimeLimits":
        """Return limits that were given in milliseconds."""
        return cls(None if ttft is None else ttft / 1e3, None if tpot is None else tpot / 1e3)


@dataclass(frozen=True, slots=True)
class Needs:
    """The work that is asked for: `prompts` and `answers` in workers that do nothing else, the seconds of one `prompt`
    on average, and the limit to the `first_token`. Decode workers may compute prompts `beside` their rows, for this
    part of their time. Where there are limits a `model` predicts how many requests keep them."""

    prompts: float
    answers: float
    prompt: float = 0.0
    first_token: float | None = None
    beside: float = 0.0
    model: GoodputModel | None = None

    def times(self, prompts: float, answers: float) -> "Needs":
        """Return those of so many times the work."""
        return replace(self, prompts=prompts * self.prompts, answers=answers * self.answers)

    def kept(self, prefill: int, decode: int) -> float:
        """Return the share of requests that would keep their limits on a split; 1 where that is not known."""
        return 1.0 if self.model is None else self.model.share(prefill, decode)

    def prompt_share(self, workers: int) -> float:
        """Return the part of their time that so many workers may compute prompts for the longest waits to keep the
        limit: a queue of fixed service times waits rho / (1 - rho) / 2 of one on average (Pollaczek and Khinchine)."""
        if self.first_token is None or not self.prompt:
            return FULL
        slack = 2 * workers * (CAREFUL * self.first_token - self.prompt) / (LONGEST_WAITS * self.prompt)
        return min(FULL, max(LEAST_SHARE, slack / (1 + slack) if slack > 0 else 0.0))

    def prefill_pressure(self, workers: int) -> float:
        return self.prompts / (workers * self.prompt_share(workers)) if workers else (inf if self.prompts else 0.0)

    def decode_pressure(self, workers: int) -> float:
        return self.answers / workers if workers else (inf if self.answers else 0.0)

    def pressure(self, prefill: int, decode: int) -> float:
        """Return the pressure of a split. What prefill workers cannot take is computed beside rows, as long as these
        keep their time per token: of a decode worker's time what steps take whatever their rows is not to be had."""
        prompts, answers = self.prefill_pressure(prefill), self.decode_pressure(decode)
        if not self.beside:
            return max(prompts, answers)
        able = prefill * self.prompt_share(prefill) + decode * self.beside
        return max(answers, min(prompts, (self.prompts + self.answers * self.beside) / able))

    @property
    def wanted_prefill(self) -> int:
        """The fewest prefill workers, at least one, without too much pressure."""
        counts = range(1, MOST_WORKERS)
        return next((count for count in counts if self.prefill_pressure(count) <= 1.0), MOST_WORKERS)

    @property
    def wanted_decode(self) -> int:
        return min(MOST_WORKERS, max(1, ceil(self.answers)))

    @property
    def wanted_mixed(self) -> int:
        """The fewest workers that do both."""
        counts = range(1, MOST_WORKERS)
        return next((one for one in counts if self.prefill_pressure(one) + self.answers / one <= 1.0), MOST_WORKERS)
