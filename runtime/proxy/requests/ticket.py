# SPDX-License-Identifier: Apache-2.0
"""A client's request as it is admitted, beside its work."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pontil.runtime.cache.adaptation import NOT_ADAPTED, Adaptation
from pontil.runtime.foundation.fair_share import ServiceClass, class_of
from pontil.runtime.proxy.fleet.worker_release import WorkerRelease
from pontil.runtime.proxy.requests.answer import WholeAnswer
from pontil.runtime.timeline.received import ReceivedRequest

# The caller of a request where no API key is needed.
NO_KEY = "-"


@dataclass(frozen=True, slots=True)
class Allowance:
    """The limits of a key, None for no limit. `share` is relative to other keys of its class (fair_queue.py), and
    `service_class` the most urgent class that its requests can be of. `requests`
    and `tokens` are the most in flight at once, a request's tokens being those of its prompts and all that it may
    generate. `rate` and `token_rate` are the most that may begin in a minute. With `priority` it may ask to be served
    before others."""

    share: float = 1.0
    service_class: ServiceClass = ServiceClass.STANDARD
    requests: int | None = None
    tokens: int | None = None
    rate: float | None = None
    token_rate: float | None = None
    priority: bool = False

    @classmethod
    def of(cls, settings: Iterable[tuple[str, Any]]) -> "Allowance":
        """Return what the settings of a key file allow."""
        values = dict(settings)
        service_class = ServiceClass[values.pop("class", ServiceClass.STANDARD.word).upper()]
        return cls(service_class=service_class, **values)

    @property
    def is_limited(self) -> bool:
        return any(limit is not None for limit in (self.requests, self.tokens, self.rate, self.token_rate))


# For the admin key, and for every client where no key is needed.
UNLIMITED = Allowance(priority=True)


@dataclass(frozen=True, slots=True)
class Replay:
    """The circumstances of a recorded request that an operator sends again: the `seeds` of its prompts, the second `at`
    which it was received, which a chat template may tell, and the `worker` that alone is to compute it, whether that
    takes requests or not. It was answered with the adapter of this digest, empty: with none; None: nobody knows."""

    seeds: tuple[int, ...]
    at: int
    worker: str | None = None
    adapter: str | None = None


@dataclass(frozen=True, slots=True)
class ChosenAdapter:
    """The adapter that a request asks for: its name, the digest of its files, and the directory that has them, where it
    came while the launch runs: a worker that begins after the name is free knows it by these. The tokens of its
    `invocation` activate it, if there are any; where it is known from which position of its prompt on it is in use,
    that is `start`."""

    name: str
    digest: str
    directory: str = ""
    invocation: tuple[int, ...] = ()
    start: int | None = None

    def adapted(self, prompt: Sequence[int]) -> Adaptation:
        """Return how a prompt is computed with it."""
        if self.start is not None:
            return Adaptation(self.digest, self.start)
        return Adaptation.of(self.digest, self.invocation, prompt)


@dataclass(frozen=True, slots=True)
class Ticket:
    """A client's request as it is handed on, made once. `name` is a part of the ids of its requests, so that they are
    found in the workers' logs. `caller` names the API key, whose `allowance` it has. Its `place` has its class and its
    priority (runtime/foundation/fair_share.py); callers of equal places are served in turns. Prompts with another
    `cache_salt` share no cached prefix. `received` is the HTTP request, where it came by one. One that `continues` a
    stream asks for the rest of an answer that a `release` of the workers has begun: it is counted already. Of that
    answer the client may have some tokens: it `has_part` then, whatever else is known of them. The requests of a line
    of a batch are parts of the `whole` answer to it, which are billed once that is kept; they count against no
    limit. A `replay` is an operator's. It asks for an `adapter` of the model, or for the model as it is."""

    name: str | None = None
    caller: str = NO_KEY
    allowance: Allowance = UNLIMITED
    place: int = 0
    cache_salt: str = ""
    received: ReceivedRequest | None = None
    release: WorkerRelease | None = None
    continues: bool = False
    has_part: bool = False
    whole: WholeAnswer | None = None
    replay: Replay | None = None
    adapter: ChosenAdapter | None = None

    @property
    def adapter_digest(self) -> str:
        """The digest of the adapter, empty for the model as it is."""
        return "" if self.adapter is None else self.adapter.digest

    def adapted(self, prompt: Sequence[int]) -> Adaptation:
        """Return how a prompt is computed: keys of prefixes are of that."""
        return NOT_ADAPTED if self.adapter is None else self.adapter.adapted(prompt)

    @property
    def is_line(self) -> bool:
        return self.whole is not None

    @property
    def service_class(self) -> ServiceClass:
        return class_of(self.place)

    @property
    def weight(self) -> float:
        """The share of its caller, relative to other callers."""
        return self.allowance.share
