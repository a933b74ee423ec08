# SPDX-License-Identifier: Apache-2.0
"""The plan: which processes a launch runs, where, and with which configuration. Nothing here has side effects."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pontil.launcher.config.options import LaunchOptions
from pontil.launcher.config.parsers import host_of
from pontil.launcher.config.plan_checks import (
    EMBED,
    WORKER_ROLES,
    check_deadlines,
    check_endpoints,
    check_exposure,
    check_join,
    check_lists,
    is_own,
)
from pontil.launcher.errors import OptionError
from pontil.launcher.host.devices import JOIN, DeviceItem, HostDevices, Placement, assign
from pontil.launcher.host.ports import address_towards
from pontil.launcher.version import VERSION
from pontil.runtime.foundation.number_ranges import spell

# Keys of a child's configuration that name a model.
MODEL_KEYS = ("model", "embedding_model")
EMBEDDING_MODEL = "all-minilm-l6-v2"
# The fields of runtime.config's Deadlines, each an option.
DEADLINES = ("first_byte_timeout", "kv_handshake_timeout", "kv_lease", "kv_stall_timeout", "kv_transfer_timeout")


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """The plan of one process. `config` holds the fields of runtime.config's WorkerConfig or ProxyConfig as JSON
    values. It may contain keys, so it is never shown whole."""

    name: str
    role: str
    device: str
    cores: tuple[int, ...]
    config: dict[str, Any] = field(repr=False)

    @property
    def is_proxy(self) -> bool:
        return self.role == "proxy"

    @property
    def ranks(self) -> int:
        """The number of processes that will share the model's tensors, one for each device."""
        return len(self.device.split(JOIN))

    @property
    def takes_commands(self) -> bool:
        return self.role != "prepare"

    @property
    def keeps_terminal(self) -> bool:
        """Return whether it may write to the launcher's terminal itself, alone there: a download shows its own
        progress."""
        return self.role == "prepare"

    @property
    def threads(self) -> int | None:
        """The number of threads that a math library may start; None leaves it to the library."""
        return len(self.cores) if self.role in WORKER_ROLES else None

    def with_keys(self, secret: str | None) -> "ChildPlan":
        return replace(self, config={**self.config, "keys": secret})

    def with_models(self, paths: Mapping[str, str]) -> "ChildPlan":
        named = {key: self.config[key] for key in MODEL_KEYS if self.config.get(key) is not None}
        return replace(self, config={**self.config, **{key: paths[name] for key, name in named.items()}})

    def describe(self) -> str:
        ranks = f"  {self.ranks} ranks" if self.ranks > 1 else ""
        return f"{self.name:<12} {self.device:<8} cores {spell(self.cores)}{ranks}"


@dataclass(frozen=True, slots=True)
class Topology:
    """Every process of one launch: `prepare` runs first, alone, and finds the model; then the children start. `served`
    is the model name that clients use."""

    prepare: ChildPlan
    children: tuple[ChildPlan, ...]
    control: str
    url: str | None
    served: str = ""

    def with_models(self, paths: Mapping[str, str]) -> "Topology":
        """Return the same plan with the names of models replaced by the paths where they were found."""
        return replace(self, children=tuple(child.with_models(paths) for child in self.children))

    def with_keys(self, secret: str | None) -> "Topology":
        """Return the same plan with the keys that protect its network, if it has any. The child that finds the model
        needs none."""
        return replace(self, children=tuple(child.with_keys(secret) for child in self.children))

    def with_clients(self, keys: Mapping[str, Any]) -> "Topology":
        """Return the same plan with the digests of the API keys that clients must send; only the proxy gets them."""
        children = (replace(one, config={**one.config, **keys}) if one.is_proxy else one for one in self.children)
        return replace(self, children=tuple(children))

    @property
    def asks_for_keys(self) -> bool:
        return any(child.config.get("callers") for child in self.children)


def plan(options: LaunchOptions, machine: HostDevices, run: Path, cache: Path) -> Topology:
    """Plan the whole topology. Raises OptionError for a combination of options that is impossible."""
    check_lists(options)
    check_join(options)
    check_deadlines(options)
    control = options.join or options.control or f"ipc://{run / 'control'}"
    check_exposure(options, control)
    workers = [] if options.role == "proxy" else plan_workers(options, machine, run, control)
    proxies = [] if options.join else [plan_proxy(options, machine, run, control)]
    check_endpoints([control, *(worker.config["peer_endpoint"] for worker in workers)])
    children = tuple(replace(child, config={**child.config, "cache_dir": str(cache)}) for child in proxies + workers)
    search = {
        "models": models_of(children),
        "cache_dir": str(cache),
        "log_level": options.log_level,
        "demands": plan_demands(options, workers, machine),
    }
    prepare = ChildPlan("prepare", "prepare", "cpu", machine.cores, search)
    url = None if options.join else f"http://{url_host(options.host)}:{options.port}"
    return Topology(prepare, children, control, url, served_name(options))


