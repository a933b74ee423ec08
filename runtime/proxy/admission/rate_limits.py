# SPDX-License-Identifier: Apache-2.0
"""Limits of each caller: requests and tokens in flight, and rates."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pontil.runtime.errors import RequestError, TooManyRequests
from pontil.runtime.proxy.admission.jitter import fraction
from pontil.runtime.proxy.requests.ticket import Allowance, Ticket
from pontil.runtime.proxy.siblings.usage_table import StatedUsage, UsageTable

MINUTE_SECONDS = 60.0
# The Retry-After while the caller has too many requests in flight: their end is not known, and asking this often does
# no harm.
SEAT_SECONDS = 1.0
# Waits are longer by up to this part, so that refused clients do not all retry at once.
JITTER = 0.25
# Callers that are remembered although they have nothing in flight.
MOST_QUIET = 1024
# Callers whose use at other proxies is looked at in one turn of the event loop: in a millisecond.
MOST_LOOKS = 128


@dataclass(slots=True)
class Allotment:
    """The usage of one caller at the time `at`: in flight, and of its rates. `spent` and `tokens_spent` fall by the
    rates of its `allowance` as time passes (a token bucket that holds a minute's worth), and contain what began at
    other proxies. `total` and `tokens_total` are what has begun here, `seen` what others had stated of theirs."""

    at: float
    allowance: Allowance = Allowance()
    requests: int = 0
    tokens: int = 0
    spent: float = 0.0
    tokens_spent: float = 0.0
    total: float = 0.0
    tokens_total: float = 0.0
    seen: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)

    def catch_up(self, now: float, allowance: Allowance) -> None:
        minutes = max(0.0, now - self.at) / MINUTE_SECONDS
        self.at = max(self.at, now)
        self.spent = remaining(self.spent, self.allowance.rate, minutes)
        self.tokens_spent = remaining(self.tokens_spent, self.allowance.token_rate, minutes)
        self.allowance = allowance

    def absorb(self, others: Mapping[tuple[int, int], StatedUsage]) -> None:
        """Take over what began at other proxies since it was last looked at. Of a proxy that is new here the buckets
        count, which contain the others' too."""
        for name, usage in others.items():
            before = self.seen.get(name)
            if before is None:
                minutes = max(0.0, self.at - usage.at) / MINUTE_SECONDS
                self.spent = max(self.spent, remaining(usage.spent, self.allowance.rate, minutes))
                tokens_spent = remaining(usage.tokens_spent, self.allowance.token_rate, minutes)
                self.tokens_spent = max(self.tokens_spent, tokens_spent)
            else:
                self.spent += max(0.0, usage.total - before[0])
                self.tokens_spent += max(0.0, usage.tokens_total - before[1])
            self.seen[name] = usage.total, usage.tokens_total
        for name in self.seen.keys() - others.keys():
            del self.seen[name]

    def stated(self, requests: int = 0, tokens: int = 0) -> StatedUsage:
        """Return what other proxies are told, with requests and tokens that may be admitted next."""
        return StatedUsage(
            self.requests + requests,
            self.tokens + tokens,
            self.total,
            self.tokens_total,
            self.spent,
            self.tokens_spent,
            self.at,
        )

    @property
    def is_quiet(self) -> bool:
        return not self.requests and not self.tokens


def remaining(spent: float, rate: float | None, minutes: float) -> float:
    return 0.0 if rate is None else max(0.0, spent - rate * minutes)


class RateLimits:
    """Usage by the name of the caller. Call `check` first, and `enter` for an admitted request; each `enter` is
    followed by one `leave`. Each call covers all requests of an HTTP request: they are admitted together or not at all.

    Conservation: the requests and tokens in flight of a caller are what entered less what left. `jitter` returns
    numbers from 0 to 1. With a `table` the limits hold over all proxies together: those of what is in flight exactly,
    rates but for what arrives at two proxies at the same moment. `orphans` are the requests and tokens of streams whose
    proxy is gone and that may still be continued.
    """

    def __init__(self, jitter: Callable[[], float] = fraction, table: UsageTable | None = None) -> None:
        self.jitter, self.table = jitter, table
        self.callers: dict[str, Allotment] = {}
        self.orphans: Mapping[str, tuple[int, int]] = {}
        # The place among the callers from which the next look around goes on.
        self.looked = 0

    def check(self, ticket: Ticket, requests: int, tokens: int, now: float, *, states: bool = True) -> None:
        """Raise TooManyRequests for what would exceed the caller's allowance now, RequestError for what always would.
        Counts nothing yet. What is to enter at once is stated to other proxies before it is checked, so that no two
        admit the last; a look at the limits before the work on a request states nothing."""
        caller, allowance = ticket.caller, ticket.allowance
        for amount, limit, unit in (
            (requests, allowance.requests, "requests at once"),
            (tokens, allowance.tokens, "tokens at once, prompts and max_tokens together"),
            (requests, bucket(allowance.rate), "requests per minute"),
            (tokens, bucket(allowance.token_rate), "tokens per minute, prompts and max_tokens together"),
        ):
            if limit is not None and amount > limit:
                says = f"this asks for {amount} {unit}, but your API key allows {limit:g}: ask for less in one request"
                raise RequestError(says, code="key_limit_exceeded")
        allotment = self.allotment(caller, now)
        allotment.catch_up(now, allowance)
        if not allowance.is_limited:
            return
        if self.table is not None and states:
            self.table.state(caller, allotment.stated(requests, tokens))
        try:
            other_usage = self.look(caller, allotment)
            self.check_in_flight(allotment, requests, tokens, other_usage)
            self.check_rate(allotment.spent + requests, allowance.rate, "requests")
            self.check_rate(allotment.tokens_spent + tokens, allowance.token_rate, "tokens")
        except TooManyRequests:
            self.state(caller)
            raise

    def look(self, caller: str, allotment: Allotment) -> tuple[int, int]:
        """Return the requests and tokens of a caller that are in flight elsewhere, and take over what began there."""
        requests, tokens = self.orphans.get(caller, (0, 0))
        if self.table is not None:
            usages = self.table.others(caller)
            allotment.absorb(usages)
            requests += sum(usage.requests for usage in usages.values())
            tokens += sum(usage.tokens for usage in usages.values())
        return requests, tokens

    def look_around(self, now: float) -> None:
        """Take over what began at other proxies, while it is recent: called several times a second. Of many callers
        each call looks at some, in rotation; `check` looks at its own."""
        if self.table is None:
            return
        callers = list(self.callers.items())
        first = self.looked if self.looked < len(callers) else 0
        self.looked = first + MOST_LOOKS
        for caller, allotment in callers[first : self.looked]:
            if allotment.allowance.rate is not None or allotment.allowance.token_rate is not None:
                allotment.catch_up(now, allotment.allowance)
                self.look(caller, allotment)

    def state(self, caller: str) -> None:
        """Tell the other proxies what a caller uses here. Called too where an admission that was checked did not
        follow."""
        allotment = self.callers.get(caller)
        if self.table is not None and allotment is not None and allotment.allowance.is_limited:
            self.table.state(caller, allotment.stated())

    def check_in_flight(self, allotment: Allotment, requests: int, tokens: int, other_usage: tuple[int, int]) -> None:
        allowance = allotment.allowance
        for unit, has, amount, limit in (
            ("requests", allotment.requests + other_usage[0], requests, allowance.requests),
            ("tokens", allotment.tokens + other_usage[1], tokens, allowance.tokens),
        ):
            if limit is not None and has + amount > limit:
                says = f"{has} {unit} of your API key are in flight, {amount} more would be above its limit of {limit}"
                raise TooManyRequests(f"{says}: wait until some have ended", self.spread(SEAT_SECONDS))

    def check_rate(self, amount: float, rate: float | None, unit: str) -> None:
        most = bucket(rate)
        if rate is not None and most is not None and amount > most:
            wait = self.spread((amount - most) / rate * MINUTE_SECONDS)
            says = f"your API key allows {rate:g} {unit} per minute: try again in {max(1, math.ceil(wait))} s"
            raise TooManyRequests(says, wait)

    def spread(self, wait: float) -> float:
        return wait * (1.0 + JITTER * self.jitter())

    def enter(self, caller: str, requests: int, tokens: int, now: float) -> None:
        """Count an admitted request."""
        allotment = self.allotment(caller, now)
        allotment.requests += requests
        allotment.tokens += tokens
        allotment.spent += requests
        allotment.tokens_spent += tokens
        allotment.total += requests
        allotment.tokens_total += tokens
        self.state(caller)

    def enter_rate(self, ticket: Ticket, now: float) -> None:
        """Count a request in the rate of requests only: it has no tokens, or they are counted. Raises
        TooManyRequests."""
        caller, allowance = ticket.caller, ticket.allowance
        allotment = self.allotment(caller, now)
        allotment.catch_up(now, allowance)
        self.look(caller, allotment)
        self.check_rate(allotment.spent + 1, allowance.rate, "requests")
        allotment.spent += 1
        allotment.total += 1
        self.state(caller)

    def enter_again(self, caller: str, requests: int, tokens: int, now: float) -> None:
        """Count a request that has begun at another proxy: in flight, and in no rate."""
        allotment = self.allotment(caller, now)
        allotment.requests += requests
        allotment.tokens += tokens
        self.state(caller)

    def leave(self, caller: str, requests: int, tokens: int) -> None:
        """Return what had entered, however the request ended."""
        allotment = self.callers[caller]
        allotment.requests -= requests
        allotment.tokens -= tokens
        assert allotment.requests >= 0 and allotment.tokens >= 0, "more has left than had entered"
        self.state(caller)

    def allotment(self, caller: str, now: float) -> Allotment:
        if caller not in self.callers:
            self.make_room(now)
            self.callers[caller] = Allotment(now)
        return self.callers[caller]

    def make_room(self, now: float) -> None:
        """Forget callers without requests in flight, once there are many: first those whose rates have fully
        recovered."""
        if len(self.callers) < MOST_QUIET:
            return
        for name, allotment in list(self.callers.items()):
            allotment.catch_up(now, allotment.allowance)
            if allotment.is_quiet and not allotment.spent and not allotment.tokens_spent:
                del self.callers[name]
        quiet = [name for name, allotment in self.callers.items() if allotment.is_quiet]
        for name in quiet[: max(0, len(quiet) - MOST_QUIET // 2)]:
            del self.callers[name]


def bucket(rate: float | None) -> float | None:
    """Return the most that may begin at once: a minute's worth, and never less than one."""
    return None if rate is None else max(rate, 1.0)
