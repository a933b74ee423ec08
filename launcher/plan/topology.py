# SPDX-License-Identifier: Apache-2.0
"""The plan: which processes a launch runs, where, and with which configuration. Nothing here has side effects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pontil.launcher.foundation.version import VERSION
from pontil.launcher.host.devices import CPU, HostDevices
from pontil.launcher.options.model_tables import options_of_models
from pontil.launcher.options.options import LaunchOptions
from pontil.launcher.plan.addresses import check_endpoints, controls_of, url_host
from pontil.launcher.plan.checks import (
    check_arithmetic,
    check_connector,
    check_data_parallel,
    check_deadlines,
    check_drafts,
    check_experts,
    check_exposure,
    check_join,
    check_lists,
    check_own_endpoint,
    check_profile,
    check_proxies,
    check_stages,
    check_tiers,
    check_tracing,
    check_usage_log,
)
from pontil.launcher.plan.child_plan import ChildPlan
from pontil.launcher.plan.graph_choice import first_stage, graph_of, stage_model
from pontil.launcher.plan.models import check_models, further_models, served_name
from pontil.launcher.plan.node_checks import check_node_workers, check_nodes
from pontil.launcher.plan.workers import (
    free_gpu_memory,
    plan_demands,
    plan_others,
    plan_workers,
    text_models,
)
from pontil.runtime.config.declaration import values_of
from pontil.runtime.config.proxy_config import ProxyOptions
from pontil.runtime.foundation.staged_model import StagedModel


@dataclass(frozen=True, slots=True)
class Topology:
    """Every process of one launch: `prepare` runs first, alone, and finds the model; then the children start. `served`
    is the model name that clients use. `graph` is the graph of a model of several stages. `shares`: workers may share
    a device. `model_memory` are the bytes that several models may take at once, where that is limited. The workers of
    each kind are counted from the `first_number` on."""

    prepare: ChildPlan
    children: tuple[ChildPlan, ...]
    controls: tuple[str, ...]
    url: str | None
    served: str = ""
    graph: StagedModel | None = None
    shares: bool = False
    model_memory: int | None = None
    first_number: int = 0

    @property
    def control(self) -> str:
        """The control endpoint of the first proxy."""
        return self.controls[0]

    def with_models(self, paths: Mapping[str, str]) -> "Topology":
        """Return the same plan with the names of models replaced by the paths where they were found."""
        return replace(self, children=tuple(child.with_models(paths) for child in self.children))

    def with_keys(self, secret: str | None) -> "Topology":
        """Return the same plan with the keys that protect its network, if it has any. The child that finds the model
        needs none."""
        return replace(self, children=tuple(child.with_keys(secret) for child in self.children))

    def with_clients(self, keys: Mapping[str, Any]) -> "Topology":
        """Return the same plan with the digests of the API keys that clients must send; only the proxy gets them."""
        children = (child.configured(**keys) if child.is_proxy else child for child in self.children)
        return replace(self, children=tuple(children))

    def with_trace_headers(self, headers: Sequence[tuple[str, str]]) -> "Topology":
        """Return the same plan with what is sent to the collector of traces; only the proxy gets it."""
        pairs = [list(header) for header in headers]
        children = (child.configured(trace_headers=pairs) if child.is_proxy else child for child in self.children)
        return replace(self, children=tuple(children))

    def with_signing_keys(self, seal: str, receipt: str | None) -> "Topology":
        """Return the same plan with the keys by which shown reasoning and receipts are signed; only the proxy gets
        them."""
        keys = {"seal_key": seal, "receipt_key": receipt}
        children = (child.configured(**keys) if child.is_proxy else child for child in self.children)
        return replace(self, children=tuple(children))

    @property
    def has_proxy(self) -> bool:
        return any(child.is_proxy for child in self.children)

    @property
    def asks_for_keys(self) -> bool:
        return any(child.config.get("callers") for child in self.children)


def plan(options: LaunchOptions, machine: HostDevices, run: Path, cache: Path) -> Topology:
    """Plan the whole topology. Raises OptionError for a combination of options that is impossible."""
    models = options_of_models(options)
    options = models[0]
    graph = graph_of(options.model_name)
    check_models(models, graph)
    for one in models:
        check_lists(one)
    check_join(options)
    check_stages(options, graph)
    check_deadlines(options)
    check_usage_log(options)
    check_tracing(options)
    check_profile(options)
    check_own_endpoint(options, graph)
    controls = control_endpoints(options, run)
    check_proxies(options, graph, controls)
    for control in controls:
        check_exposure(options, control)
        check_connector(options, control)
    check_nodes(options, graph, controls[0])
    workers = [] if options.role == "proxy" else plan_workers(models, machine, run, controls[0], graph)
    workers = [worker.configured(more_controls=controls[1:]) for worker in workers]
    check_drafts(options, graph, workers)
    for one in models:
        check_tiers(one, workers)
    check_node_workers(options, workers)
    check_arithmetic(options, workers)
    check_experts(options, workers)
    check_data_parallel(options, graph, workers)
    proxies = [] if options.join else plan_proxies(models, machine, run, controls, graph)
    check_endpoints([*controls, *(address for worker in workers for address in worker.endpoints)])
    children = tuple(child.configured(cache_dir=str(cache)) for child in proxies + workers)
    search = {
        "models": models_of(children),
        "cache_dir": str(cache),
        "log_level": options.log_level,
        "demands": plan_demands(models, workers, machine, graph),
        "others": plan_others(options, workers, graph),
        "adapters": {stage_model(one, first_stage(graph)): one.adapter_paths for one in models},
        "gpu_memory": free_gpu_memory(machine),
        "groups": groups_of(models, graph),
        "model_memory": options.model_memory,
    }
    prepare = ChildPlan("prepare", "prepare", CPU, machine.cores, search)
    url = None if options.join else f"http://{url_host(options.host)}:{options.port}"
    shares = options.share_devices or (graph is not None and share_devices(workers))
    return Topology(
        prepare,
        children,
        tuple(controls),
        url,
        served_name(options),
        graph,
        shares,
        options.model_memory,
        options.first_number,
    )


def control_endpoints(options: LaunchOptions, run: Path) -> list[str]:
    """Return where workers register: with each proxy."""
    if options.join:
        return options.join.split(",")
    return controls_of(options.control or f"ipc://{run / 'control'}", options.proxies)


def models_of(children: Sequence[ChildPlan]) -> list[str]:
    """Return the models that these processes need, each once."""
    further = [model["model"] for child in children for model in child.config.get("further_models", ())]
    return list(dict.fromkeys([*(name for child in children for name in child.models.values()), *further]))


def groups_of(models: Sequence[LaunchOptions], graph: StagedModel | None) -> dict[str, str]:
    """Return the group of workers of each model that answers, by the name under which it is looked for."""
    first = first_stage(graph)
    return {stage_model(one, first): served_name(one) if number else "" for number, one in enumerate(models)}


def share_devices(workers: Sequence[ChildPlan]) -> bool:
    """Return whether two of these workers compute on one core or GPU."""
    devices = [device for worker in workers for device in worker.devices]
    return len(set(devices)) < len(devices)


def plan_proxies(
    models: Sequence[LaunchOptions],
    machine: HostDevices,
    run: Path,
    controls: Sequence[str],
    graph: StagedModel | None = None,
) -> list[ChildPlan]:
    """Return the plan of each proxy. Several share the port and files, and each has some of its own."""
    if len(controls) == 1:
        return [plan_proxy(models, machine, run, controls[0], graph)]
    plans = []
    for number, control in enumerate(controls):
        alone = plan_proxy(models, machine, run, control, graph)
        own_config = {
            "name": f"proxy:{number}",
            "number": number,
            "in_flight_bodies": f"{alone.config['in_flight_bodies']}-{number}",
        }
        shared_config = {"proxies": len(controls), "shared_folder": str(run / "proxies")}
        plans.append(replace(alone.configured(**own_config, **shared_config), name=f"proxy:{number}"))
    return plans


def plan_proxy(
    models: Sequence[LaunchOptions], machine: HostDevices, run: Path, control: str, graph: StagedModel | None = None
) -> ChildPlan:
    options = models[0]
    config = values_of(ProxyOptions, options) | {
        "name": "proxy",
        "model": stage_model(options, first_stage(graph)),
        "served_model_name": served_name(options),
        "further_models": further_models(models),
        **text_models(models),
        "graph": None if graph is None else graph.name,
        "control": control,
        "version": VERSION,
        "profile": options.profile and str(Path(options.profile).absolute()),
        "usage_log": options.usage_log and str(Path(options.usage_log).absolute()),
        "resume_folder": str(run / "streams") if options.resume_window else None,
        "in_flight_bodies": str(run / "in-flight-bodies"),
        "response_store": response_store(options, run),
        "callers": [],
        "admin": None,
        "allowances": [],
        "kv_transfers": options.http is not None,
        "trace_headers": [],
    }
    return ChildPlan("proxy", "proxy", CPU, machine.cores, config)


def response_store(options: LaunchOptions, run: Path) -> str | None:
    """Return the file in which responses are kept, if any are. One in the run directory goes with the launch."""
    if options.response_store_size == 0:
        return None
    return str(Path(options.response_store).absolute() if options.response_store else run / "responses.db")
