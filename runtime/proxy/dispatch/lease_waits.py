# SPDX-License-Identifier: Apache-2.0
"""Waits for leases that are on their way to another process (docs/decisions/140)."""

from collections.abc import Callable

from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.proxy.dispatch.prefix_lookup import PrefixLookup
from pontil.runtime.proxy.requests.request import Request

# Part of a deadline after which nobody waits for a lease: the rest is for what has to be computed then.
WAITED_SHARE = 0.5


class LeaseWaits:
    """The decision whether a request, for which there is a worker now, waits for the lease on the beginning of its
    prompt, which no worker has that serves: it drains, or died, and another process is to have what it held. It waits
    no longer than computing those tokens takes, by the `token_seconds` of its group: so it is never served later than
    twice as late as without, however long the lease takes (ski rental). All its waits together count."""

    def __init__(self, config: ProxyConfig, lookup: PrefixLookup, clock: Callable[[], float]) -> None:
        self.config, self.lookup, self.clock = config, lookup, clock
        # While that is not known nobody waits.
        self.token_seconds: Callable[[str | None], float | None] = lambda group: None

    def awaits_lease(self, request: Request) -> bool:
        """Return whether a request waits now, and note since when."""
        coming = self.lookup.coming(request)
        seconds = self.token_seconds(request.work.group) if coming else None
        now, attempts = self.clock(), request.attempts
        if seconds is None or not self.has_time(request, now):
            return False
        if attempts.lease_awaited_at is None:
            attempts.lease_awaited_at = now
        return now - attempts.lease_awaited_at < coming * seconds

    def has_time(self, request: Request, now: float) -> bool:
        """Return whether no deadline of the request is near; what gives way has none, nor have lines of batches."""
        attempts, config = request.attempts, self.config
        if attempts.stranded_at is not None and now - attempts.stranded_at > WAITED_SHARE * config.failover_timeout:
            return False
        if request.times.begun or request.share.gives_way or request.ticket.is_line:
            return True
        return now - request.times.waits_since <= WAITED_SHARE * config.first_byte_timeout
