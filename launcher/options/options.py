# SPDX-License-Identifier: Apache-2.0
"""All options of a launch, and the one place that reads the environment.

What proxies and workers are told is declared with their configuration (runtime/config/), the rest here. sources.py says
which source wins.
"""

import os
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pontil.launcher.host.device_list import DeviceItem
from pontil.launcher.options.environment import LaunchEnvironment
from pontil.launcher.options.kv_tier_list import TierItem, kv_tiers
from pontil.launcher.options.parsers import devices, endpoint, endpoints, meeting_address, model_names
from pontil.launcher.options.sources import Setting, settle
from pontil.launcher.options.stage_list import PlacedStage, stages
from pontil.launcher.options.worker_roles import WORKER_ROLES
from pontil.runtime.config.declaration import ENGINE, MODEL, NETWORK, PROCESSES, SECTIONS, SUPERVISION, option
from pontil.runtime.config.proxy_config import ProxyOptions
from pontil.runtime.config.readers import choice, seconds, size, switch, text, whole
from pontil.runtime.config.worker_config import Deadlines, WorkerOptions

Role = Literal["all", "proxy", "prefill", "decode", "mixed", "embed", "rerank", "node"]
ROLES = ("all", "proxy", *WORKER_ROLES)
# The workers whose devices may have sequences of their own.
NONE, ALL = "none", "all"
DATA_PARALLEL = (NONE, "prefill", "decode", ALL)
NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class ModelNames:
    """The models, and what clients call them."""

    model: tuple[str, ...] = option(
        MODEL,
        ("smollm2-135m-instruct",),
        "A built-in model's name, a model directory or a GGUF file; repeated for several models.",
        model_names,
        "NAME|PATH",
    )
    models: str | None = option(
        MODEL, None, "TOML file with a table for each of several models, in place of --model.", text, "FILE"
    )
    served_model_name: str | None = option(MODEL, None, "What clients call the model (default: its own name).", text)
    embedding_model: str | None = option(
        MODEL,
        None,
        "The model of workers that embed texts: a built-in one's name or a model (default: "
        "all-minilm-l6-v2 if there are such workers).",
        text,
        "NAME|PATH",
    )
    served_embedding_model_name: str | None = option(
        MODEL, None, "What clients call that model (default: its own name).", text
    )
    reranking_model: str | None = option(
        MODEL,
        None,
        "The model of workers that score how well a text answers a query: a model directory or a GGUF file.",
        text,
        "PATH",
    )
    served_reranking_model_name: str | None = option(
        MODEL, None, "What clients call that model (default: its own name).", text
    )


