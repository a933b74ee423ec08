# SPDX-License-Identifier: Apache-2.0
"""A client's request as it is admitted, beside its work."""

from dataclasses import dataclass

from pontil.runtime.proxy.fleet.worker_release import WorkerRelease
from pontil.runtime.proxy.requests.answer import WholeAnswer
from pontil.runtime.timeline.received import ReceivedRequest

# The caller of a request where no API key is needed.
NO_KEY = "-"


@dataclass(frozen=True, slots=True)
class Allowance:
    """The limits of a key, None for no limit. `weight` is its share relative to other keys (fair_queue.py). `requests`
    and `tokens` are the most in flight at once, a request's tokens being those of its prompts and all that it may
    generate. `rate` and `token_rate` are the most that may begin in a minute. With `priority` it may ask to be served
    before others."""

    weight: float = 1.0
    requests: int | None = None
    tokens: int | None = None
    rate: float | None = None
    token_rate: float | None = None
    priority: bool = False

    @property
    def is_limited(self) -> bool:
        return any(limit is not None for limit in (self.requests, self.tokens, self.rate, self.token_rate))


# For the admin key, and for every client where no key is needed.
UNLIMITED = Allowance(priority=True)


@dataclass(frozen=True, slots=True)
class Ticket:
    """A client's request as it is handed on, made once. `name` is a part of the ids of its requests, so that they are
    found in the workers' logs. `caller` names the API key, whose `allowance` it has. The lowest `priority` is served
    first, callers of equal priority in turns. Prompts with another `cache_salt` share no cached prefix. `received` is
    the HTTP request, where it came by one. One that `continues` a stream asks for the rest of an answer that a
    `release` of the workers has begun: it is counted already. Of that answer the client may have some tokens: it
    `has_part` then, whatever else is known of them. A line of a batch is of the background: its requests are parts of
    the `whole` answer to it, which are billed once that is kept."""

    name: str | None = None
    caller: str = NO_KEY
    allowance: Allowance = UNLIMITED
    priority: int = 0
    cache_salt: str = ""
    received: ReceivedRequest | None = None
    release: WorkerRelease | None = None
    continues: bool = False
    has_part: bool = False
    whole: WholeAnswer | None = None

    @property
    def is_background(self) -> bool:
        return self.whole is not None

    @property
    def weight(self) -> float:
        """The share of its caller, relative to other callers."""
        return self.allowance.weight
