# SPDX-License-Identifier: Apache-2.0
"""A worker's leases on prefixes: granted as prompts are computed, changed by proxies' orders, and told to proxies."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite

from pontil.runtime.cache.adaptation import Adaptation
from pontil.runtime.cache.leases.lease import HELD, UNKNOWN_PROMPT, LeasedPrompt, LeaseTerm, PrefixLease
from pontil.runtime.cache.leases.lease_book import LeaseBook, LeaseRefused
from pontil.runtime.cache.leases.pinned_blocks import PinnedBlocks
from pontil.runtime.cache.prefix import KEY_BYTES, Key
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.engine.engine import Output
from pontil.runtime.errors import RequestError
from pontil.runtime.wire.lease_messages import (
    DRAINS,
    EXTEND,
    LET_GO,
    MOVED,
    REFUND,
    REFUSED,
    RELEASE,
    RESUME,
    SETTLED,
    SLEEPS,
)  # fmt: skip
from pontil.runtime.wire.messages import LeaseOrder, LeaseState, LeasesTold
from pontil.runtime.worker.generate.prefix_reporter import PrefixReporters
from pontil.runtime.worker.links.proxy_link import ProxyLink
from pontil.runtime.worker.links.proxy_links import ProxyLinks
from pontil.runtime.worker.process.worker_request import WorkerRequest
from pontil.runtime.worker.start.assembly import WorkerResources

# No lease is asked for longer: a larger number is damage.
MOST_SECONDS = MOST_MOVES = 1 << 31
# Leases that ended, kept for the next proxy.
MOST_OWED = 4096


@dataclass(frozen=True, slots=True)
class AskedLease:
    """A lease that a request asks for. One that another worker has held until now began `age` seconds before, and comes
    by so many `moves`; None: it begins when it is granted."""

    id: str
    owner: str
    seconds: int
    tokens: int
    must: bool
    age: float | None = None
    moves: int = 0

    @classmethod
    def of(cls, request: WorkerRequest) -> "AskedLease":
        """Return the wish of a request, in which any value may be wrong. Raises RequestError."""
        wish = request.submit.lease or {}
        name, owner, seconds = wish.get("id"), wish.get("owner"), wish.get("seconds")
        tokens, must, age, moves = wish.get("tokens"), wish.get("must"), wish.get("age"), wish.get("moves", 0)
        if not (isinstance(name, str) and isinstance(owner, str) and isinstance(must, bool)):
            raise RequestError("the lease lacks a name or an owner")
        if not isinstance(seconds, int) or not 0 < seconds < MOST_SECONDS:
            raise RequestError("the lease is for no number of seconds")
        if not isinstance(tokens, int) or not 0 < tokens <= len(request.submit.prompt):
            raise RequestError("the lease is on no part of the prompt")
        if age is not None and not (isinstance(age, float) and isfinite(age) and age >= 0.0):
            raise RequestError("the lease began at no time")
        if not isinstance(moves, int) or not 0 <= moves <= MOST_MOVES:
            raise RequestError("the lease came by no number of moves")
        return cls(name, owner, seconds, tokens, must, age, moves)


@dataclass(slots=True)
class PrefixLeases:
    """The leases of one worker, and the `reporters` of all prefixes that it has. `asked` has the leases that prompts
    wait for which are being computed, by request. Those that are `owed` ended while the proxy that bills them was cut
    off, or gone."""

    reporters: PrefixReporters
    incarnation: str
    links: ProxyLinks
    machine: WorkerResources
    book: LeaseBook
    asked: dict[str, tuple[WorkerRequest, AskedLease]] = field(default_factory=dict)
    # The last registrations in which all leases were told, by link.
    told: dict[int, tuple[str, int]] = field(default_factory=dict)
    owed: dict[str, PrefixLease] = field(default_factory=dict)

    @classmethod
    def of(cls, config: WorkerConfig, incarnation: str, links: ProxyLinks, machine: WorkerResources) -> "PrefixLeases":
        layout, pool = machine.layout, machine.pool
        is_on = machine.scheduler.prefix.enabled
        share, tiers = (config.lease_share, machine.scheduler.tier.store) if is_on else (0.0, None)
        longest = layout.blocks_for(machine.config.max_model_len)
        pins = PinnedBlocks.of(pool, share, longest, tiers)
        reporters = PrefixReporters(links.links, pool.index)
        book = LeaseBook(pins, cls.block_bytes(machine), layout.block_size, config.lease_client_memory)
        return cls(reporters, incarnation, links, machine, book)

    @staticmethod
    def block_bytes(machine: WorkerResources) -> int:
        return machine.layout.block_bytes * machine.layout.ranks

    def submitted(self, request: WorkerRequest) -> None:
        """Keep room for the lease that a request asks for, if it does. Raises RequestError where it must have it, and
        there is no room."""
        if request.submit.lease is None:
            return
        wish = AskedLease.of(request)
        try:
            if not self.machine.scheduler.prefix.enabled or request.sequence.prefix.salt != request.submit.cache_salt:
                raise LeaseRefused("no other request finds this prompt, so that it is not leased")
            self.book.promise(wish.id, wish.owner, self.blocks(wish))
        except LeaseRefused as error:
            if wish.must:
                raise RequestError(str(error), status=429) from None
            self.refuse(wish, request.proxy, str(error))
        else:
            self.asked[request.key] = request, wish

    def blocks(self, wish: AskedLease) -> int:
        return wish.tokens // self.book.block_size

    def computed(self, outputs: Iterable[Output], now: float) -> None:
        """Grant the leases of prompts that a step has computed to their end. Their blocks cannot have been evicted: no
        other step was scheduled since."""
        for output in outputs if self.asked else ():
            if output.failure is None and output.sequence.id in self.asked:
                request, wish = self.asked.pop(output.sequence.id)
                keys = tuple(self.machine.scheduler.prefix.keys_of(output.sequence).all[: self.blocks(wish)])
                began = now if wish.age is None else request.arrived - wish.age
                term = LeaseTerm(self.size(keys), began, wish.seconds)
                self.grant(wish, request.proxy, keys, term, now, self.prompt_of(request, len(keys)))

    def prompt_of(self, request: WorkerRequest, blocks: int) -> LeasedPrompt:
        """Return the beginning of a prompt, from which another worker can compute so many blocks; an unknown one where
        they are made of more than ids."""
        submit, prefix = request.submit, request.sequence.prefix
        tokens = submit.prompt[: blocks * self.book.block_size]
        if (prefix.contents or tokens)[: len(tokens)] != tokens:
            return UNKNOWN_PROMPT
        return LeasedPrompt.of(tokens, submit.cache_salt, prefix.adapted, submit.adapter_directory)

    def size(self, keys: Sequence[Key]) -> int:
        return len(keys) * self.book.block_bytes

    def grant(
        self,
        wish: AskedLease,
        proxy: str,
        keys: tuple[Key, ...],
        term: LeaseTerm,
        now: float,
        prompt: LeasedPrompt = UNKNOWN_PROMPT,
    ) -> None:
        tokens = len(keys) * self.book.block_size
        lease = PrefixLease(wish.id, wish.owner, keys, tokens, proxy, term, prompt, moves=wish.moves)
        try:
            self.book.grant(lease, now)
        except LeaseRefused as error:
            self.refuse(wish, proxy, str(error))

    def refuse(self, wish: AskedLease, proxy: str, reason: str) -> None:
        if (link := self.links.of(proxy)) is not None and link.takes_leases and link.proxy is not None:
            about = wish.id, wish.owner, proxy, REFUSED
            link.send(LeaseState(self.incarnation, link.proxy, *about, 0, 0, 0, 0.0, reason))

    def obey(self, order: LeaseOrder, now: float) -> None:
        """Carry out a proxy's order. One about a lease that is not held here is told what is known: nothing."""
        if order.action == EXTEND:
            self.book.extend(order.lease_id, order.seconds, now)
        elif order.action == RELEASE:
            self.book.release(order.lease_id, now)
        elif order.action == REFUND:
            self.book.refund(order.lease_id, self.drains_since or SETTLED, now)
        elif order.action == LET_GO:
            held = self.book.leases.get(order.lease_id)
            if held is not None and held.moves < order.moves:
                self.book.refund(order.lease_id, MOVED, now)
        elif order.action == RESUME and 0 < order.seconds < MOST_SECONDS and order.age >= 0.0:
            keys = tuple(order.keys[at : at + KEY_BYTES] for at in range(0, len(order.keys), KEY_BYTES))
            about = order.owner, order.seconds, len(keys) * self.book.block_size
            wish = AskedLease(order.lease_id, *about, must=True, moves=min(max(0, order.moves), MOST_MOVES))
            if keys and order.lease_id not in self.book.leases:
                term = LeaseTerm(self.size(keys), now - order.age, order.seconds)
                adapted = Adaptation(order.adapter, max(0, order.adapter_start))
                prompt = LeasedPrompt(order.prompt, order.salt, adapted, order.adapter_directory)
                prompt = prompt if prompt.has(wish.tokens) else UNKNOWN_PROMPT
                self.grant(wish, order.sender, keys, term, now, prompt)

    def tick(self, requests: Container[str], now: float) -> None:
        """End what is over, and what is lost."""
        if self.book.ends:
            self.book.expire(now)
        self.book.settle(now)
        for key in [key for key in self.asked if key not in requests] if self.asked else ():
            _, wish = self.asked.pop(key)
            self.book.forgo(wish.id)
        self.tell(now)

    @property
    def is_idle(self) -> bool:
        """Return whether no lease is to be moved to another worker before this one ends."""
        return not self.book.leases

    def give_up(self, now: float) -> None:
        """Refund the leases of a worker that drains, and whose time for that is over."""
        if self.book.leases and (reason := self.drains_since) is not None:
            self.book.refund_all(reason, now)

    @property
    def drains_since(self) -> str | None:
        """Return the reason of leases that end since their worker drains; None where it does not."""
        if not self.links.links or not self.links.links[0].hello.draining:
            return None
        return SLEEPS if self.links.goes_to_sleep else DRAINS

    def tell(self, now: float) -> None:
        """Tell each proxy what changed, and a new one everything."""
        changed = self.book.take_changed() if self.book.changed else ()
        if changed:
            self.owe(changed)
        for place, link in enumerate(self.links.links):
            registration = link.registration
            if registration is None or link.proxy is None or not link.takes_leases:
                continue
            if self.has_told(place, link):
                for lease in changed:
                    link.send(self.state_of(lease, link.proxy, now, new=not lease.told))
            else:
                self.told[place] = registration
                self.tell_all(link, now)
        for lease in changed:
            lease.told = True

    def has_told(self, place: int, link: ProxyLink) -> bool:
        """Return whether the proxy of this link was told all leases since it has registered this worker."""
        return link.registration is not None and self.told.get(place) == link.registration

    def owe(self, changed: Iterable[PrefixLease]) -> None:
        """Remember the leases that ended and whose proxy does not hear of it now."""
        hearing = {link.proxy for place, link in enumerate(self.links.links) if self.has_told(place, link)}
        for lease in changed:
            if lease.id not in self.book.leases and lease.proxy not in hearing:
                self.owed[lease.id] = lease
        while len(self.owed) > MOST_OWED:
            del self.owed[next(iter(self.owed))]

    @property
    def proxies(self) -> set[str]:
        """The proxies that bill: also one that is cut off now, until another process has its place."""
        return {proxy for proxy, _ in self.told.values()}

    def tell_all(self, link: ProxyLink, now: float) -> None:
        """Tell a proxy that has just registered this worker of all leases, those among them that it was owed. It bills
        those whose proxy is gone."""
        proxies = self.proxies
        owed = [lease for lease in self.owed.values() if lease.proxy == link.proxy or lease.proxy not in proxies]
        for lease in owed:
            del self.owed[lease.id]
        for lease in [*owed, *self.book.leases.values()]:
            if lease.proxy not in proxies and link.proxy is not None:
                lease.proxy = link.proxy
            link.send(self.state_of(lease, link.proxy or "", now, new=True))
        link.send(LeasesTold(self.incarnation, link.proxy or "", list(self.book.leases)))

    def state_of(self, lease: PrefixLease, proxy: str, now: float, *, new: bool) -> LeaseState:
        term, prompt = lease.term, lease.prompt if new and lease.term.state == HELD else UNKNOWN_PROMPT
        until = now if term.ended is None else term.ended
        about = lease.id, lease.owner, lease.proxy, term.state, lease.tokens, term.size, term.seconds
        keys = b"".join(lease.keys) if term.state == HELD else b""
        age, shared = max(0.0, until - term.began), (*prompt.fields, lease.moves, prompt.directory)
        return LeaseState(self.incarnation, proxy, *about, age, term.reason, keys, *shared, prompt.adapted.start)

    def gauges(self) -> dict[str, int]:
        """Return the room for leases, for a heartbeat."""
        return {
            "lease_block_bytes": self.book.block_bytes,
            "lease_budget_bytes": self.book.pins.most * self.book.block_bytes,
            "lease_free_bytes": self.book.room * self.book.block_bytes,
        }
