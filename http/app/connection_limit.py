# SPDX-License-Identifier: Apache-2.0
"""A limit on connections below the limit on file descriptors, so that the process can always open the files it
needs."""

import logging
import resource

from pontil.http.app.log_interval import LogInterval

LOG = logging.getLogger("pontil.http")
MOST_CONNECTIONS = 4096
# Descriptors reserved for sockets of workers, pipes, files, and connections that are being refused.
KEPT_FREE = 256
# Lower bound, even where the descriptor limit is absurdly small.
LEAST_CONNECTIONS = 16
MOST_DESCRIPTORS = 1 << 20
REFUSAL = "the server has as many connections as it takes: try again in a moment"


class ConnectionLimit:
    """The connection limit of one server."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.complaints = LogInterval()

    def admits(self, others: int, now: float) -> bool:
        """Return whether one more connection is allowed. Refusals are logged at most once per interval."""
        if others < self.most:
            return True
        if self.complaints.is_due(now):
            LOG.warning("%d connections are open, which is all that are kept: further ones are refused", others)
        return False


def raise_descriptor_limit() -> None:
    """Raise the soft limit on open files to the hard limit: shells and containers often start with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most_of(hard)
    if most_of(soft) < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def descriptor_limit() -> int:
    return most_of(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def most_of(limit: int) -> int:
    """Return the limit, capped at MOST_DESCRIPTORS."""
    return MOST_DESCRIPTORS if limit == resource.RLIM_INFINITY else min(limit, MOST_DESCRIPTORS)


def connections_within(descriptors: int) -> int:
    """Return the number of connections that fit within this many descriptors."""
    return max(LEAST_CONNECTIONS, min(MOST_CONNECTIONS, descriptors - KEPT_FREE))