def models_of(children: Sequence[ChildPlan]) -> list[str]:
    """Return the models that these processes need, each once."""
    named = (child.config.get(key) for child in children for key in MODEL_KEYS)
    return list(dict.fromkeys(name for name in named if name is not None))


def plan_demands(
    options: LaunchOptions, workers: Sequence[ChildPlan], machine: HostDevices
) -> dict[str, dict[str, Any]]:
    """Return the memory demand of each model, which the child that finds the models compares with the available
    memory. Embedding models are small, and not counted."""
    generating = [worker for worker in workers if worker.role != EMBED]
    return {options.model: plan_demand(options, generating, machine)} if generating else {}


def plan_demand(options: LaunchOptions, workers: Sequence[ChildPlan], machine: HostDevices) -> dict[str, Any]:
    return {
        "dtype": options.dtype,
        "kv_cache_dtype": options.kv_cache_dtype,
        "quantization": options.quantization,
        "max_model_len": options.max_model_len,
        "kv_cache_memory": options.kv_cache_memory,
        "block_size": options.block_size,
        "workers": Counter(worker.device for worker in workers),
        "gpu_memory": {f"cuda:{gpu}": free for gpu, free in enumerate(machine.gpu_memory) if free is not None},
    }


def check_startable(topology: Topology) -> None:
    """Raise OptionError for a plan that is valid but cannot be started yet."""
    for child in topology.children:
        if child.ranks > 1:
            apart = child.device.replace(JOIN, ",")
            raise OptionError(
                f"{child.name} is planned over {child.device}, and tensor parallelism comes later: "
                f"give each worker one device (--{child.role} {apart} are {child.ranks} workers)."
            )


def plan_workers(options: LaunchOptions, machine: HostDevices, run: Path, control: str) -> list[ChildPlan]:
    lists = wanted_items(options, machine)
    items = [item for wanted in lists.values() for item in wanted]
    if not items:
        raise OptionError("No worker is left to start: give --prefill or --decode at least one device.")
    names = [f"{role}:{number}" for role, wanted in lists.items() for number in range(len(wanted))]
    placements = assign(items, machine, share=options.share_devices)
    return [
        plan_worker(options, name, placement, run, control) for name, placement in zip(names, placements, strict=True)
    ]


def wanted_items(options: LaunchOptions, machine: HostDevices) -> dict[str, tuple[DeviceItem, ...]]:
    """Return the device items of each role of this launch; a role without a list gets one worker on what suits the
    machine."""
    roles: tuple[str, ...] = ("prefill", "decode") if options.role == "all" else (options.role,)
    if options.embed is not None and EMBED not in roles:
        roles += (EMBED,)
    given: dict[str, tuple[DeviceItem, ...]] = {
        role: items for role in roles if (items := getattr(options, role)) is not None
    }
    taken = [item for items in given.values() for item in items]
    lists: dict[str, tuple[DeviceItem, ...]] = {}
    for role in roles:
        lists[role] = given[role] if role in given else (default_item(role, taken, machine, options.share_devices),)
        taken += lists[role]
    return lists


def default_item(role: str, taken: Sequence[DeviceItem], machine: HostDevices, share: bool) -> DeviceItem:
    """Choose a free GPU if there are GPUs, unless the rest of the launch runs on the CPU; else free cores."""
    if not machine.gpus or (taken and not any(item.gpus for item in taken)):
        return DeviceItem()
    free = [gpu for gpu in range(machine.gpus) if gpu not in {one for item in taken for one in item.gpus}]
    if not free and not share:
        raise OptionError(
            f"No GPU is left for a {role} worker (this machine has {machine.gpus}): use --role mixed (one worker for "
            f"both phases), --share-devices, or --{role} cpu."
        )
    return DeviceItem(gpus=(free[0] if free else 0,))