@dataclass(frozen=True, kw_only=True)
class PlacementOptions:
    """The processes, and where they run."""

    role: Role = option(
        PROCESSES,
        "all",
        "Which processes run here; mixed is one worker for both phases.",
        choice(*ROLES),
        "|".join(ROLES),
    )
    on: Literal["host", "ray"] = option(
        PROCESSES,
        "host",
        "Where workers run: on this host, or each on the node that a Ray cluster finds for it.",
        choice("host", "ray"),
        "host|ray",
    )
    ray_address: str | None = option(
        PROCESSES,
        None,
        "The Ray cluster's head (default: RAY_ADDRESS, else the cluster that this host is in).",
        text,
        "HOST:PORT",
    )
    prefill: tuple[DeviceItem, ...] | None = option(
        PROCESSES,
        None,
        "Prefill workers, one per item: 0 or cuda:0, 0+1, cpu, cpu:0-3, cpu*2; none for none.",
        devices,
        "LIST",
    )
    decode: tuple[DeviceItem, ...] | None = option(PROCESSES, None, "Decode workers, in the same way.", devices, "LIST")
    mixed: tuple[DeviceItem, ...] | None = option(
        PROCESSES, None, "Workers for both phases, in the same way; with --role mixed.", devices, "LIST"
    )
    data_parallel_attention: Literal["none", "prefill", "decode", "all"] = option(
        PROCESSES,
        "none",
        "Workers of several devices of which each has its own sequences, and whole weights but for its share of the "
        "experts; same bits.",
        choice(*DATA_PARALLEL),
        "|".join(DATA_PARALLEL),
    )
    embed: tuple[DeviceItem, ...] | None = option(
        PROCESSES, None, "Workers that embed texts, in the same way (default: none).", devices, "LIST"
    )
    rerank: tuple[DeviceItem, ...] | None = option(
        PROCESSES, None, "Workers that score pairs of texts, in the same way (default: none).", devices, "LIST"
    )
    placement: str | None = option(
        PROCESSES,
        None,
        'TOML file with the devices of each stage of a model of several, like talker.decode = "2".',
        text,
        "FILE",
    )
    place: tuple[PlacedStage, ...] = option(
        PROCESSES,
        (),
        "Devices of stages, over those of the file: talker=2, or talker.prefill=0 and talker.decode=1.",
        stages,
        "STAGE=LIST",
    )
    node: str | None = option(
        PROCESSES,
        None,
        "The stage whose workers to start, with --role and --join (default: the first one).",
        text,
        "STAGE",
    )
    first_number: int = option(
        PROCESSES,
        0,
        "Number of the first worker of each kind, so that names differ between hosts: decode:3 with 3.",
        whole(0, 65535),
        "NUMBER",
    )
    nnodes: int = option(
        PROCESSES, 1, "Hosts that share one worker, each with a launch of its own.", whole(1, 64), "COUNT"
    )
    node_rank: int = option(
        PROCESSES, 0, "Number of this host among those; that of its first rank is 0.", whole(0, 63), "NUMBER"
    )
    master_addr: str | None = option(
        PROCESSES,
        None,
        "Where the ranks of these hosts meet: an address of host 0 (port 29500 unless named).",
        meeting_address,
        "HOST[:PORT]",
    )
    proxies: int = option(
        PROCESSES,
        1,
        "Proxies that share the port; those for which --role prefill or decode starts workers.",
        whole(1, 16),
        "COUNT",
    )
    lend_cores: bool = option(
        PROCESSES, True, "Let a worker compute on the cores of another one that has nothing to do.", switch
    )
    share_devices: bool = option(PROCESSES, False, "Allow two workers on one core or GPU.", switch)
    hold: bool = option(PROCESSES, False, "Workers that join a proxy get no requests before `pontil undrain`.", switch)


@dataclass(frozen=True, kw_only=True)
class LinkOptions:
    """The ways in which processes and clients reach each other, and their keys."""

    http: int | None = option(
        NETWORK,
        None,
        "With --role prefill or decode: port of an endpoint of their own, in place of --port, for "
        "routers of others (kv_transfer_params).",
        whole(0, 65535),
        "PORT",
    )
    control: str | None = option(
        NETWORK,
        None,
        "Where workers register with the proxy (default: a socket in the run directory).",
        endpoint,
        "ENDPOINT",
    )
    join: str | None = option(
        NETWORK,
        None,
        "Start workers only, for the proxies whose --control this is (prefill, decode: this host's).",
        endpoints,
        "ENDPOINT[,ENDPOINT]",
    )
    api_keys: str | None = option(
        NETWORK, None, "File of the keys that clients must show: KEY or NAME=KEY, and limits.", text, "FILE"
    )
    admin_key: str | None = option(
        NETWORK, None, "File of the key that /admin/ asks for, from any machine.", text, "FILE"
    )
    keys: str | None = option(
        NETWORK, None, "Key file, the same on every host, that protects what crosses a network.", text, "FILE"
    )
    insecure: bool = option(
        NETWORK, False, "Let control and KV cross a network without keys; only on one you trust.", switch
    )
    otlp_headers: str | None = option(
        SUPERVISION, None, "File with headers for it, each line NAME: VALUE.", text, "FILE"
    )
    receipt_key: str | None = option(
        NETWORK, None, "Ed25519 key that signs receipts (default: one made once in the cache directory).", text, "FILE"
    )


