# SPDX-License-Identifier: Apache-2.0
"""The room for leases: whether a key may have another one now, and if not, when."""

from collections.abc import Mapping

from pontil.runtime.errors import RequestError, TooManyRequests
from pontil.runtime.proxy.fleet.registered_worker import RegisteredWorker
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.leases.lease_view import LeaseView

# Seconds until a client tries again where nothing says when there will be room: a heartbeat later.
SOON = 1.0


class LeaseQuota:
    """The budgets of leases by what workers say of their memory, and by the leases of each key."""

    def __init__(self, registry: Registry, views: Mapping[str, LeaseView], key_memory: int | None) -> None:
        self.registry, self.views, self.key_memory = registry, views, key_memory
        self.refusals = 0

    def workers(self, group: str | None) -> list[RegisteredWorker]:
        """Return the workers of a model that may hold leases."""
        return [worker for worker in self.registry.of(group).available if worker.gauges.get("lease_block_bytes")]

    @property
    def soon(self) -> float:
        """The seconds after which a client may try again whose lease found no room, against what was known."""
        return SOON

    def size_of(self, worker: RegisteredWorker, tokens: int) -> int:
        """Return the bytes of a lease on so many tokens there."""
        return tokens // worker.hello.block_size * worker.gauges.get("lease_block_bytes", 0)

    def check(self, group: str | None, owner: str, tokens: int, now: float) -> None:
        """Check that there is room for a lease in a model's workers. Raises RequestError where there never is,
        TooManyRequests where there is none now: that is counted among the `refusals`."""
        try:
            self.check_room(group, owner, tokens, now)
        except TooManyRequests:
            self.refusals += 1
            raise

    def check_room(self, group: str | None, owner: str, tokens: int, now: float) -> None:
        workers = self.workers(group)
        if not workers:
            raise TooManyRequests("no worker that holds leases is ready: try again in a moment", SOON)
        size = max(self.size_of(worker, tokens) for worker in workers)
        if size == 0:
            least = min(worker.hello.block_size for worker in workers)
            raise RequestError(
                f"the prefix has {tokens} tokens, and a lease is on whole blocks of {least}: ask for more"
            )
        self.check_key(owner, size, now)
        most = max(worker.gauges.get("lease_budget_bytes", 0) for worker in workers)
        if size > most:
            raise RequestError(
                f"the lease would hold {size} bytes, and leases may hold at most {most} in one worker: lease less, or "
                "launch with a larger --lease-share, --kv-cache-memory or --kv-tier, or a smaller --max-model-len",
                status=409,
            )
        free = max(worker.gauges.get("lease_free_bytes", 0) for worker in workers)
        if size > free:
            waits = [self.wait(self.held_in(worker), size - room_in(worker), now) for worker in workers]
            raise TooManyRequests(
                f"the lease would hold {size} bytes, and leases may hold {free} more now: release one, or try again "
                "later",
                min(waits),
            )

    def check_key(self, owner: str, size: int, now: float) -> None:
        most = self.key_memory
        if most is None:
            return
        if size > most:
            raise RequestError(
                f"the lease would hold {size} bytes, and the leases of a key may hold {most}: lease less", status=409
            )
        own = [view for view in self.views.values() if view.owner == owner]
        held = sum(view.term.size for view in own)
        if held + size > most:
            raise TooManyRequests(
                f"the lease would hold {size} bytes, and this key's leases hold {held} of the {most} that they may: "
                "release one, or try again later",
                self.wait(own, held + size - most, now),
            )

    def held_in(self, worker: RegisteredWorker) -> list[LeaseView]:
        return [view for view in self.views.values() if view.worker == worker.hello.sender]

    def wait(self, views: list[LeaseView], needed: int, now: float) -> float:
        """Return the seconds until these leases will have freed so many bytes, if none is extended."""
        for view in sorted(views, key=lambda view: view.term.end):
            needed -= view.term.size
            if needed <= 0:
                return max(SOON, view.term.end - now)
        return SOON

    def has_room(self, tokens: int, incarnation: str) -> bool:
        """Return whether a worker has room for a lease on so many tokens, as far as is known."""
        worker = self.registry.workers.get(incarnation)
        return worker is not None and 0 < self.size_of(worker, tokens) <= room_in(worker)


def room_in(worker: RegisteredWorker) -> int:
    return worker.gauges.get("lease_free_bytes", 0)
