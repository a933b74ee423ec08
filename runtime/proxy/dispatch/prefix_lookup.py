# SPDX-License-Identifier: Apache-2.0
"""The loads of workers as a request finds them, with what they have of its prompt and of its adapter."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from pontil.runtime.proxy.fleet.registered_worker import RegisteredWorker
from pontil.runtime.proxy.fleet.registry import Registry, WorkerGroup
from pontil.runtime.proxy.fleet.worker_release import WorkerRelease
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.proxy.routing.held_prefixes import HeldPrefixes
from pontil.runtime.proxy.routing.policy import WorkerLoad
from pontil.runtime.proxy.routing.prompt_prefix import PromptPrefix

# Prompt tokens that take about as long as reading an adapter.
READING_TOKENS = 256


class PrefixLookup:
    """The loads of workers as a request finds them. Without `enabled` no prefix is looked for. `lacking` returns the
    workers that know an adapter and do not have it in memory now."""

    def __init__(self, registry: Registry, enabled: bool) -> None:
        self.registry, self.enabled = registry, enabled
        # The looks for a prompt behind which there may be more of it to find.
        self.unfinished = 0
        self.lacking: Callable[[str], Collection[str]] = lambda digest: ()

    def loads(self, request: Request) -> Sequence[WorkerLoad]:
        """Return the load of each worker that the request can be sent to now. One that has to read the request's
        adapter has as much more to do."""
        loads, digest = self.loads_with_prefix(request), request.ticket.adapter_digest
        lacking = self.lacking(digest) if digest else ()
        if not lacking:
            return loads
        return [
            replace(load, uncomputed=load.uncomputed + READING_TOKENS) if load.incarnation in lacking else load
            for load in loads
        ]

    def loads_with_prefix(self, request: Request) -> tuple[WorkerLoad, ...]:
        """Return these loads with the tokens found there. Takes less than a millisecond: of a long prompt that was not
        prepared only the beginning is looked for."""
        workers = self.workers(request)
        prefix = self.prefix_of(request, self.registry.of(request.work.group))
        if prefix is None:
            return tuple([worker.loads.get(0) or worker.load for worker in workers])
        self.unfinished += prefix.grow([worker.prefixes for worker in workers])
        counts = prefix.found_in([worker.prefixes for worker in workers])
        return tuple(
            [worker.loads.get(count) or worker.load_with(count) for worker, count in zip(workers, counts, strict=True)]
        )

    def loads_for_caller(self, request: Request, loads: Sequence[WorkerLoad], may_claim: bool) -> Sequence[WorkerLoad]:
        """Return loads that were looked up for a request with what its caller may have of others."""
        workers = self.workers(request)
        return [worker.load_for(load, request.share, may_claim) for worker, load in zip(workers, loads, strict=True)]

    def holders(self, request: Request) -> Collection[str]:
        """Return the workers that hold most of the prompt by leases; none where nobody leases any of it."""
        workers = [worker for worker in self.workers(request) if worker.prefixes.leased]
        prefix = self.prefix_of(request, self.registry.of(request.work.group)) if workers else None
        if prefix is None:
            return ()
        self.unfinished += prefix.grow([worker.prefixes for worker in workers])
        counts = {worker.hello.sender: worker.prefixes.count_leased(prefix.keys) for worker in workers}
        most = max(counts.values())
        return [incarnation for incarnation, count in counts.items() if count == most > 0]

    def moving(self, group: WorkerGroup, release: WorkerRelease | None) -> list[HeldPrefixes]:
        """Return what leases hold that requests of this release (None: of any) cannot be sent to now: their worker
        drains, is not reached, or is gone, and another one is to have them."""
        held: list[HeldPrefixes] = [
            worker.prefixes
            for worker in group.workers
            if worker.prefixes.leased
            and (worker.leaving or not worker.contact.reachable)
            and release in (None, worker.release)
        ]
        return held + [one for name, one in group.moving.items() if one.leased and release in (None, name)]

    def coming(self, request: Request) -> int:
        """Return how many tokens of the prompt whoever has them next by a lease need not compute, more than any worker
        that the request can be sent to now; 0 where no such lease moves."""
        group, workers = self.registry.of(request.work.group), self.workers(request)
        held = self.moving(group, request.release)
        prefix = self.prefix_of(request, group) if held else None
        if prefix is None:
            return 0
        caches = [worker.prefixes for worker in workers]
        prefix.grow([*caches, *held])
        coming = max(cache.count_leased(prefix.keys) for cache in held) * prefix.block_size
        return max(0, coming - max(prefix.found_in(caches), default=0))

    def workers(self, request: Request) -> list[RegisteredWorker]:
        """Return the workers to which a request can be sent now, of the release that it stays with."""
        group = self.registry.of(request.work.group)
        self.settle(request, group)
        return group.serving(request.release)

    def settle(self, request: Request, group: WorkerGroup) -> None:
        """Give a request another release if no worker of its own takes requests any more. An answer that has begun has
        to be ended where it began."""
        if request.release is None or request.times.begun or request.ticket.has_part:
            return
        if request.release in group.current.releases:
            return
        new_release = group.shares.choose(group.current.releases)
        if new_release is not None:
            group.shares.leave(request.release)
            group.shares.enter(new_release)
            request.release = new_release

    def prefix_of(self, request: Request, group: WorkerGroup) -> PromptPrefix | None:
        """Return the keys of the request's prompt; None where no worker would use what it has cached."""
        size = self.block_size(group)
        return None if size is None else request.work.prefix_keys(size, request.ticket)

    def block_size(self, group: WorkerGroup) -> int | None:
        """Return the tokens in a block of these workers; None if they told of no prefixes."""
        has_any = any(worker.prefixes.keys for worker in group.workers) or any(group.moving.values())
        if not self.enabled or not has_any:
            return None
        hello = group.any_hello
        return hello.block_size if hello is not None and hello.block_size > 0 else None

    async def prepare(
        self, prompts: Sequence[list[int]], ticket: Ticket, model: str | None = None
    ) -> tuple[PromptPrefix, ...]:
        """Look for the prompts of requests to a model that will be submitted, as far as they are found. Short ones take
        no turn of the event loop, long ones a turn for each portion."""
        group = self.registry.of(model)
        size = self.block_size(group)
        if size is None:
            return ()
        prefixes = tuple([PromptPrefix(one, ticket.cache_salt, size, ticket.adapted(one)) for one in prompts])
        for prefix in prefixes:
            while prefix.grow([*[worker.prefixes for worker in group.available], *self.moving(group, None)]):
                await asyncio.sleep(0)
            if len(prefixes) > 1:
                await asyncio.sleep(0)
        return prefixes