def plan_worker(options: LaunchOptions, name: str, placement: Placement, run: Path, control: str) -> ChildPlan:
    role = name.partition(":")[0]
    embeds = role == EMBED
    config = {
        "name": name,
        "role": role,
        "device": placement.device,
        "cores": list(placement.cores),
        "lent_cores": None if embeds else lent_cores(options, placement, run),
        "model": embedding_model(options) if embeds else options.model,
        "served_model_name": served_embedding_name(options) if embeds else served_name(options),
        "control": control,
        **meeting_point(options, name, run, control),
        "dtype": options.dtype,
        "kv_cache_dtype": options.kv_cache_dtype,
        # The limit of the model that generates is not that of the other one.
        "max_model_len": None if embeds and options.role != EMBED else options.max_model_len,
        "max_num_seqs": options.max_num_seqs,
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "max_interleaved_tokens": options.max_interleaved_tokens,
        "block_size": options.block_size,
        "prefix_caching": options.prefix_caching,
        "speculative_tokens": options.speculative_tokens,
        "kv_cache_memory": options.kv_cache_memory,
        "kv_connector": options.kv_connector,
        "deadlines": {name: getattr(options, name) for name in DEADLINES},
        "kernels": options.kernels,
        "quantization": options.quantization,
        "pooling": options.pooling,
        "log_level": options.log_level,
    }
    return ChildPlan(name, role, placement.device, placement.cores, config)


def lent_cores(options: LaunchOptions, placement: Placement, run: Path) -> str | None:
    """Return the file through which workers lend each other cores. A core can be lent only if it belongs to a single
    worker."""
    lent = options.lend_cores and not options.share_devices and placement.device == "cpu"
    return str(run / "cores") if lent else None


def meeting_point(options: LaunchOptions, name: str, run: Path, control: str) -> dict[str, str]:
    """Return the address at which other workers reach this one: a socket file, unless some of them may be on other
    hosts."""
    proxy = host_of(control)
    if proxy is None or is_own(proxy):
        return {"peer_endpoint": f"ipc://{run / name.replace(':', '-')}", "transfer_host": "127.0.0.1"}
    own = address_towards(proxy) if options.join else proxy
    return {"peer_endpoint": f"tcp://{url_host(own)}:0", "transfer_host": own}


def plan_proxy(options: LaunchOptions, machine: HostDevices, run: Path, control: str) -> ChildPlan:
    config = {
        "host": options.host,
        "port": options.port,
        "model": options.model,
        "served_model_name": served_name(options),
        "embedding_model": embedding_model(options),
        "served_embedding_model_name": served_embedding_name(options),
        "control": control,
        "version": VERSION,
        "disagg": options.disagg,
        "usage_log": options.usage_log and str(Path(options.usage_log).absolute()),
        "max_attempts": options.max_attempts,
        "first_byte_timeout": options.first_byte_timeout,
        "stream_idle_timeout": options.stream_idle_timeout,
        "prefill_timeout": options.prefill_timeout,
        "worker_ttl": options.worker_ttl,
        "failover_timeout": options.failover_timeout,
        "awaits_self_test": options.self_test,
        "in_flight_bodies": str(run / "in-flight-bodies"),
        "response_store": response_store(options, run),
        "response_store_size": options.response_store_size,
        "response_store_days": options.response_store_days,
        "max_body_bytes": options.max_body_size,
        "allowed_hosts": list(options.allowed_hosts),
        "callers": [],
        "admin": None,
        "allowances": [],
        "fair_by": options.fair_by,
        "share_prefixes": options.share_prefixes,
        "strict_parameters": options.strict_parameters,
        "cors_origins": list(options.cors_origin),
        "tool_call_parser": options.tool_call_parser,
        "reasoning_parser": options.reasoning_parser,
        "log_level": options.log_level,
    }
    return ChildPlan("proxy", "proxy", "cpu", machine.cores, config)


def response_store(options: LaunchOptions, run: Path) -> str | None:
    """Return the file in which responses are kept, if any are. One in the run directory goes with the launch."""
    if options.response_store_size == 0:
        return None
    return str(Path(options.response_store).absolute() if options.response_store else run / "responses.db")


def served_name(options: LaunchOptions) -> str:
    """Return the model name that clients use."""
    return options.served_model_name or own_name(options.model)


def own_name(model: str) -> str:
    """Return the name of a model: for a path its last part, without a file extension."""
    return Path(model).name.removesuffix(".gguf") or model


def embedding_model(options: LaunchOptions) -> str | None:
    """Return the embedding model of this launch; None for one without."""
    embeds = options.role == EMBED or bool(options.embed)
    return options.embedding_model or (EMBEDDING_MODEL if embeds else None)


def served_embedding_name(options: LaunchOptions) -> str | None:
    """Return the name by which clients ask for vectors, if they can."""
    model = embedding_model(options)
    return None if model is None else options.served_embedding_model_name or own_name(model)


def url_host(host: str) -> str:
    """Return the host as a client on this machine writes it: wildcard addresses are no destinations."""
    local = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    return f"[{local}]" if ":" in local and not local.startswith("[") else local
