# SPDX-License-Identifier: Apache-2.0
"""The search for the workers that have the beginning of a prompt cached."""

import asyncio
from collections.abc import Sequence

from pontil.runtime.proxy.fleet.registry import Registry, WorkerGroup
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.routing.policy import WorkerLoad
from pontil.runtime.proxy.routing.prompt_prefix import PromptPrefix


class PrefixLookup:
    """The loads of workers as a request finds them. Without `enabled` nothing is looked for."""

    def __init__(self, registry: Registry, enabled: bool) -> None:
        self.registry, self.enabled = registry, enabled

    def loads(self, request: Request) -> tuple[WorkerLoad, ...]:
        """Return the load of each worker that the request can be sent to now, with the tokens found there. Takes less
        than a millisecond: of a long prompt that was not prepared only the beginning is looked for."""
        group = self.registry.of(request.work.group)
        self.settle(request, group)
        workers, prefix = group.serving(request.release), self.prefix_of(request, group)
        if prefix is None:
            return tuple([one.loads.get(0) or one.load for one in workers])
        prefix.grow([worker.prefixes for worker in workers])
        found = prefix.found_in([worker.prefixes for worker in workers])
        return tuple([one.loads.get(count) or one.load_with(count) for one, count in zip(workers, found, strict=True)])

    def loads_for_caller(self, request: Request, loads: Sequence[WorkerLoad]) -> Sequence[WorkerLoad]:
        """Return loads that were looked up for a request with what its caller may have of others."""
        workers = self.registry.of(request.work.group).serving(request.release)
        return [worker.load_for(load, request.share) for worker, load in zip(workers, loads, strict=True)]

    def settle(self, request: Request, group: WorkerGroup) -> None:
        """Give a request another release if no worker of its own takes requests any more. An answer that has begun has
        to be ended where it began."""
        if request.release is None or request.times.begun:
            return
        if request.release in group.current.releases:
            return
        other = group.shares.choose(group.current.releases)
        if other is not None:
            group.shares.leave(request.release)
            group.shares.enter(other)
            request.release = other

    def prefix_of(self, request: Request, group: WorkerGroup) -> PromptPrefix | None:
        """Return the keys of the request's prompt; None where no worker would use what it has cached."""
        size = self.block_size(group)
        return None if size is None else request.work.prefix_keys(size, request.ticket.cache_salt)

    def block_size(self, group: WorkerGroup) -> int | None:
        """Return the tokens in a block of these workers; None if they told of no prefixes."""
        if not self.enabled or not any(worker.prefixes.keys for worker in group.workers):
            return None
        hello = group.any_hello
        return hello.block_size if hello is not None and hello.block_size > 0 else None

    async def prepare(self, prompts: Sequence[list[int]], salt: str) -> tuple[PromptPrefix, ...]:
        """Look for the prompts of requests that will be submitted, as far as they are found. Short ones take no turn of
        the event loop, long ones a turn for each portion."""
        group = self.registry.generating
        size = self.block_size(group)
        if size is None:
            return ()
        prefixes = tuple([PromptPrefix(prompt, salt, size) for prompt in prompts])
        for prefix in prefixes:
            while prefix.grow([worker.prefixes for worker in group.available]):
                await asyncio.sleep(0)
            if len(prefixes) > 1:
                await asyncio.sleep(0)
        return prefixes
