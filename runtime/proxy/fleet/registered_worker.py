# SPDX-License-Identifier: Apache-2.0
"""A worker as the proxy knows it."""

from dataclasses import dataclass, field, replace
from typing import Any, get_args

from pontil.runtime.config.worker_config import WorkerRole
from pontil.runtime.foundation.fair_share import FairShare
from pontil.runtime.foundation.seat_counts import SeatCounts
from pontil.runtime.foundation.staged_model import StagedModel
from pontil.runtime.proxy.fleet.worker_release import WorkerRelease
from pontil.runtime.proxy.routing.held_prefixes import HeldPrefixes
from pontil.runtime.proxy.routing.pace import FASTEST, WorkerPace
from pontil.runtime.proxy.routing.policy import NO_OTHERS, SPARE_SEATS, OtherLoad, WorkerLoad
from pontil.runtime.wire.messages import Hello
from pontil.runtime.wire.step_sizes import DECODE_GAUGES, PREFILL_GAUGES, step_seconds

# The least of each number. Block 0 is padding, so that one block holds nothing.
LEAST = {"block_size": 1, "num_blocks": 2, "max_num_seqs": 1, "max_model_len": 1, "max_num_batched_tokens": 1}
# No machine has more of anything.
MOST = 1 << 40
ROLES = frozenset(get_args(WorkerRole))
# The role of workers that compute a stage without tokens.
NODE = "node"


def wrong_numbers(message: Hello) -> str | None:
    """Return what no worker can have, or None."""
    for name, least in LEAST.items():
        if not least <= getattr(message, name) <= MOST:
            return f"{message.name} says {name} {getattr(message, name)}, which is at least {least}: start it anew"
    if message.embedding_size is not None and not 1 <= message.embedding_size <= MOST:
        return f"{message.name} says embedding_size {message.embedding_size}, which is at least 1: start it anew"
    if message.role not in ROLES:
        return f"{message.name} has the role {message.role!r:.40}, which is none of {', '.join(sorted(ROLES))}"
    return None


def wrong_stage(message: Hello, graph: StagedModel | None) -> str | None:
    """Return why a worker computes no stage of this proxy's model, or None."""
    if graph is None:
        if message.node is None and message.role != NODE:
            return None
        says = f"{message.name} computes a stage of a model of several, and the proxy's model has no stages"
        return f"{says}: start both with the same --model"
    if message.revision is not None:
        says = f"{message.name} has the revision {message.revision}, and {graph.name} has several stages"
        return f"{says}: leave --revision out, and upgrade all stages at once"
    names = ", ".join(graph.node_names)
    if message.node not in graph.node_names:
        has = "no stage" if message.node is None else f"the stage {message.node}"
        return f"{message.name} computes {has}, and the proxy's {graph.name} has {names}: start both alike"
    if graph.node(message.node).generates == (message.role == NODE):
        return f"{message.name} has the role {message.role}, which the stage {message.node} cannot have: start it anew"
    return None


# The roles of workers that embed texts or score pairs of them, with the option that names their model, and of those
# that compute a stage without tokens. They never change: no other worker can do this, and these can do nothing else.
TEXT_ROLES = {"embed": "--embedding-model", "rerank": "--reranking-model"}
FIXED = (*TEXT_ROLES, NODE)


@dataclass(slots=True)
class Contact:
    """The contact to a worker, which changes with each message. It is not `reachable` between a message that its socket
    did not take and the next one that is heard of it, `confirmed` once the supervisor's table has shown it, and
    `stated` once a heartbeat has told of its load and room. It was the `last` one if the worker said that it leaves for
    good. The worker was `drained` when it left: prompts that it computed lie with their decode workers, which tell if
    they do not. One that comes drained `is_proved` once it takes requests: until then it may be tried at a gate, and
    nothing that it computes is for anybody else."""

    last_heard: float
    reachable: bool = True
    confirmed: bool = False
    stated: bool = False
    last: bool = False
    drained: bool = False
    is_proved: bool = True


