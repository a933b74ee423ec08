# SPDX-License-Identifier: Apache-2.0
"""The options and the frozen configuration of a proxy. The launcher builds it once, before the first fork."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pontil.runtime.config.declaration import ENGINE, MODEL, NETWORK, SUPERVISION, frozen, option
from pontil.runtime.config.readers import (
    choice,
    collector,
    duration,
    media_domains,
    names,
    number,
    origins,
    seconds,
    size,
    size_or_none,
    some_seconds,
    switch,
    text,
    whole,
)
from pontil.runtime.config.shared_options import SharedDeadlines, SharedOptions
from pontil.runtime.foundation.loopback import LOOPBACK

CALL_PARSERS = (
    "auto", "hermes", "llama3_json", "llama4_pythonic", "mistral", "mistral_v11", "qwen3_coder", "glm45", "deepseek_v3",
    "deepseek_v31", "kimi_k2", "harmony", "none",
)  # fmt: skip
REASONING_PARSERS = ("auto", "think", "none")
FAIRNESS = ("key", "none")


@dataclass(frozen=True, kw_only=True)
class ProxyOptions(SharedOptions, SharedDeadlines):
    """The options of every proxy."""

    tool_call_parser: str = option(
        MODEL,
        "auto",
        "How calls of tools are written in answers; auto: as the chat template writes them.",
        choice(*CALL_PARSERS),
        "|".join(CALL_PARSERS),
    )
    reasoning_parser: str = option(
        MODEL,
        "auto",
        "Whether <think> … </think> is told apart; auto: where template or vocabulary have it.",
        choice(*REASONING_PARSERS),
        "|".join(REASONING_PARSERS),
    )
    hide_end_token: bool = option(
        MODEL, False, "Leave the token that ends an answer out of its token_ids and logprobs too; it counts.", switch
    )
    host: str = option(NETWORK, LOOPBACK, "Address clients connect to.", text, "ADDRESS")
    port: int = option(NETWORK, 8000, "Port clients connect to; 0 takes a free one.", whole(0, 65535), "PORT")
    allowed_hosts: tuple[str, ...] = option(
        NETWORK,
        (),
        "Names by which clients without keys may call the server, beside localhost; * for any.",
        names,
        "LIST",
    )
    cors_origin: tuple[str, ...] = option(
        NETWORK,
        (),
        "Origins whose pages may call the server from a browser, like https://app.example; * for any.",
        origins,
        "LIST|*",
    )
    allowed_media_domains: tuple[str, ...] = option(
        NETWORK,
        (),
        "Hosts whose images requests may link to, like images.example,10.0.0.5:9000 (default: nothing is fetched).",
        media_domains,
        "LIST",
    )
    max_body_size: int | None = option(
        NETWORK, None, "Largest request, like 16MiB (default: what a full context needs, at most 8 MiB).", size, "SIZE"
    )
    response_store: str | None = option(
        NETWORK,
        None,
        "Keep responses of /v1/responses in this SQLite file (default: for as long as the launch runs).",
        text,
        "FILE",
    )
    response_store_size: int = option(
        NETWORK, 64 << 20, "Most that is kept of them, the latest; 0 keeps none.", size_or_none, "SIZE"
    )
    response_store_days: int = option(
        NETWORK, 30, "How long a response is kept after its last use.", whole(1, 3650), "DAYS"
    )
    fair_by: Literal["key", "none"] = option(
        NETWORK,
        "key",
        "Whom requests that wait are served in turn by; none: in the order in which they came.",
        choice(*FAIRNESS),
        "|".join(FAIRNESS),
    )
    share_prefixes: bool = option(
        NETWORK, False, "Let API keys find cached what others asked; faster, and tells one what another asked.", switch
    )
    strict_parameters: bool = option(
        NETWORK, False, "Refuse request fields that have no effect, instead of naming them in a header.", switch
    )
    model_memory: int | None = option(
        ENGINE,
        None,
        "Most memory that several models take at once: those used least lately sleep when another is asked for.",
        size,
        "SIZE",
    )
    disagg: Literal["auto", "always", "never"] = option(
        ENGINE,
        "auto",
        "Whether prefill and decode are split; auto: not while prefill workers have too much to do.",
        choice("auto", "always", "never"),
        "auto|always|never",
    )
    routing: Literal["cache", "load"] = option(
        ENGINE,
        "cache",
        "How workers are chosen: by what they have cached and by load, or by load alone.",
        choice("cache", "load"),
        "cache|load",
    )
    balance: Literal["none", "auto"] = option(
        ENGINE,
        "none",
        "Whether prefill and decode workers take each other's role as the load needs it.",
        choice("none", "auto"),
        "none|auto",
    )
    ttft_limit: float | None = option(
        ENGINE,
        None,
        "Milliseconds to the first token that the launch is to keep, for --balance, warnings and autoscaling.",
        number(0.001, 1e9),
        "MS",
    )
    tpot_limit: float | None = option(
        ENGINE, None, "Milliseconds for each token after the first that it is to keep.", number(0.001, 1e9), "MS"
    )
    profile: str | None = option(
        ENGINE,
        None,
        "Predict each request's times by this file of `pontil profile`, and show in /metrics how wrong that is.",
        text,
        "FILE",
    )
    stable_prompts: bool = option(
        ENGINE, True, "Keep known lines that agents change at every turn out of the beginning of prompts.", switch
    )
    otlp_traces_endpoint: str | None = option(
        SUPERVISION,
        None,
        "Export a trace of every request to this OpenTelemetry collector, by OTLP over HTTP.",
        collector,
        "URL",
    )
    otlp_traces_sample_rate: float = option(
        SUPERVISION,
        1.0,
        "Share of the requests that are traced, of those that come without a traceparent.",
        number(0.0, 1.0),
        "SHARE",
    )
    self_test: bool = option(
        SUPERVISION, True, "Send one request through every pair of workers before serving is announced.", switch
    )
    usage_log: str | None = option(
        SUPERVISION, None, "Keep the usage of every request in this SQLite file; `pontil usage` reads it.", text, "FILE"
    )
    usage_log_days: int | None = option(
        SUPERVISION,
        None,
        "Remove requests from the usage log so many days after they arrived, but for their sums; by default all stay.",
        whole(1, 36_500),
        "DAYS",
    )
    slow_log: float | None = option(
        SUPERVISION,
        None,
        "Log a line on each request that took so long, like 2s or 500ms, with its largest part.",
        duration,
        "SECONDS",
    )
    max_attempts: int = option(
        SUPERVISION,
        3,
        "Workers, one after the other, that a request may break before it is an error.",
        whole(1, 100),
        "COUNT",
    )
    prefill_timeout: float = option(
        SUPERVISION,
        600.0,
        "Longest time to compute a prompt, from when it was given to a worker.",
        some_seconds,
        "SECONDS",
    )
    stream_idle_timeout: float = option(
        SUPERVISION, 60.0, "Longest wait of a stream that has begun for its next token.", some_seconds, "SECONDS"
    )
    worker_ttl: float = option(
        SUPERVISION, 15.0, "Silence after which the proxy takes a worker for dead.", some_seconds, "SECONDS"
    )
    failover_timeout: float = option(
        SUPERVISION, 120.0, "Longest wait of a request for a worker to come back.", seconds, "SECONDS"
    )
    resume_window: float = option(
        SUPERVISION,
        60.0,
        "How long a stream that asked for it can be continued after its connection broke; 0: never.",
        seconds,
        "SECONDS",
    )


@dataclass(frozen=True, kw_only=True)
class FurtherModel:
    """A model beside the first one of a launch: its name for clients, its path, and how its chats are read."""

    name: str
    model: str
    tool_call_parser: str
    reasoning_parser: str
    hide_end_token: bool
    adapter: tuple[str, ...]

    @property
    def path(self) -> Path:
        return Path(self.model)

    @property
    def adapter_paths(self) -> dict[str, str]:
        """The directories of its adapters, by their names."""
        return {name: path for name, _, path in (pair.partition("=") for pair in self.adapter)}


@dataclass(frozen=True, kw_only=True)
class ProxyConfig(ProxyOptions):
    """The configuration of the proxy process. Times are in seconds. `cache_dir` and `keys` as in WorkerConfig. Usage is
    kept in the file `usage_log`, where one is named, for `usage_log_days` or for good. With `self_test` the
    proxy is not ready before a request went through every pair of workers. `callers` maps names of clients to the
    SHA-256 of their key in hexadecimal, `admin` is that of the admin key; with neither, no key is needed. `allowances`
    maps names of clients to the limits in the key file, named as in runtime/proxy/admission/rate_limits.py. Queued
    requests are served in turn by `fair_by`; callers find each other's cached prefixes only where they
    `share_prefixes`. The file
    `in_flight_bodies`, where one is named, records the bodies that are being read, for the next proxy should one of
    them kill this one; with `max_body_size` None the model's context decides. `allowed_hosts` are additional host
    names that clients may use while no key is needed. With `stable_prompts` lines that agents change get other places
    in prompts (http/openai/chat/changing_lines.py). With `strict_parameters` requests may have no fields without
    effect. The parsers are named as in runtime/chat/dialect.py. Pages of `cors_origin` may read answers in a browser.
    Images that requests link to are fetched from `allowed_media_domains`, and from nowhere else.
    Responses are kept in the file `response_store`, where one is named: at most `response_store_size` bytes, for
    `response_store_days`. Where there is an `embedding_model`, texts are embedded by it too, under its name
    `served_embedding_model_name`; and where there is a `reranking_model`, pairs of texts are scored by it, under its
    own. `further_models` generate beside the first one.
    `graph` names a model of several stages in runtime/stages/graph/catalog.py. With
    `routing` by cache, workers that have a prompt's beginning are preferred. With `kv_transfers` other routers drive
    the workers (runtime/proxy/requests/remote_kv.py). The proxy has a `name`, and a `number` among the `proxies` on one
    port, whose socket is the descriptor in `listeners`; they know of each other by files in `shared_folder`. Streams
    that may be continued are recorded in `resume_folder`, where one is named, for `resume_window` after their
    connection broke. Requests that took `slow_log` or longer are logged, where it is set. Traces go to the collector at
    `otlp_traces_endpoint`, where one is named, with the `trace_headers`; of the requests without a trace of their own,
    this share is sampled. Reasoning that is shown is signed with the `seal_key`, in hexadecimal; without one by a key
    of this process. Receipts are signed with the `receipt_key`, secret bytes of Ed25519 in hexadecimal; without one
    there are none. `allow_chaos` is only shown."""

    model: str
    served_model_name: str
    control: str
    version: str
    in_flight_bodies: str | None = None
    cache_dir: str | None = None
    keys: str | None = field(default=None, repr=False)
    callers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    admin: str | None = field(default=None, repr=False)
    allowances: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = ()
    embedding_model: str | None = None
    served_embedding_model_name: str | None = None
    reranking_model: str | None = None
    served_reranking_model_name: str | None = None
    further_models: tuple[FurtherModel, ...] = ()
    graph: str | None = None
    kv_transfers: bool = False
    name: str = "proxy"
    number: int = 0
    proxies: int = 1
    listeners: tuple[int, ...] = ()
    shared_folder: str | None = None
    resume_folder: str | None = None
    trace_headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    seal_key: str | None = field(default=None, repr=False)
    receipt_key: str | None = field(default=None, repr=False)

    @property
    def text_models(self) -> dict[str, str]:
        """The names of the models that embed or score texts, by the role of their workers."""
        names = {"embed": self.served_embedding_model_name, "rerank": self.served_reranking_model_name}
        return {role: name for role, name in names.items() if name is not None}

    @property
    def further_names(self) -> tuple[str, ...]:
        return tuple(model.name for model in self.further_models)

    @property
    def model_path(self) -> Path:
        return Path(self.model)

    @property
    def cache_path(self) -> Path | None:
        return None if self.cache_dir is None else Path(self.cache_dir)


def proxy_config(values: dict[str, Any]) -> ProxyConfig:
    """Return the configuration from its JSON form."""
    further = tuple(
        FurtherModel(**{name: frozen(value) for name, value in entry.items()})
        for entry in values.get("further_models", ())
    )
    return ProxyConfig(**{name: frozen(value) for name, value in values.items()} | {"further_models": further})
