# SPDX-License-Identifier: Apache-2.0
"""Messages by which workers register with a proxy, and stay registered."""

from dataclasses import dataclass, field

from pontil.runtime.foundation.value import value

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Hello:
    """From worker to proxy: introduce myself: what I run and how much of it I can hold.

    Workers with different `kernels` may round differently, and workers with different `grammars` (the grammar library)
    may mask differently; None: not said. `kv_cache_dtype` is `auto` where it is `dtype`. A worker that is `draining`
    gets nothing new. `embedding_size` is the length of its vectors, for one that embeds texts.
    `node` is the stage of a model of several stages that it computes. `revision` is the operator's name of what it
    serves during an upgrade, with the `tokenizer_digest` of its files; `version` is that of pontil. `adapters` has the
    digests of the adapters that it has begun with, by their names, and `invocations` the tokens that activate some of
    them; it `loads_adapters` while it runs, if it does.
    `registration` grows whenever the worker has let go of a proxy and its requests, of which it heard nothing, or of a
    connection on which it had said Hello. `sender`, `schema`, `name` and `pid` keep name and type in every version:
    they are needed to refuse a worker of another version.
    """

    sender: str
    schema: int
    name: str
    role: str
    pid: int
    device: str
    model: str
    model_fingerprint: str
    kv_fingerprint: str
    peer_endpoint: str
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_model_len: int
    max_num_batched_tokens: int
    kernels: str | None = None
    dtype: str | None = None
    draining: bool = False
    grammars: str | None = None
    kv_cache_dtype: str | None = None
    embedding_size: int | None = None
    node: str | None = None
    revision: str | None = None
    version: str | None = None
    registration: int = 0
    tokenizer_digest: str | None = None
    adapters: dict[str, str] = field(default_factory=dict)
    loads_adapters: bool = False
    invocations: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Welcome:
    """From proxy to worker: registered; the sender is the proxy incarnation that now owns your requests. `role` and
    `draining` are the values that the proxy has registered; None: not said. Messages that the worker sent before it
    changed them were handled before this one. `steps`: the proxy accepts Step messages instead of the Tokens of each
    sequence. `prefixes`: it wants to be told which prefixes the worker has cached. `times`: it accepts AttemptTimes.
    `leases`: it keeps a book of leases. `adapters`: it accepts an AdapterState. `step_logits`: it reads a Step's
    `top_logits`."""

    sender: str
    receiver: str
    steps: bool = False
    role: str | None = None
    draining: bool = False
    prefixes: bool = False
    times: bool = False
    leases: bool = False
    adapters: bool = False
    step_logits: bool = False


@dataclass(frozen=True, slots=True)
class RoleChange:
    """From worker to proxy: prefer me in this role from now on, and send me nothing new where I am `draining`. Requests
    that I have stay with me. Answered by a Welcome that says the same."""

    sender: str
    receiver: str
    role: str
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """From proxy to worker: not registered, for this reason."""

    sender: str
    receiver: str
    reason: str


@value(frozen=True, slots=True)
class Heartbeat:
    """From worker to proxy: alive, with this load. `counters` only grow within one incarnation, `gauges` are as they
    are now. With several proxies `others` is what the other ones have here: `proxies` of them, `in_flight` requests,
    choices `taken`, and prompt tokens `uncomputed`. `lost_peers` are the prefill workers of which the worker, to pull
    from them, hears nothing now."""

    sender: str
    receiver: str
    running: int
    waiting: int
    free_blocks: int
    step: int
    counters: dict[str, int] = field(default_factory=dict)
    gauges: dict[str, int] | None = None
    others: dict[str, int] | None = None
    lost_peers: list[str] = field(default_factory=list)


@value(frozen=True, slots=True)
class StillHere:
    """From proxy to worker: the answer to a Heartbeat, so that a worker notices that the proxy is gone. With another
    sender than the one that it is registered with, it lets go of that one's requests and says Hello again."""

    sender: str
    receiver: str


@dataclass(frozen=True, slots=True)
class Goodbye:
    """From worker to proxy: I am leaving; send me nothing more. `drained`: you had confirmed before that I take nothing
    new, and none of your requests is left here, so nothing breaks when I end. `for_good`: no other process comes in my
    place."""

    sender: str
    receiver: str
    drained: bool = False
    for_good: bool = False


@value(frozen=True, slots=True)
class PrefixDelta:
    """From worker to proxy: changes of my prefix cache. `added` and `removed` are keys of blocks, the first 8 bytes of
    each, one behind the other. `number` counts the messages from 0; with number 0 everything told before is void, and
    all that is cached follows."""

    sender: str
    receiver: str
    number: int
    added: bytes = b""
    removed: bytes = b""


@dataclass(frozen=True, slots=True)
class PrefixRequest:
    """From proxy to worker: I have missed a PrefixDelta; begin again with number 0."""

    sender: str
    receiver: str