@dataclass(slots=True)
class RegisteredWorker:
    """One registered worker. `counters` and `gauges` are the last that it reported. It has yet to compute `uncomputed`
    prompt tokens, and to end `taken` choices: `seat_counts` and `prompt_counts` have its choices and its uncomputed
    prompts by caller. It serves requests of `group` only. `recent` tokens were given to it or made by it lately
    (runtime/proxy/dispatch/dispatcher.py), and it has this `pace` (runtime/proxy/balance/paces.py). It cannot pull from
    `lost_peers` now."""

    hello: Hello
    contact: Contact
    counters: dict[str, int] = field(default_factory=dict)
    gauges: dict[str, int] = field(default_factory=dict)
    in_flight: int = 0
    uncomputed: int = 0
    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    leaving: bool = False
    group: str | None = None
    prefixes: HeldPrefixes = field(default_factory=HeldPrefixes)
    recent: float = 0.0
    pace: WorkerPace = FASTEST
    others: OtherLoad = NO_OTHERS
    lost_peers: frozenset[str] = frozenset()
    seat_counts: SeatCounts = field(default_factory=SeatCounts)
    prompt_counts: SeatCounts = field(default_factory=SeatCounts)
    release: WorkerRelease = field(init=False)
    # Its load by the tokens found for a prompt, and by these with what a caller may have of others, until any field is
    # set: routing looks at all workers.
    loads: dict[int | tuple[int, int, bool], WorkerLoad] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        # A second Hello changes the role only.
        self.release = WorkerRelease.of(self.hello)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if loads := getattr(self, "loads", None):
            loads.clear()

    @property
    def taken(self) -> int:
        return self.seat_counts.taken

    def seat(self, share: FairShare, choices: int) -> None:
        """Count so many choices more of a caller, or fewer."""
        self.seat_counts.add(share, choices)
        self.loads.clear()

    def owe(self, share: FairShare, tokens: int, prompts: int) -> None:
        """Count so many tokens and prompts more of a caller that are to be computed, or fewer. What gives way is
        in nobody's."""
        self.prompt_counts.add(share, prompts)
        self.uncomputed += 0 if share.gives_way else tokens

    def step_seconds(self, *, with_prompts: bool) -> dict[float, float]:
        """Return the seconds of its steps, with prompts in them or without, by the fewest rows of their size."""
        return step_seconds(self.gauges, PREFILL_GAUGES if with_prompts else DECODE_GAUGES)

    @property
    def idle_seats(self) -> int:
        """The seats for more of what gives way, with a few that follow at once where one is free again."""
        return self.seats + SPARE_SEATS - self.others.taken - self.taken - self.seat_counts.lent

    @property
    def capacity(self) -> int:
        """Blocks that sequences can own: all but block 0, with which block tables are padded."""
        return max(0, self.hello.num_blocks - 1)

    @property
    def role(self) -> str:
        return self.hello.role

    @property
    def has_cache(self) -> bool:
        """True if it has KV blocks."""
        return self.role not in FIXED

    @property
    def seats(self) -> int:
        return self.hello.max_num_seqs

    @property
    def context(self) -> int:
        return min(self.hello.max_model_len, self.capacity * self.hello.block_size)

    @property
    def load(self) -> WorkerLoad:
        return self.load_with(0)

    def load_with(self, found: int) -> WorkerLoad:
        """Return its load, for a prompt of which it has so many tokens cached."""
        if (cached_load := self.loads.get(found)) is not None:
            return cached_load
        hello = self.hello
        load = self.loads[found] = WorkerLoad(
            hello.sender, hello.name, hello.role, hello.peer_endpoint, self.in_flight, self.free_blocks,
            self.seats, self.context, self.uncomputed, max(1, hello.max_num_batched_tokens), self.taken,
            found, int(self.pace.slowest * self.recent), self.others, self.prompt_counts.taken, self.lost_peers,
            pace=self.pace,
        )  # fmt: skip
        return load

    def load_for(self, load: WorkerLoad, share: FairShare, may_claim: bool = True) -> WorkerLoad:
        """Return its load with what a caller may have of others."""
        claimable = 0 if load.can_seat() or not may_claim else self.seat_counts.claimable(share, self.seats)
        without_prompts = may_claim and share.caller not in self.prompt_counts.held
        if not claimable and not without_prompts:
            return load
        if load is not self.loads.get(load.found):
            return replace(load, claimable=claimable, without_prompts=without_prompts)
        key = load.found, claimable, without_prompts
        if (cached_load := self.loads.get(key)) is None:
            cached_load = self.loads[key] = replace(load, claimable=claimable, without_prompts=without_prompts)
        return cached_load

    @property
    def shown_load(self) -> dict[str, int]:
        """The load that /admin/topology shows, with the requests of all proxies."""
        return {
            "in_flight": self.in_flight + self.others.in_flight,
            "running": self.running,
            "waiting": self.waiting,
            "free_blocks": self.free_blocks,
            "total_blocks": self.capacity,
            "seats": self.seats,
        }
