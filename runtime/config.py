# SPDX-License-Identifier: Apache-2.0
"""The frozen configuration of each kind of process. The launcher builds it once, before the first fork."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from pontil.runtime.foundation.connectors import AUTO

WorkerRole = Literal["prefill", "decode", "mixed", "embed", "node"]


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Time limits of a handoff on a worker, in seconds. The first worker of a request to hear of it waits
    `first_byte_timeout` for the other one, as long as the proxy waits for the first token. A transfer has
    `kv_transfer_timeout`, counted anew from its reservation and from each block that was computed for it; a pull
    without a byte for `kv_stall_timeout` has failed. Blocks that are handed over are kept for `kv_lease`, which the
    decode worker renews. A prefill worker answers a decode worker within `kv_handshake_timeout`. A connection over a
    network on which nothing comes for `link_timeout` is taken for cut."""

    first_byte_timeout: float = 60.0
    kv_handshake_timeout: float = 5.0
    kv_lease: float = 30.0
    kv_stall_timeout: float = 5.0
    kv_transfer_timeout: float = 120.0
    link_timeout: float = 5.0

    @property
    def renew_every(self) -> float:
        """Seconds between two renewals of a lease: two of them may be lost before it runs out."""
        return self.kv_lease / 3


DEADLINES = Deadlines()


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The configuration of one worker process. Memory is in bytes, endpoints are zmq addresses. `transfer_host` is the
    address of this machine under which peers reach its KV blocks over TCP. `cache_dir` keeps data that is slow to
    derive; None keeps nothing. A worker of several processes has `ranks` of them; this one is `rank`, and rank 0 serves
    the others at `rank_endpoint`. `lent_cores` is the file through which the workers of a launch lend each other cores,
    if they do. `speculative_model` guesses tokens for `model`. `keys` is the system's secret (runtime/wire/keys.py),
    where it has one. `more_controls` are the endpoints of further proxies. `pooling` is for a worker that embeds.
    `deterministic` chooses products on a
    GPU whose rows' bits do not depend on the batch. In a model of several stages, `graph` is its name in
    runtime/graph/catalog.py and `node` the stage that this worker computes; items of its streams take at most
    `stream_memory`. Prefixes that the KV cache evicts are kept in `kv_tier_memory` bytes, and in `kv_tier_disk_size`
    bytes in a folder of this worker's under `kv_tier_disk`. `revision` is the operator's name of what the worker serves
    during an upgrade, `version` that of pontil. `kept_memory` are the descriptors of two files that outlive this
    process, of KV blocks and of their records (runtime/cache/kept_pool.py), if the launcher holds such; with `keep_kv`
    it does for a worker on a CPU. With `allow_chaos` the supervisor may cut the link over which KV blocks come, and
    stall all others."""

    name: str
    role: WorkerRole
    device: str
    cores: tuple[int, ...]
    model: str
    served_model_name: str
    control: str
    peer_endpoint: str
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 256
    max_interleaved_tokens: int | None = None
    block_size: int = 16
    prefix_caching: bool = True
    speculative_tokens: int = 0
    speculative_model: str | None = None
    kv_cache_memory: int | None = None
    kv_tier_memory: int = 0
    kv_tier_disk: str | None = None
    kv_tier_disk_size: int = 0
    gpu_memory_share: float = 0.9
    kv_connector: str = AUTO
    kernels: str = "auto"
    quantization: str = "none"
    deterministic: bool = False
    pooling: str = "auto"
    transfer_host: str = "127.0.0.1"
    log_level: str = "info"
    cache_dir: str | None = None
    lent_cores: str | None = None
    rank: int = 0
    ranks: int = 1
    rank_endpoint: str | None = None
    deadlines: Deadlines = DEADLINES
    keys: str | None = field(default=None, repr=False)
    graph: str | None = None
    node: str | None = None
    stream_memory: int = 256 << 20
    revision: str | None = None
    version: str | None = None
    keep_kv: bool = True
    kept_memory: tuple[int, int] | None = None
    allow_chaos: bool = False
    more_controls: tuple[str, ...] = ()

    @property
    def controls(self) -> tuple[str, ...]:
        """The endpoints of all proxies."""
        return (self.control, *self.more_controls)

    @property
    def model_path(self) -> Path:
        return Path(self.model)

    @property
    def drafts(self) -> bool:
        """Return whether a draft model or a draft layer may guess here: not in a worker of several processes."""
        return self.speculative_model is not None and self.speculative_tokens > 0 and self.ranks == 1

    @property
    def draft_model_path(self) -> Path | None:
        """The model that guesses for this worker's, if it may decode."""
        return Path(str(self.speculative_model)) if self.drafts and self.role in ("decode", "mixed") else None

    @property
    def cache_path(self) -> Path | None:
        return None if self.cache_dir is None else Path(self.cache_dir)


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """The configuration of the proxy process. Times are in seconds. `cache_dir` and `keys` as in WorkerConfig. Usage is
    kept in the file `usage_log`, where one is named, for `usage_log_days` or for good. With `awaits_self_test` the
    proxy is not ready before a request went through every pair of workers. `callers` maps names of clients to the
    SHA-256 of their key in hexadecimal, `admin` is that of the admin key; with neither, no key is needed. `allowances`
    maps names of clients to the limits in the key file, named as in runtime/proxy/rate_limits.py. Queued requests are
    served in turn by `fair_by`; callers find each other's cached prefixes only where they `share_prefixes`. The file
    `in_flight_bodies`, where one is named, records the bodies that are being read, for the next proxy should one of
    them kill this one; with `max_body_bytes` None the model's context decides. `allowed_hosts` are additional host
    names that clients may use while no key is needed. With `strict_parameters` requests may have no fields without
    effect. The parsers are named as in runtime/chat/dialect.py. Pages of `cors_origins` may read answers in a browser.
    Responses are kept in the file `response_store`, where one is named: at most `response_store_size` bytes, for
    `response_store_days`. Where there is an `embedding_model`, texts are embedded by it too, under its name
    `served_embedding_model_name`. `graph` names a model of several stages in runtime/graph/catalog.py. With `routing`
    by cache, workers that have a prompt's beginning are preferred. With `kv_transfers` other routers drive the workers
    (runtime/proxy/remote_kv.py). The proxy has a `name`, and a `number` among the `proxies` on one port, whose socket
    is the descriptor in `listeners`; they know of each other by files in `shared_folder`. Streams that may be continued
    are recorded in `resume_folder`, where one is named, for `resume_window` after their connection broke. Requests that
    took `slow_log` or longer are logged, where it is set. Traces go to the collector at `otlp_traces_endpoint`, where
    one is named, with the `trace_headers`; of the requests without a trace of their own, this share is sampled.
    `allow_chaos` is only shown."""

    host: str
    port: int
    model: str
    served_model_name: str
    control: str
    version: str
    disagg: Literal["auto", "always", "never"] = "auto"
    routing: Literal["cache", "load"] = "cache"
    usage_log: str | None = None
    usage_log_days: int | None = None
    first_byte_timeout: float = DEADLINES.first_byte_timeout
    stream_idle_timeout: float = 60.0
    prefill_timeout: float = 600.0
    link_timeout: float = DEADLINES.link_timeout
    worker_ttl: float = 15.0
    failover_timeout: float = 120.0
    max_attempts: int = 3
    max_body_bytes: int | None = None
    awaits_self_test: bool = False
    in_flight_bodies: str | None = None
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    log_level: str = "info"
    cache_dir: str | None = None
    keys: str | None = field(default=None, repr=False)
    allowed_hosts: tuple[str, ...] = ()
    callers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    admin: str | None = field(default=None, repr=False)
    allowances: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = ()
    fair_by: Literal["key", "none"] = "key"
    share_prefixes: bool = False
    response_store: str | None = None
    response_store_size: int = 64 << 20
    response_store_days: int = 30
    strict_parameters: bool = False
    cors_origins: tuple[str, ...] = ()
    embedding_model: str | None = None
    served_embedding_model_name: str | None = None
    graph: str | None = None
    kv_transfers: bool = False
    name: str = "proxy"
    number: int = 0
    proxies: int = 1
    listeners: tuple[int, ...] = ()
    shared_folder: str | None = None
    resume_folder: str | None = None
    resume_window: float = 60.0
    slow_log: float | None = None
    otlp_traces_endpoint: str | None = None
    trace_headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    otlp_traces_sample_rate: float = 1.0
    allow_chaos: bool = False

    @property
    def shared_path(self) -> Path | None:
        return None if self.shared_folder is None else Path(self.shared_folder)

    @property
    def resume_path(self) -> Path | None:
        return None if self.resume_folder is None else Path(self.resume_folder)

    @property
    def embedding_model_path(self) -> Path | None:
        return None if self.embedding_model is None else Path(self.embedding_model)

    @property
    def model_path(self) -> Path:
        return Path(self.model)

    @property
    def cache_path(self) -> Path | None:
        return None if self.cache_dir is None else Path(self.cache_dir)

    @property
    def in_flight_bodies_path(self) -> Path | None:
        return None if self.in_flight_bodies is None else Path(self.in_flight_bodies)

    @property
    def response_store_path(self) -> Path | None:
        return None if self.response_store is None else Path(self.response_store)


