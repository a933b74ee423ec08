# SPDX-License-Identifier: Apache-2.0
"""The options of a launch, each declared once, and the one place that reads the environment.

A field's type, default, help and reader make the flag, the key of the configuration file and the variable of the
environment (sources.py says which wins).
"""

import os
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pontil.launcher.config.environment import LaunchEnvironment
from pontil.launcher.config.kv_tier_list import TierItem, kv_tiers
from pontil.launcher.config.parsers import (
    Reader,
    choice,
    collector,
    devices,
    duration,
    endpoint,
    endpoints,
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
from pontil.launcher.config.sources import Setting, settle
from pontil.launcher.config.stage_list import PlacedStage, stages
from pontil.launcher.config.worker_roles import WORKER_ROLES
from pontil.launcher.host.device_list import DeviceItem
from pontil.runtime.foundation import connectors

Role = Literal["all", "proxy", "prefill", "decode", "mixed", "embed", "node"]
KV_REACHES = ", else ".join(connectors.CONNECTORS[name].reach for name in connectors.usable(on_gpu=True))
NOTHING: Mapping[str, str] = MappingProxyType({})


def flag(section: str, default: Any, meaning: str, read: Reader, metavar: str = "") -> Any:
    return field(
        default=default, metadata={"section": section, "help": meaning, "read": read, "metavar": metavar or "TEXT"}
    )


MODEL, PROCESSES, NETWORK = "Model", "Processes and devices", "Network"
ENGINE, SUPERVISION = "Engine", "Supervision"
ROLES = ("all", "proxy", *WORKER_ROLES)
DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_DTYPES = (*DTYPES, "int8", "fp8")
KERNELS = ("auto", "torch", "amx", "avx512bf16", "avx512", "avx2", "generic")
QUANTIZATIONS = ("none", "int8", "gguf")
CALL_PARSERS = (
    "auto", "hermes", "llama3_json", "llama4_pythonic", "mistral", "mistral_v11", "qwen3_coder", "glm45", "deepseek_v3",
    "deepseek_v31", "kimi_k2", "harmony", "none",
)  # fmt: skip
REASONING_PARSERS = ("auto", "think", "none")
FAIRNESS = ("key", "none")
POOLINGS = ("auto", "mean", "last", "cls")
LEVELS = ("debug", "info", "warning", "error")
# The most guesses of a draft model, unless --speculative-tokens says otherwise.
DRAFT_TOKENS = 8


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """The options of one `launch`: sizes in bytes, times in seconds, None where the machine or the model decides."""

    model: str = flag(
        MODEL, "smollm2-135m-instruct", "A built-in model's name, a model directory or a GGUF file.", text, "NAME|PATH"
    )
    served_model_name: str | None = flag(MODEL, None, "What clients call the model (default: its own name).", text)
    dtype: str = flag(MODEL, "auto", "Type of weights and activations.", choice(*DTYPES), "|".join(DTYPES))
    max_model_len: int | None = flag(MODEL, None, "Longest prompt plus answer, in tokens.", whole(1), "TOKENS")
    quantization: str = flag(
        MODEL, "none", "Weights below 16 bits on a CPU: int8, or as the GGUF file has them.", choice(*QUANTIZATIONS),
        "|".join(QUANTIZATIONS),
    )  # fmt: skip
    embedding_model: str | None = flag(
        MODEL, None, "The model of workers that embed texts: a built-in one's name or a model (default: "
        "all-minilm-l6-v2 if there are such workers).", text, "NAME|PATH",
    )  # fmt: skip
    served_embedding_model_name: str | None = flag(
        MODEL, None, "What clients call that model (default: its own name).", text
    )
    pooling: str = flag(
        MODEL, "auto", "How a vector is made of a text's tokens; auto: as the model's files say.", choice(*POOLINGS),
        "|".join(POOLINGS),
    )  # fmt: skip
    tool_call_parser: str = flag(
        MODEL, "auto", "How calls of tools are written in answers; auto: as the chat template writes them.",
        choice(*CALL_PARSERS), "|".join(CALL_PARSERS),
    )  # fmt: skip
    reasoning_parser: str = flag(
        MODEL, "auto", "Whether <think> … </think> is told apart; auto: where template or vocabulary have it.",
        choice(*REASONING_PARSERS), "|".join(REASONING_PARSERS),
    )  # fmt: skip
    role: Role = flag(
        PROCESSES, "all", "Which processes run here; mixed is one worker for both phases.", choice(*ROLES),
        "|".join(ROLES),
    )  # fmt: skip
    on: Literal["host", "ray"] = flag(
        PROCESSES, "host", "Where workers run: on this host, or each on the node that a Ray cluster finds for it.",
        choice("host", "ray"), "host|ray",
    )  # fmt: skip
    ray_address: str | None = flag(
        PROCESSES, None, "The Ray cluster's head (default: RAY_ADDRESS, else the cluster that this host is in).", text,
        "HOST:PORT",
    )  # fmt: skip
    prefill: tuple[DeviceItem, ...] | None = flag(
        PROCESSES, None, "Prefill workers, one per item: 0 or cuda:0, 0+1, cpu, cpu:0-3, cpu*2; none for none.",
        devices, "LIST",
    )  # fmt: skip
    decode: tuple[DeviceItem, ...] | None = flag(PROCESSES, None, "Decode workers, in the same way.", devices, "LIST")
    mixed: tuple[DeviceItem, ...] | None = flag(
        PROCESSES, None, "Workers for both phases, in the same way; with --role mixed.", devices, "LIST"
    )
    embed: tuple[DeviceItem, ...] | None = flag(
        PROCESSES, None, "Workers that embed texts, in the same way (default: none).", devices, "LIST"
    )
    placement: str | None = flag(
        PROCESSES, None, "TOML file with the devices of each stage of a model of several, like talker.decode = \"2\".",
        text, "FILE",
    )  # fmt: skip
    place: tuple[PlacedStage, ...] = flag(
        PROCESSES, (), "Devices of stages, over those of the file: talker=2, or talker.prefill=0 and talker.decode=1.",
        stages, "STAGE=LIST",
    )  # fmt: skip
    node: str | None = flag(
        PROCESSES, None, "The stage whose workers to start, with --role and --join (default: the first one).", text,
        "STAGE",
    )  # fmt: skip
    first_number: int = flag(
        PROCESSES, 0, "Number of the first worker of each kind, so that names differ between hosts: decode:3 with 3.",
        whole(0, 65535), "NUMBER",
    )  # fmt: skip
    revision: str | None = flag(
        PROCESSES, None, "A name for what these workers serve, other than that of workers that they replace.", text,
        "NAME",
    )  # fmt: skip
    proxies: int = flag(
        PROCESSES, 1, "Proxies that share the port; those for which --role prefill or decode starts workers.",
        whole(1, 16), "COUNT",
    )  # fmt: skip
    lend_cores: bool = flag(
        PROCESSES, True, "Let a worker compute on the cores of another one that has nothing to do.", switch
    )
    share_devices: bool = flag(PROCESSES, False, "Allow two workers on one core or GPU.", switch)
    host: str = flag(NETWORK, "127.0.0.1", "Address clients connect to.", text, "ADDRESS")
    port: int = flag(NETWORK, 8000, "Port clients connect to; 0 takes a free one.", whole(0, 65535), "PORT")
    http: int | None = flag(
        NETWORK, None, "With --role prefill or decode: port of an endpoint of their own, in place of --port, for "
        "routers of others (kv_transfer_params).", whole(0, 65535), "PORT",
    )  # fmt: skip
    allowed_hosts: tuple[str, ...] = flag(
        NETWORK, (), "Names by which clients without keys may call the server, beside localhost; * for any.", names,
        "LIST",
    )  # fmt: skip
    cors_origin: tuple[str, ...] = flag(
        NETWORK, (), "Origins whose pages may call the server from a browser, like https://app.example; * for any.",
        origins, "LIST|*",
    )  # fmt: skip
    max_body_size: int | None = flag(
        NETWORK, None, "Largest request, like 16MiB (default: what a full context needs, at most 8 MiB).", size, "SIZE"
    )
    response_store: str | None = flag(
        NETWORK, None, "Keep responses of /v1/responses in this SQLite file (default: for as long as the launch runs).",
        text, "FILE",
    )  # fmt: skip
    response_store_size: int = flag(
        NETWORK, 64 << 20, "Most that is kept of them, the latest; 0 keeps none.", size_or_none, "SIZE"
    )
    response_store_days: int = flag(
        NETWORK, 30, "How long a response is kept after its last use.", whole(1, 3650), "DAYS"
    )
    control: str | None = flag(
        NETWORK, None, "Where workers register with the proxy (default: a socket in the run directory).",
        endpoint, "ENDPOINT",
    )  # fmt: skip
    join: str | None = flag(
        NETWORK, None, "Start workers only, for the proxies whose --control this is (prefill, decode: this host's).",
        endpoints, "ENDPOINT[,ENDPOINT]",
    )  # fmt: skip
    api_keys: str | None = flag(
        NETWORK, None, "File of the keys that clients must show: KEY or NAME=KEY, and limits.", text, "FILE"
    )
    admin_key: str | None = flag(
        NETWORK, None, "File of the key that /admin/ asks for, from any machine.", text, "FILE"
    )
    fair_by: Literal["key", "none"] = flag(
        NETWORK, "key", "Whom requests that wait are served in turn by; none: in the order in which they came.",
        choice(*FAIRNESS), "|".join(FAIRNESS),
    )  # fmt: skip
    share_prefixes: bool = flag(
        NETWORK, False, "Let API keys find cached what others asked; faster, and tells one what another asked.", switch
    )
    strict_parameters: bool = flag(
        NETWORK, False, "Refuse request fields that have no effect, instead of naming them in a header.", switch
    )
    keys: str | None = flag(
        NETWORK, None, "Key file, the same on every host, that protects what crosses a network.", text, "FILE"
    )
    insecure: bool = flag(
        NETWORK, False, "Let control and KV cross a network without keys; only on one you trust.", switch
    )
    disagg: str = flag(
        ENGINE,
        "auto",
        "Whether prefill and decode are split; auto: not while prefill workers have too much to do.",
        choice("auto", "always", "never"),
        "auto|always|never",
    )
    routing: str = flag(
        ENGINE,
        "cache",
        "How workers are chosen: by what they have cached and by load, or by load alone.",
        choice("cache", "load"),
        "cache|load",
    )
    max_num_seqs: int = flag(ENGINE, 64, "Sequences a worker runs at once.", whole(1, 65536), "COUNT")
    max_num_batched_tokens: int = flag(ENGINE, 256, "Tokens a worker computes in one step.", whole(1), "TOKENS")
    max_interleaved_tokens: int | None = flag(
        ENGINE,
        None,
        "Prompt tokens computed in a step in which others decode (default: 64 on a CPU).",
        whole(1),
        "TOKENS",
    )
    block_size: int = flag(ENGINE, 16, "Tokens in one block of KV cache.", whole(1, 1024), "TOKENS")
    prefix_caching: bool = flag(
        ENGINE, True, "Keep computed prompts, so that those that begin alike are not computed again.", switch
    )
    keep_kv: bool = flag(
        ENGINE,
        True,
        "Keep the KV of a worker on a CPU over its death, so that the next process finds it cached.",
        switch,
    )
    speculative_tokens: int = flag(
        ENGINE, 0, "Most tokens guessed at a time; changes no answer, only its speed. With a draft model 0 stands for "
        f"{DRAFT_TOKENS}.", whole(0, 16), "COUNT",
    )  # fmt: skip
    speculative_model: str | None = flag(
        ENGINE, None, "What guesses: a smaller model with the same tokenizer, an EAGLE head, or mtp, a layer of "
        "the model's own; else guesses are what stood before.", text, "NAME|PATH|mtp",
    )  # fmt: skip
    kv_cache_memory: int | None = flag(ENGINE, None, "KV cache of each worker, like 2GiB or 512MB.", size, "SIZE")
    kv_tier: tuple[TierItem, ...] = flag(
        ENGINE, (), "Where each worker keeps prefixes that its KV cache evicts: memory:8GiB,disk:/path:64GiB, or "
        "one of them.", kv_tiers, "memory:SIZE,disk:PATH:SIZE",
    )  # fmt: skip
    gpu_memory_share: float = flag(
        ENGINE, 0.9, "Share of a GPU's memory that may be used, by KV cache whatever weights and steps leave of it.",
        number(0.05, 1.0), "SHARE",
    )  # fmt: skip
    kv_cache_dtype: str = flag(
        ENGINE, "auto", "Type of the KV cache; auto: as --dtype. int8, fp8: half of 16 bits.", choice(*KV_DTYPES),
        "|".join(KV_DTYPES),
    )  # fmt: skip
    kv_connector: str = flag(
        ENGINE, connectors.AUTO, f"What carries KV blocks; auto: {KV_REACHES}.", choice(*connectors.NAMES),
        "|".join(connectors.NAMES),
    )  # fmt: skip
    kv_handshake_timeout: float = flag(
        ENGINE, 5.0, "Longest wait for a prefill worker to answer a decode worker.", some_seconds, "SECONDS"
    )
    kv_lease: float = flag(
        ENGINE, 30.0, "How long handed-over KV blocks are kept without a renewal.", some_seconds, "SECONDS"
    )
    kv_stall_timeout: float = flag(
        ENGINE, 5.0, "Silence of a peer after which a transfer of KV blocks has failed.", some_seconds, "SECONDS"
    )
    kv_transfer_timeout: float = flag(
        ENGINE, 120.0, "Longest time from the reservation for a prompt to its last KV block.", some_seconds, "SECONDS"
    )
    stream_memory: int = flag(
        ENGINE, 256 << 20, "Memory of each worker for what it streams to the next stage of a model of several.", size,
        "SIZE",
    )  # fmt: skip
    kernels: str = flag(
        ENGINE, "auto", "What computes on a CPU: our kernels for an instruction set, or torch.", choice(*KERNELS),
        "auto|torch|SET",
    )  # fmt: skip
    deterministic: bool = flag(
        ENGINE, False, "Compute products on GPUs so that a row's bits know no batch, as on CPUs; slower.", switch
    )
    log_level: str = flag(SUPERVISION, "info", "Least severity that is logged.", choice(*LEVELS), "|".join(LEVELS))
    log_format: Literal["text", "json"] = flag(
        SUPERVISION, "text", "Log lines for people or for programs.", choice("text", "json"), "text|json"
    )
    log_dir: str | None = flag(SUPERVISION, None, "Keep a log file of each process here too.", text, "FOLDER")
    log_size: int = flag(SUPERVISION, 16 << 20, "Size at which a log file is put aside.", size, "SIZE")
    log_files: int = flag(SUPERVISION, 5, "Log files put aside that are kept of each process.", whole(0, 1000), "COUNT")
    otlp_traces_endpoint: str | None = flag(
        SUPERVISION, None, "Export a trace of every request to this OpenTelemetry collector, by OTLP over HTTP.",
        collector, "URL",
    )  # fmt: skip
    otlp_headers: str | None = flag(SUPERVISION, None, "File with headers for it, each line NAME: VALUE.", text, "FILE")
    otlp_traces_sample_rate: float = flag(
        SUPERVISION, 1.0, "Share of the requests that are traced, of those that come without a traceparent.",
        number(0.0, 1.0), "SHARE",
    )  # fmt: skip
    self_test: bool = flag(
        SUPERVISION, True, "Send one request through every pair of workers before serving is announced.", switch
    )
    start_timeout: float = flag(SUPERVISION, 600.0, "Longest time to ready of a process.", seconds, "SECONDS")
    busy_timeout: float = flag(
        SUPERVISION, 30.0, "Longest time a process may compute without a sign of life or a step.", seconds, "SECONDS"
    )
    usage_log: str | None = flag(
        SUPERVISION, None, "Keep the usage of every request in this SQLite file; `pontil usage` reads it.", text, "FILE"
    )
    usage_log_days: int | None = flag(
        SUPERVISION, None, "Remove requests from the usage log so many days after they arrived, but for their sums; by "
        "default all stay.", whole(1, 36_500), "DAYS",
    )  # fmt: skip
    slow_log: float | None = flag(
        SUPERVISION, None, "Log a line on each request that took so long, like 2s or 500ms, with its largest part.",
        duration, "SECONDS",
    )  # fmt: skip
    drain_timeout: float = flag(
        SUPERVISION, 30.0, "Longest wait for requests to finish after SIGTERM.", seconds, "SECONDS"
    )
    max_attempts: int = flag(
        SUPERVISION, 3, "Workers, one after the other, that a request may break before it is an error.", whole(1, 100),
        "COUNT",
    )  # fmt: skip
    first_byte_timeout: float = flag(
        SUPERVISION, 60.0, "Longest wait of a request for its first token, while its prompt is not being computed; "
        "who would wait longer is refused at once.", some_seconds, "SECONDS",
    )  # fmt: skip
    prefill_timeout: float = flag(
        SUPERVISION, 600.0, "Longest time to compute a prompt, from when it was given to a worker.", some_seconds,
        "SECONDS",
    )  # fmt: skip
    stream_idle_timeout: float = flag(
        SUPERVISION, 60.0, "Longest wait of a stream that has begun for its next token.", some_seconds, "SECONDS"
    )
    worker_ttl: float = flag(
        SUPERVISION, 15.0, "Silence after which the proxy takes a worker for dead.", some_seconds, "SECONDS"
    )
    failover_timeout: float = flag(
        SUPERVISION, 120.0, "Longest wait of a request for a worker to come back.", seconds, "SECONDS"
    )
    resume_window: float = flag(
        SUPERVISION, 60.0, "How long a stream that asked for it can be continued after its connection broke; 0: never.",
        seconds, "SECONDS",
    )  # fmt: skip
    restart_attempts: int = flag(
        SUPERVISION, 5, "Restarts of one process within the window before it is given up.", whole(0, 1000), "COUNT"
    )
    restart_window: float = flag(SUPERVISION, 120.0, "The window in which restarts are counted.", seconds, "SECONDS")
    restart_delay: float = flag(SUPERVISION, 0.5, "Pause before the first restart; doubles.", seconds, "SECONDS")
    restart_max_delay: float = flag(SUPERVISION, 10.0, "Longest pause before a restart.", seconds, "SECONDS")
    allow_chaos: bool = flag(
        SUPERVISION, False, "Let `pontil chaos` of this user kill, stop and slow this launch's processes; for trials.",
        switch,
    )  # fmt: skip


def flag_name(declared: Field[Any]) -> str:
    return declared.name.replace("_", "-")


def read_settings(
    given: Mapping[str, Any], config: Path | None = None, variables: Mapping[str, str] = NOTHING
) -> list[Setting]:
    """Return every option with its source: flags (`given`, by field name, absent ones None), the environment's
    `variables`, the configuration file. Raises OptionError."""
    return settle({flag_name(each): each for each in fields(LaunchOptions)}, given, config, variables)


def read_options(
    given: Mapping[str, Any], config: Path | None = None, variables: Mapping[str, str] = NOTHING
) -> LaunchOptions:
    return LaunchOptions(**{each.field: each.value for each in read_settings(given, config, variables)})


def read_environment() -> LaunchEnvironment:
    return LaunchEnvironment(dict(os.environ), os.getuid())
