# SPDX-License-Identifier: Apache-2.0
"""The plan of a launch's workers: how many, on which devices, and with which configuration. Nothing here has side
effects."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.foundation.version import VERSION
from pontil.launcher.host.device_list import repeated
from pontil.launcher.host.devices import CPU, HostDevices, Placement, assign
from pontil.launcher.host.ports import address_towards
from pontil.launcher.options.kv_tier_list import DISK, MEMORY, bytes_of, disk_path
from pontil.launcher.options.options import ALL, LaunchOptions
from pontil.launcher.options.parsers import host_of
from pontil.launcher.options.stage_list import PHASES
from pontil.launcher.options.worker_roles import EMBED, GENERATING_ROLES, PREFILL, RERANK, TEXT_ROLES
from pontil.launcher.plan.addresses import is_own, url_host
from pontil.launcher.plan.child_plan import ChildPlan, plan_ranks, rank_endpoint
from pontil.launcher.plan.graph_choice import first_stage, stage_model
from pontil.launcher.plan.models import further_stem, own_name, served_name
from pontil.launcher.plan.stages import stage_lists
from pontil.launcher.plan.worker_lists import WorkerList, awaited_phase, role_lists, roles_of
from pontil.runtime.config.declaration import values_of
from pontil.runtime.config.worker_config import DRAFT_TOKENS, FAST, Deadlines, WorkerOptions
from pontil.runtime.foundation.staged_model import ModelStage, StagedModel


@dataclass(frozen=True, slots=True)
class TextModel:
    """The model of a role with one of its own: the options that name it, and what it is if they do not."""

    path: str
    served: str
    usual: str | None = None


TEXT_MODELS = {
    EMBED: TextModel("embedding_model", "served_embedding_model_name", "all-minilm-l6-v2"),
    RERANK: TextModel("reranking_model", "served_reranking_model_name"),
}


def text_model(options: LaunchOptions, role: str) -> str | None:
    """Return the model of the workers of a role with one of its own; None for a launch without. Raises OptionError
    where none is named, and none is usual."""
    model, starts = TEXT_MODELS[role], options.role == role or bool(getattr(options, role))
    named: str | None = getattr(options, model.path)
    if starts and named is None and model.usual is None:
        flag = f"--{model.path.replace('_', '-')}"
        raise OptionError(
            f"--{role} has workers of a model of their own, and there is no usual one: name it by {flag}."
        )
    return named or (model.usual if starts else None)


def served_text_name(options: LaunchOptions, role: str) -> str | None:
    """Return the name by which clients ask for what that model makes, if they can."""
    model, stated = text_model(options, role), getattr(options, TEXT_MODELS[role].served)
    return None if model is None else stated or own_name(model)


def check_adapters(models: Sequence[LaunchOptions], graph: StagedModel | None) -> None:
    """Raise OptionError for adapters of a model of several stages, by the name of a model, or of one another."""
    options = models[0]
    if options.adapter and graph is not None:
        raise OptionError("--adapter is for models of one stage: leave it out.")
    names = [*map(served_name, models), *(served_text_name(options, role) for role in TEXT_MODELS)]
    for name in (name for one in models for name in one.adapter_paths):
        if name in names:
            raise OptionError(f"An adapter and a model, or another one, are called {name}: give one another name.")
        names.append(name)


def text_models(models: Sequence[LaunchOptions]) -> dict[str, str | None]:
    """Return the models of all such roles and their names, as a proxy is told. Raises OptionError for one name of two:
    requests go by it to workers."""
    options, config = models[0], dict[str, str | None]()
    further = [served_name(one) for one in models[1:]]
    for role, model in TEXT_MODELS.items():
        name = served_text_name(options, role)
        if name is not None and name in (*config.values(), *further):
            raise OptionError(f"Two models are called {name}: give --{model.served.replace('_', '-')}.")
        config |= {model.path: text_model(options, role), model.served: name}
    return config


@dataclass(frozen=True, slots=True)
class WorkerSetting:
    """The setting that all workers of a launch have in common: the run directory and the proxy's endpoint, the graph
    of a model of several stages, and whether some of them share a device."""

    run: Path
    control: str
    graph: StagedModel | None = None
    shares: bool = False


def plan_workers(
    models: Sequence[LaunchOptions], machine: HostDevices, run: Path, control: str, graph: StagedModel | None = None
) -> list[ChildPlan]:
    check_adapters(models, graph)
    options = models[0]
    # The stages of a model share devices anyway.
    other_phase = awaited_phase(options, control, machine.held) if graph is None else None
    placed_workers = place_workers(models, machine, graph, other_phase)
    if not placed_workers:
        raise OptionError("No worker is left to start: give --prefill or --decode at least one device.")
    setting = WorkerSetting(
        run, control, graph, options.share_devices or share_cores(ranks for *_, ranks in placed_workers)
    )
    return [plan_worker(kind.model or options, name, kind, ranks, setting) for name, kind, ranks in placed_workers]


def place_workers(
    models: Sequence[LaunchOptions], machine: HostDevices, graph: StagedModel | None, other_phase: str | None
) -> list[tuple[str, WorkerList, Sequence[Placement]]]:
    """Return each worker's name, kind and places: as one launch of both phases has them if the other one is awaited;
    where there is no room for that, of all that other launches leave; where they leave too few cores, of theirs too."""
    options = models[0]
    own_roles = roles_of(options)
    roles = own_roles if other_phase is None else (*PHASES, *own_roles[1:])
    try:
        lists = role_lists(options, roles, machine) if graph is None else stage_lists(options, graph, machine)
        lists += further_lists(models[1:], lists, machine, other_phase)
        items = [item for workers in lists for item in workers.items]
        # Stages may share a device: whoever names it for two of them means it.
        placements = iter(assign(items, machine, share=options.share_devices or graph is not None))
    except OptionError:
        if other_phase is not None:
            return place_workers(models, machine, graph, None)
        if machine.held.cores:
            return place_workers(models, replace(machine, held=machine.held.without_cores()), graph, None)
        raise
    placed_workers = [
        (name, workers, next(placements)) for workers in lists for name in workers.names(options.first_number)
    ]
    return [(name, kind, ranks) for name, kind, ranks in placed_workers if kind.role != other_phase]


def further_lists(
    models: Sequence[LaunchOptions], before: Sequence[WorkerList], machine: HostDevices, other_phase: str | None
) -> list[WorkerList]:
    """Return the workers of further models, on what those before them leave."""
    lists = list(before)
    for options in models:
        roles = [role for role in roles_of(options) if role not in TEXT_ROLES]
        items = [item for workers in lists for item in workers.items]
        own = role_lists(options, roles if other_phase is None else PHASES, machine, items)
        lists += [
            replace(workers, name=further_stem(served_name(options), workers.role), model=options) for workers in own
        ]
    return lists[len(before) :]


def share_cores(placements: Iterable[Sequence[Placement]]) -> bool:
    """Return whether two workers compute on one core."""
    cores = [
        core for ranks in placements for core in {core for rank in ranks if rank.device == CPU for core in rank.cores}
    ]
    return repeated(cores) is not None


def plan_worker(
    options: LaunchOptions, name: str, kind: WorkerList, ranks: Sequence[Placement], setting: WorkerSetting
) -> ChildPlan:
    """Return the plan of a worker with a rank on each of these places."""
    role, graph, node = kind.role, setting.graph, kind.node
    if options.revision is not None and graph is not None:
        raise OptionError("--revision is for models of one stage: leave it out, and upgrade all stages at once.")
    reads_texts = role in TEXT_ROLES
    divisions = len(ranks) * options.nnodes
    if reads_texts and divisions > 1:
        model = "an embedding model" if role == EMBED else "a reranker"
        raise OptionError(f"{name} has {len(ranks)} devices joined by +, and {model} runs on one: use commas.")
    # A limit or a guess is for the model that answers, not for one of texts or a later stage beside it.
    answers = node is None or graph is None or node.name == graph.first
    guesses = answers and role in GENERATING_ROLES
    if divisions > 1 and options.speculative_model is not None and guesses and role != PREFILL:
        raise OptionError(
            f"{name} has {divisions} devices joined by +, and --speculative-model is for workers of one: use commas."
        )
    config = values_of(WorkerOptions, options) | {
        "deadlines": values_of(Deadlines, options),
        "lent_cores": lent_cores(options, ranks, setting) if role in GENERATING_ROLES else None,
        "model": text_model(options, role) if reads_texts else stage_model(options, node),
        "served_model_name": served_text_name(options, role) if reads_texts else served_name(options),
        "further_model": None if kind.model is None else served_name(options),
        "control": setting.control,
        **meeting_point(options, name, setting.run, setting.control),
        "max_model_len": None if (reads_texts and options.role != role) or not answers else options.max_model_len,
        "speculative_tokens": speculative_tokens(options) if guesses else 0,
        "speculative_model": options.speculative_model if guesses else None,
        "adapter": list(options.adapter) if role in GENERATING_ROLES else [],
        "kv_tier_memory": bytes_of(options.kv_tier, MEMORY) if guesses else 0,
        "kv_tier_disk": disk_path(options.kv_tier) if guesses else None,
        "kv_tier_disk_size": bytes_of(options.kv_tier, DISK) if guesses else 0,
        "graph": graph.name if graph is not None and node is not None else None,
        "node": None if node is None else node.name,
        "version": VERSION,
        "keep_kv": options.keep_kv and options.prefix_caching and role in GENERATING_ROLES and options.nnodes == 1,
        "nnodes": options.nnodes,
        **({"data_parallel_size": len(ranks)} if len(ranks) > 1 and is_data_parallel(options, role) else {}),
    }
    endpoint = options.master_addr or rank_endpoint(str(setting.run), name)
    return plan_ranks(name, role, ranks, config, endpoint, options.node_rank)


def is_data_parallel(options: LaunchOptions, role: str) -> bool:
    """Return whether the devices of a worker of this role have sequences of their own."""
    return role in GENERATING_ROLES and options.data_parallel_attention in (role, ALL)


def speculative_tokens(options: LaunchOptions) -> int:
    return options.speculative_tokens or (0 if options.speculative_model is None else DRAFT_TOKENS)


def lent_cores(options: LaunchOptions, ranks: Sequence[Placement], setting: WorkerSetting) -> str | None:
    """Return the file through which workers lend each other cores. A core can be lent only if it belongs to a single
    worker; and a rank of several, which the others wait for in each layer, neither lends nor borrows."""
    is_alone = options.nnodes == 1 and [rank.device for rank in ranks] == [CPU]
    can_lend = options.lend_cores and not setting.shares and is_alone
    return str(setting.run / "cores") if can_lend else None


def meeting_point(options: LaunchOptions, name: str, run: Path, control: str) -> dict[str, str]:
    """Return the address at which other workers reach this one: a socket file, unless some of them may be on other
    hosts, or are told the address by another router, which knows hosts and ports only."""
    proxy = host_of(control)
    host = "127.0.0.1" if proxy is None or is_own(proxy) else proxy
    if options.http is not None:
        return {"peer_endpoint": f"tcp://{url_host(host)}:0", "transfer_host": host}
    if proxy is None or is_own(proxy):
        return {"peer_endpoint": f"ipc://{run / name.replace(':', '-')}", "transfer_host": "127.0.0.1"}
    host = address_towards(proxy) if options.join else proxy
    return {"peer_endpoint": f"tcp://{url_host(host)}:0", "transfer_host": host}


def plan_demands(
    models: Sequence[LaunchOptions],
    workers: Sequence[ChildPlan],
    machine: HostDevices,
    graph: StagedModel | None = None,
) -> dict[str, dict[str, Any]]:
    """Return the memory demand of each model that answers, which the child that finds the models compares with the
    available memory."""
    first, demands = first_stage(graph), dict[str, dict[str, Any]]()
    for number, options in enumerate(models):
        group = served_name(options) if number else None
        own = [worker for worker in workers if answers(worker, first) and worker.config["further_model"] == group]
        demands |= {stage_model(options, first): plan_demand(options, own, machine)} if own else {}
    return demands


def answers(worker: ChildPlan, first: ModelStage | None) -> bool:
    return worker.role in GENERATING_ROLES and (first is None or worker.config["node"] == first.name)


def plan_others(
    options: LaunchOptions, workers: Sequence[ChildPlan], graph: StagedModel | None = None
) -> list[dict[str, Any]]:
    """Return what is beside the model that answers in that memory: models that embed or score texts, and the other
    stages of a model of several."""
    first = first_stage(graph)
    return [
        {
            "model": worker.config["model"],
            "stage": worker.config["node"],
            **({"scores": True} if worker.role == RERANK else {}),
            "own": worker.config["model"] != stage_model(options, first),
            "devices": [rank.device for rank in worker.members],
            "has_kernels": options.kernels != "torch",
            "quantization": options.quantization,
        }
        for worker in workers
        if not answers(worker, first)
    ]


def plan_demand(options: LaunchOptions, workers: Sequence[ChildPlan], machine: HostDevices) -> dict[str, Any]:
    draft = options.speculative_model
    drafting = {"speculative_model": draft, "drafting": [worker.role != PREFILL for worker in workers]} if draft else {}
    tier = bytes_of(options.kv_tier, MEMORY)
    shared = any(worker.is_data_parallel for worker in workers)
    return {
        **drafting,
        **({"kv_tier_memory": tier} if tier else {}),
        "dtype": options.dtype,
        "kv_cache_dtype": options.kv_cache_dtype,
        "quantization": options.quantization,
        "has_kernels": options.kernels != "torch" and options.nnodes == 1,
        **({"row_parallel": True} if options.tensor_parallel_arithmetic == FAST else {}),
        **({"data_parallel": [worker.is_data_parallel for worker in workers]} if shared else {}),
        **({"nnodes": options.nnodes} if options.nnodes > 1 else {}),
        "max_model_len": options.max_model_len,
        "kv_cache_memory": options.kv_cache_memory,
        "kv_cache_ahead_memory": options.kv_cache_ahead_memory,
        "block_size": options.block_size,
        "workers": [[rank.device for rank in worker.members] for worker in workers],
        "gpu_memory": free_gpu_memory(machine),
    }


def free_gpu_memory(machine: HostDevices) -> dict[str, int]:
    """Return the free bytes of each GPU of which that is known."""
    return {f"cuda:{gpu}": free for gpu, free in enumerate(machine.gpu_memory) if free is not None}
