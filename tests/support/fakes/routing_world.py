# SPDX-License-Identifier: Apache-2.0
"""Workers without a model that serve recorded conversations: real block pools, prefix indexes and routing, and a simple
account of time."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from recorded_load import BESIDE, PROMPT_RATE, TOKEN_SECONDS, RecordedLoad, Turn

from pontil.runtime.accounting.counts import PREFILL
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.prefix import Key, full_keys
from pontil.runtime.foundation.fair_share import EVERYBODY
from pontil.runtime.proxy.dispatch.dispatcher import RecentWork
from pontil.runtime.proxy.fleet.registered_worker import RegisteredWorker
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.routing.policy import INTERLEAVED, Route, next_route
from pontil.runtime.proxy.routing.prompt_prefix import PromptPrefix
from pontil.runtime.wire.messages import SCHEMA, Hello, PrefixDelta

BLOCK_SIZE = 16
MOST_TOLD = 4096


@dataclass(eq=False)
class SimulatedRequest:
    prompt: list[int]
    answer: list[int]
    ended: Callable[[], None]
    prefix: PromptPrefix
    arrived: float
    uncomputed: int = 0
    cached: int = 0
    keys: tuple[Key, ...] = ()

    @property
    def text(self) -> list[int]:
        return self.prompt + self.answer


@dataclass(eq=False)
class SimulatedWorker:
    """A worker's blocks, the prompts that it computes one after the other, and its sums."""

    registered: RegisteredWorker
    pool: BlockPool
    told: int = 0
    busy_until: float = 0.0
    running: int = 0
    computed: int = 0
    generated: int = 0
    blocks: dict[SimulatedRequest, list[int]] = field(default_factory=dict)

    @property
    def incarnation(self) -> str:
        return self.registered.hello.sender

    def hit(self, keys: Sequence[Key]) -> list[int]:
        """Return the blocks of the longest cached prefix."""
        found = []
        for key in keys:
            block = self.pool.index.find(key)
            if block is None:
                break
            found.append(block)
        return found

    def admit(self, request: SimulatedRequest) -> int:
        """Give the request blocks for everything; return how many tokens of its prompt are cached."""
        found = self.hit(request.keys[: len(request.prompt) // BLOCK_SIZE])
        needed = len(request.text) // BLOCK_SIZE + 1 - len(found)
        assert self.pool.reserve(needed, found), "the simulated pool is too small for what runs at once"
        self.blocks[request] = found + self.pool.bind(needed)
        return min(len(found) * BLOCK_SIZE, len(request.prompt) - 1)

    def register(self, request: SimulatedRequest, tokens: int) -> None:
        for key, block in zip(request.keys[: tokens // BLOCK_SIZE], self.blocks[request], strict=False):
            self.pool.index.add(key, block)

    def release(self, request: SimulatedRequest) -> None:
        self.pool.release(self.blocks.pop(request))

    def tell(self) -> None:
        """Tell the proxy what has changed, as a PrefixReporter does."""
        (journal,) = self.pool.index.journals
        while journal.changes:
            added, removed = journal.take(MOST_TOLD)
            assert self.registered.prefixes.take(PrefixDelta(self.incarnation, "p", self.told, added, removed))
            self.told += 1


class RoutingWorld(RecordedLoad):
    """A proxy's routing over simulated workers. `by_cache` False routes by load alone."""

    def __init__(
        self, prefill: int, decode: int, num_blocks: int, by_cache: bool = True, seed: int = 1, seats: int = 64
    ) -> None:
        super().__init__(seed)
        self.by_cache, self.registry = by_cache, Registry(ttl=1e9)
        self.recent = RecentWork(self.registry)
        self.waiting: deque[SimulatedRequest] = deque()
        self.workers: dict[str, SimulatedWorker] = {}
        self.cached = self.oracle = self.prompts = 0
        self.later_waits: list[float] = []
        names = [("prefill", i) for i in range(prefill)] + [("decode", i) for i in range(decode)]
        for role, index in names:
            hello = Hello(
                f"{role}{index}", SCHEMA, f"{role}:{index}", role, index + 1, "cpu", "m", "m", "k", "e", BLOCK_SIZE,
                num_blocks, seats, 1 << 20, 256,
            )  # fmt: skip
            assert self.registry.hello(hello, 0.0) is None
            worker = SimulatedWorker(self.registry.workers[hello.sender], BlockPool(num_blocks))
            worker.pool.index.open_journal()
            self.workers[hello.sender] = worker

    def ask_turn(self, said: list[int], turn: Turn, answered: Callable[[list[int]], None]) -> None:
        prompt, answer = said + self.ids(turn.new), self.ids(turn.output)
        self.ask(prompt, answer, lambda: answered(prompt + answer))

    @property
    def works(self) -> bool:
        """Return False: what is done ends at some time, as an event."""
        return False

    def work(self) -> None:
        while self.waiting and (route := self.route(self.waiting[0])) is not None:
            self.launch(self.waiting.popleft(), route)
        assert self.events or not self.waiting

    def ask(self, prompt: list[int], answer: list[int], ended: Callable[[], None] = lambda: None) -> None:
        prefix = PromptPrefix(prompt, "", BLOCK_SIZE)
        request = SimulatedRequest(prompt, answer, ended, prefix, self.now)
        request.keys = tuple(full_keys(request.text, "", BLOCK_SIZE))
        self.waiting.append(request)

    def route(self, request: SimulatedRequest) -> Route | None:
        registered = list(self.registry.workers.values())
        if not self.by_cache:
            return next_route([one.load for one in registered], "auto", len(request.prompt))
        while request.prefix.grow([one.prefixes for one in registered]):
            pass
        loads = [one.load_with(request.prefix.found(one.prefixes)) for one in registered]
        return next_route(loads, "auto", len(request.prompt))

    def launch(self, request: SimulatedRequest, route: Route) -> None:
        """Send a request to its workers. Its prompt counts as cached as far as it is when it arrives there."""
        self.prompts += len(request.prompt)
        full = request.keys[: len(request.prompt) // BLOCK_SIZE]
        best = max(len(worker.hit(full)) for worker in self.workers.values())
        self.oracle += min(best * BLOCK_SIZE, len(request.prompt) - 1)
        for load in route.workers:
            worker = self.workers[load.incarnation]
            worker.registered.in_flight += 1
            worker.registered.seat(EVERYBODY, 1)
        worker = self.workers[route.prefill.incarnation]
        request.cached = worker.admit(request)
        request.uncomputed = max(0, len(request.prompt) - route.prefill.found)
        worker.registered.owe(EVERYBODY, request.uncomputed, int(request.uncomputed > 0))
        self.recent.add(worker.incarnation, request.uncomputed, self.now)
        missing = len(request.prompt) - request.cached
        self.cached += request.cached
        worker.computed += missing
        slower = 1 if route.is_pair else INTERLEAVED
        worker.busy_until = max(self.now, worker.busy_until) + slower * missing / PROMPT_RATE
        for load in route.workers[1:]:
            self.workers[load.incarnation].admit(request)
        self.at(worker.busy_until - self.now, lambda: self.prompt_done(request, route))

    def prompt_done(self, request: SimulatedRequest, route: Route) -> None:
        if request.cached:
            self.later_waits.append(self.now - request.arrived)
        worker = self.workers[route.prefill.incarnation]
        worker.registered.owe(EVERYBODY, -request.uncomputed, -int(request.uncomputed > 0))
        for incarnation, phase in route.phases.items():
            holder = self.workers[incarnation]
            holder.register(request, len(request.prompt))
            if phase == PREFILL:
                holder.release(request)
            holder.tell()
        decoder = self.decoder_of(route)
        decoder.running += 1
        seconds = len(request.answer) * TOKEN_SECONDS * (1 + BESIDE * decoder.running)
        self.at(seconds, lambda: self.end(request, route))

    def decoder_of(self, route: Route) -> SimulatedWorker:
        return self.workers[route.decode.incarnation]

    def end(self, request: SimulatedRequest, route: Route) -> None:
        decoder = self.decoder_of(route)
        decoder.running -= 1
        decoder.generated += len(request.answer)
        decoder.register(request, len(request.text) - 1)
        decoder.release(request)
        decoder.tell()
        for load in route.workers:
            registered = self.workers[load.incarnation].registered
            registered.in_flight -= 1
            registered.seat(EVERYBODY, -1)
        self.recent.add(decoder.incarnation, len(request.answer), self.now)
        request.ended()

    def loads(self, role: str) -> list[int]:
        """Return the tokens that each worker of a role computed and generated."""
        return [one.computed + one.generated for one in self.workers.values() if one.registered.role == role]

    def skew(self, role: str) -> float:
        """Return the load of the most loaded worker of a role over the even share."""
        each = self.loads(role)
        return max(each) * len(each) / sum(each)
