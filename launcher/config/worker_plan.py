# SPDX-License-Identifier: Apache-2.0
"""The plan of a launch's workers: how many, on which devices, and with which configuration. Nothing here has side
effects."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pontil.launcher.config.addresses import is_own, url_host
from pontil.launcher.config.child_plan import ChildPlan, plan_ranks, rank_endpoint
from pontil.launcher.config.options import DRAFT_TOKENS, LaunchOptions
from pontil.launcher.config.parsers import host_of
from pontil.launcher.config.served_models import embedding_model, served_embedding_name, served_name
from pontil.launcher.config.worker_roles import EMBED, PREFILL
from pontil.launcher.errors import OptionError
from pontil.launcher.host.device_list import DeviceItem, RankDevice
from pontil.launcher.host.devices import CPU, HostDevices, Placement, assign
from pontil.launcher.host.ports import address_towards

# The fields of runtime.config's Deadlines, each an option.
DEADLINES = ("first_byte_timeout", "kv_handshake_timeout", "kv_lease", "kv_stall_timeout", "kv_transfer_timeout")


def plan_workers(options: LaunchOptions, machine: HostDevices, run: Path, control: str) -> list[ChildPlan]:
    lists = wanted_items(options, machine)
    items = [item for wanted in lists.values() for item in wanted]
    if not items:
        raise OptionError("No worker is left to start: give --prefill or --decode at least one device.")
    names = [f"{role}:{number}" for role, wanted in lists.items() for number in range(len(wanted))]
    placements = assign(items, machine, share=options.share_devices)
    return [plan_worker(options, name, ranks, run, control) for name, ranks in zip(names, placements, strict=True)]


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
    return DeviceItem((RankDevice(gpu=free[0] if free else 0),))


def plan_worker(options: LaunchOptions, name: str, ranks: Sequence[Placement], run: Path, control: str) -> ChildPlan:
    """Return the plan of a worker with a rank on each of these places."""
    role = name.partition(":")[0]
    embeds = role == EMBED
    if embeds and len(ranks) > 1:
        raise OptionError(
            f"{name} has {len(ranks)} devices joined by +, and an embedding model runs on one: use commas."
        )
    if len(ranks) > 1 and options.speculative_model is not None and role != PREFILL:
        raise OptionError(
            f"{name} has {len(ranks)} devices joined by +, and --speculative-model is for workers of one: use commas."
        )
    config = {
        "lent_cores": None if embeds else lent_cores(options, ranks, run),
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
        "speculative_tokens": speculative_tokens(options),
        "speculative_model": None if embeds else options.speculative_model,
        "kv_cache_memory": options.kv_cache_memory,
        "kv_connector": options.kv_connector,
        "deadlines": {name: getattr(options, name) for name in DEADLINES},
        "kernels": options.kernels,
        "quantization": options.quantization,
        "pooling": options.pooling,
        "log_level": options.log_level,
    }
    return plan_ranks(name, role, ranks, config, rank_endpoint(str(run), name))


def speculative_tokens(options: LaunchOptions) -> int:
    return options.speculative_tokens or (0 if options.speculative_model is None else DRAFT_TOKENS)


def lent_cores(options: LaunchOptions, ranks: Sequence[Placement], run: Path) -> str | None:
    """Return the file through which workers lend each other cores. A core can be lent only if it belongs to a single
    worker; and a rank of several, which the others wait for in each layer, neither lends nor borrows."""
    lent = options.lend_cores and not options.share_devices and [one.device for one in ranks] == [CPU]
    return str(run / "cores") if lent else None


def meeting_point(options: LaunchOptions, name: str, run: Path, control: str) -> dict[str, str]:
    """Return the address at which other workers reach this one: a socket file, unless some of them may be on other
    hosts."""
    proxy = host_of(control)
    if proxy is None or is_own(proxy):
        return {"peer_endpoint": f"ipc://{run / name.replace(':', '-')}", "transfer_host": "127.0.0.1"}
    own = address_towards(proxy) if options.join else proxy
    return {"peer_endpoint": f"tcp://{url_host(own)}:0", "transfer_host": own}


def plan_demands(
    options: LaunchOptions, workers: Sequence[ChildPlan], machine: HostDevices
) -> dict[str, dict[str, Any]]:
    """Return the memory demand of each model, which the child that finds the models compares with the available
    memory. Embedding models are small, and not counted."""
    generating = [worker for worker in workers if worker.role != EMBED]
    return {options.model: plan_demand(options, generating, machine)} if generating else {}


def plan_demand(options: LaunchOptions, workers: Sequence[ChildPlan], machine: HostDevices) -> dict[str, Any]:
    draft = options.speculative_model
    drafting = {"speculative_model": draft, "drafting": [worker.role != PREFILL for worker in workers]} if draft else {}
    return {
        **drafting,
        "dtype": options.dtype,
        "kv_cache_dtype": options.kv_cache_dtype,
        "quantization": options.quantization,
        "max_model_len": options.max_model_len,
        "kv_cache_memory": options.kv_cache_memory,
        "block_size": options.block_size,
        "workers": [[rank.device for rank in worker.members] for worker in workers],
        "gpu_memory": {f"cuda:{gpu}": free for gpu, free in enumerate(machine.gpu_memory) if free is not None},
    }