@dataclass(frozen=True, kw_only=True)
class TierOptions:
    """The tiers below the KV cache."""

    kv_tier: tuple[TierItem, ...] = option(
        ENGINE,
        (),
        "Where each worker keeps prefixes that its KV cache evicts: memory:8GiB,disk:/path:64GiB, or one of them.",
        kv_tiers,
        "memory:SIZE,disk:PATH:SIZE",
    )


@dataclass(frozen=True, kw_only=True)
class SupervisionOptions:
    """The supervisor's own limits, and its logs."""

    log_format: Literal["text", "json"] = option(
        SUPERVISION, "text", "Log lines for people or for programs.", choice("text", "json"), "text|json"
    )
    log_dir: str | None = option(SUPERVISION, None, "Keep a log file of each process here too.", text, "FOLDER")
    log_size: int = option(SUPERVISION, 16 << 20, "Size at which a log file is put aside.", size, "SIZE")
    log_files: int = option(
        SUPERVISION, 5, "Log files put aside that are kept of each process.", whole(0, 1000), "COUNT"
    )
    start_timeout: float = option(
        SUPERVISION,
        600.0,
        "Longest time to ready of a process, not counting a worker's wait for its proxy.",
        seconds,
        "SECONDS",
    )
    busy_timeout: float = option(
        SUPERVISION, 30.0, "Longest time a process may compute without a sign of life or a step.", seconds, "SECONDS"
    )
    drain_timeout: float = option(
        SUPERVISION, 30.0, "Longest wait for requests to finish after SIGTERM.", seconds, "SECONDS"
    )
    restart_attempts: int = option(
        SUPERVISION, 5, "Restarts of one process within the window before it is given up.", whole(0, 1000), "COUNT"
    )
    restart_window: float = option(SUPERVISION, 120.0, "The window in which restarts are counted.", seconds, "SECONDS")
    restart_delay: float = option(SUPERVISION, 0.5, "Pause before the first restart; doubles.", seconds, "SECONDS")
    restart_max_delay: float = option(SUPERVISION, 10.0, "Longest pause before a restart.", seconds, "SECONDS")


@dataclass(frozen=True, kw_only=True)
class LaunchOptions(
    SupervisionOptions, TierOptions, Deadlines, WorkerOptions, LinkOptions, ProxyOptions, PlacementOptions, ModelNames
):
    """The options of one `launch`: sizes in bytes, times in seconds, None where the machine or the model decides. Those
    of several models are as many options, each of one (launcher/options/model_tables.py)."""

    @property
    def model_name(self) -> str:
        """The model, of options of one; the first of several."""
        return self.model[0]


# In the order in which they are shown.
OPTIONS: tuple[Field[Any], ...] = tuple(
    sorted(fields(LaunchOptions), key=lambda declaration: SECTIONS.index(declaration.metadata["section"]))
)


def flag_name(declaration: Field[Any]) -> str:
    return declaration.name.replace("_", "-")


def read_settings(
    given: Mapping[str, Any], config: Path | None = None, variables: Mapping[str, str] = NOTHING
) -> list[Setting]:
    """Return every option with its source: flags (`given`, by field name, absent ones None), the environment's
    `variables`, the configuration file. Raises OptionError."""
    return settle({flag_name(declaration): declaration for declaration in OPTIONS}, given, config, variables)


def read_options(
    given: Mapping[str, Any], config: Path | None = None, variables: Mapping[str, str] = NOTHING
) -> LaunchOptions:
    return LaunchOptions(**{setting.field: setting.value for setting in read_settings(given, config, variables)})


def read_environment() -> LaunchEnvironment:
    return LaunchEnvironment(dict(os.environ), os.getuid())