def worker_config(values: dict[str, Any]) -> WorkerConfig:
    """Return the configuration from its JSON form. An unknown or missing key raises TypeError: only the launcher writes
    it."""
    deadlines, kept = Deadlines(**values.get("deadlines", {})), values.get("kept_memory")
    made = {
        "cores": tuple(cast("list[int]", values["cores"])), "deadlines": deadlines,
        "kept_memory": None if kept is None else tuple(cast("list[int]", kept)),
        "more_controls": tuple(values.get("more_controls", ())),
    }  # fmt: skip
    return WorkerConfig(**{**values, **made})


def proxy_config(values: dict[str, Any]) -> ProxyConfig:
    callers = tuple((name, digest) for name, digest in values.get("callers", ()))
    allowances = tuple(
        (name, tuple((key, value) for key, value in each)) for name, each in values.get("allowances", ())
    )
    hosts = tuple(values.get("allowed_hosts", ()))
    origins = tuple(values.get("cors_origins", ()))
    headers = tuple((name, value) for name, value in values.get("trace_headers", ()))
    made = {
        "callers": callers, "allowances": allowances, "allowed_hosts": hosts, "cors_origins": origins,
        "trace_headers": headers, "listeners": tuple(values.get("listeners", ())),
    }  # fmt: skip
    return ProxyConfig(**{**values, **made})
