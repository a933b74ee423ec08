# SPDX-License-Identifier: Apache-2.0
"""Messages about models of several stages (docs/decisions/051): items of streams between workers, and tasks of workers
that compute a node without tokens.

A *run* is one client request through a graph; its id is that of the request of its first stage. Each stage has a
request of its own, with attempts as any other. `edge` is a connection's name, as `runtime/stages/graph/graph.py` spells
it.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Subscribe:
    """From consumer to producer worker: send me the items of this edge from `next_index` on that are meant for one of
    my `walks`. `request_id` and `attempt` are those of my stage's request. The proxy gave `secret` to all workers of
    the run. Repeated as long as items may come: a consumer that is silent for the time of a lease loses its
    subscription. A later attempt of the stage replaces earlier ones. All items before `consumed` are consumed; those
    from there to `next_index` are here. `damaged` are items, each [index, epoch], that did
    not arrive as they were sent: they are needed in other blocks."""

    sender: str
    receiver: str
    run: str
    edge: str
    secret: str = field(repr=False)
    request_id: str
    attempt: int
    next_index: int = 0
    walks: list[str] = field(default_factory=list)
    damaged: list[list[int]] = field(default_factory=list)
    consumed: int = 0


@dataclass(frozen=True, slots=True)
class Subscribed:
    """From producer to consumer worker: the answer to Subscribe. `pool` says how to read the blocks that hold items
    (the connector's descriptor). `reason` is set when refused. `first_index` is the first item that this worker makes:
    items before it come from another producer of the edge. It is None while the run has not come to this worker. From
    `handed_over_at` on, again another producer makes the items; None: this one makes the rest."""

    sender: str
    receiver: str
    run: str
    edge: str
    pool: dict[str, Any] | None = None
    reason: str | None = None
    first_index: int | None = None
    handed_over_at: int | None = None


@dataclass(frozen=True, slots=True)
class StreamItem:
    """From producer to consumer worker: item `index` of an edge lies in these blocks of my stream memory.

    An index stands for the same positions whichever worker or attempt makes the item, so a copy that comes again is
    dropped. `walk` is the consumer's walk that the item is meant for, "" for any. The item is an array of `shape` and
    `dtype`, its bytes lie at the beginning of the blocks in order, the rest of the last block is zero. `slot`, `epoch`
    and `digests` are as in ChunkReady, a digest for each block.
    """

    sender: str
    receiver: str
    run: str
    edge: str
    attempt: int
    index: int
    walk: str
    shape: list[int]
    dtype: str
    epoch: int
    slot: int
    block_ids: list[int]
    digests: list[int]


@dataclass(frozen=True, slots=True)
class StreamAck:
    """From consumer to producer worker: these items are here and verified: release their blocks. All items before
    `next_index` are consumed: the producer may be that much further ahead. `attempt` is that of the Subscribe. Repeated
    while items are missing, since an acknowledgement may be lost."""

    sender: str
    receiver: str
    run: str
    edge: str
    attempt: int
    taken: list[int]
    next_index: int


@dataclass(frozen=True, slots=True)
class StreamMark:
    """From producer to consumer worker: items from `index` on are for `walk` of the consumer, or for a later one. Sent
    to every subscriber, also to those that do not compute that walk: it makes the items before it ready (E10)."""

    sender: str
    receiver: str
    run: str
    edge: str
    attempt: int
    index: int
    walk: str


@dataclass(frozen=True, slots=True)
class ProducerDone:
    """From producer to consumer worker: the edge has no items from `last_index` on (E12)."""

    sender: str
    receiver: str
    run: str
    edge: str
    attempt: int
    last_index: int


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """From consumer to producer worker: this attempt of my stage wants no more items of the edge; nor will a later one
    if the stage has `finished`."""

    sender: str
    receiver: str
    run: str
    edge: str
    attempt: int
    finished: bool = False


@dataclass(frozen=True, slots=True)
class Inputs:
    """From proxy to consumer worker: the items of this edge come from these workers now, each [incarnation, peer
    endpoint], since a producer was replaced (E6)."""

    sender: str
    receiver: str
    request_id: str
    attempt: int
    edge: str
    producers: list[list[str]]


@dataclass(frozen=True, slots=True)
class Starved:
    """From consumer worker to proxy: `lost`, a producer of this edge, is gone or refuses, and items from `next_index`
    on are missing. Answered by Inputs once another worker makes them."""

    sender: str
    receiver: str
    request_id: str
    attempt: int
    edge: str
    next_index: int
    lost: str


@dataclass(frozen=True, slots=True)
class PassDone:
    """From worker to proxy: a partition has had passes (E5), of which the last ran under `walk`. Of a stage without
    tokens they are so many in this attempt (`passes`). `produced` and `token_counts` are by stream: indices so far, and
    tokens by the size of the token axis, those of inputs too. `next_index` is by stream of the inputs, recorded after
    the items were consumed (E9); `walks` are the tracked walks of consumers. `done`: the partition ends."""

    sender: str
    receiver: str
    request_id: str
    attempt: int
    node: str
    walk: str
    produced: dict[str, Any] = field(default_factory=dict)
    token_counts: dict[str, Any] = field(default_factory=dict)
    next_index: dict[str, Any] = field(default_factory=dict)
    walks: dict[str, Any] = field(default_factory=dict)
    done: bool = False
    passes: int = 0


@dataclass(frozen=True, slots=True)
class NodeTask:
    """From proxy to worker: compute a node that makes no tokens: of the bytes in `data`, or of the items of its input
    edges. `graph` is as in Submit. Outputs before `delivered` are with the client already and need not be sent again.
    Tasks with another `cache_salt` share nothing that is kept of `data`. The rest is as in Submit."""

    sender: str
    receiver: str
    request_id: str
    attempt: int
    node: str
    data: bytes | None = None
    options: dict[str, Any] = field(default_factory=dict)
    graph: dict[str, Any] | None = None
    delivered: int = 0
    priority: int = 0
    deadline: float | None = None
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class NodeOutput:
    """From worker to proxy: output number `index` of a node: `kind` "text" is UTF-8, "audio" is PCM of 16 bits,
    little-endian, one channel, at `sample_rate`. The `final` one, which may be empty, ends the request. `consumed` is
    the number of tokens, by the size of their axis, that went into the outputs so far."""

    sender: str
    receiver: str
    request_id: str
    attempt: int
    index: int
    kind: str
    data: bytes
    final: bool = False
    sample_rate: int | None = None
    consumed: int = 0
    queue_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """From proxy to worker: the run has ended; let go of every item that is kept for it. Unknown runs are no error."""

    sender: str
    receiver: str
    run: str


@dataclass(frozen=True, slots=True)
class Unread:
    """From proxy to producer worker: the stage that reads this edge has ended; keep none of its items. An attempt that
    is sent later says itself which edges are read. Unknown edges are no error."""

    sender: str
    receiver: str
    run: str
    edge: str
