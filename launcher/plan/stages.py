# SPDX-License-Identifier: Apache-2.0
"""The workers of a model of several stages: which there are, and on which devices."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.host.devices import HostDevices, check_cores, check_gpus
from pontil.launcher.options.options import LaunchOptions
from pontil.launcher.options.stage_list import PHASES, PlacedStage, read_placement, stem
from pontil.launcher.options.worker_roles import GENERATING_ROLES, NODE, TEXT_ROLES
from pontil.launcher.plan.graph_choice import chosen_stage
from pontil.launcher.plan.worker_lists import WorkerList, default_item, listed_texts, role_lists, roles_of
from pontil.runtime.foundation.staged_model import ModelStage, StagedModel


def stage_lists(options: LaunchOptions, graph: StagedModel, machine: HostDevices) -> list[WorkerList]:
    """Return the workers of this launch, those of the first stage first. Raises OptionError for a placement that is
    not possible."""
    if options.role in TEXT_ROLES:
        return role_lists(options, (options.role,), machine)
    lists = joined_lists(options, graph, machine) if options.join else all_lists(options, graph, machine)
    for workers in lists:
        check_list(workers)
    for name in dict.fromkeys(workers.node and workers.node.name for workers in lists):
        items = [item for workers in lists if (workers.node and workers.node.name) == name for item in workers.items]
        check_gpus(items, machine, options.share_devices)
        check_cores(items, machine, options.share_devices)
    return lists


def joined_lists(options: LaunchOptions, graph: StagedModel, machine: HostDevices) -> list[WorkerList]:
    """Return the workers of the one stage that joins a proxy."""
    node = chosen_stage(options, graph)
    if (options.role == NODE) == node.generates:
        roles = ", ".join(GENERATING_ROLES) if node.generates else NODE
        raise OptionError(f"The workers of {node.name} have the role {roles}, not {options.role}: name it with --role.")
    stages_by_name = {entry.name: entry for entry in options.place}
    if other_stages := [name for name in stages_by_name if options.role != NODE or name != node.name]:
        flag = f"--{options.role}" if node.generates else f"--place {node.name}=LIST"
        raise OptionError(f"--place {other_stages[0]} is not what --role {options.role} starts: use {flag}.")
    if not node.generates:
        items = stages_by_name[node.name].items if stages_by_name else (default_item(NODE, (), machine, True),)
        return [WorkerList(node.name, NODE, items, node)]
    (workers,) = role_lists(options, (options.role,), machine)
    return [replace(workers, name=workers_name(graph, node, workers.role), node=node)]


def all_lists(options: LaunchOptions, graph: StagedModel, machine: HostDevices) -> list[WorkerList]:
    """Return the workers of every stage: as placed, or one on what suits the machine for each. An optional stage that a
    placement leaves out has none."""
    entries_by_stage = placed_stages(options, graph)
    first = graph.node(graph.first)
    if graph.first in entries_by_stage:
        refuse_lists(options, graph)
        lists = lists_of(graph, first, entries_by_stage[graph.first])
    else:
        worker_lists = role_lists(options, [role for role in roles_of(options) if role not in TEXT_ROLES], machine)
        lists = [replace(workers, node=first) for workers in worker_lists]
    for node in others(graph):
        if node.name in entries_by_stage:
            lists += lists_of(graph, node, entries_by_stage[node.name])
        elif not (entries_by_stage and node.optional):
            items = [item for workers in lists for item in workers.items]
            role = "mixed" if node.generates else NODE
            lists.append(
                WorkerList(workers_name(graph, node, role), role, (default_item(role, items, machine, True),), node)
            )
    return lists + role_lists(options, listed_texts(options), machine)


def others(graph: StagedModel) -> Sequence[ModelStage]:
    """Return the stages but the first one, those that follow it before those that lead to it: where two workers share
    a core, it is better one that waits while the other computes."""
    place = graph.node_names.index(graph.first)
    return (*graph.nodes[place + 1 :], *graph.nodes[:place])


def placed_stages(options: LaunchOptions, graph: StagedModel) -> dict[str, list[PlacedStage]]:
    """Return the entries of each placed stage: the flags' where they name it, else the file's. Either all stages are
    placed or none; the first one may have its devices by the flags of a model of one stage."""
    file_entries = read_placement(Path(options.placement)) if options.placement else ()
    check_entries(file_entries, graph, options.placement or "")
    check_entries(options.place, graph, "--place")
    flagged_stages = {entry.node for entry in options.place}
    entries = [*options.place, *(entry for entry in file_entries if entry.node not in flagged_stages)]
    entries_by_stage: dict[str, list[PlacedStage]] = {}
    for entry in entries:
        entries_by_stage.setdefault(entry.node, []).append(entry)
    flag_stages = {graph.first} if any(getattr(options, role) is not None for role in GENERATING_ROLES) else set[str]()
    needed = [node.name for node in graph.nodes if not node.optional]
    missing = [name for name in needed if name not in entries_by_stage and name not in flag_stages]
    if entries_by_stage and missing:
        raise OptionError(
            f"The placement says nothing of {', '.join(missing)}: place every stage of {graph.name} "
            f"({', '.join(needed)}), or none."
        )
    return entries_by_stage


def check_entries(entries: Iterable[PlacedStage], graph: StagedModel, where: str) -> None:
    """Check the names in a placement, and that each is there once."""
    names = set[str]()
    for entry in entries:
        if entry.node not in graph.node_names:
            raise OptionError(
                f"{where} places a stage {entry.node!r}, and {graph.name} has {', '.join(graph.node_names)}."
            )
        node = graph.node(entry.node)
        if entry.phase is not None:
            check_phase(entry, node, where)
        if entry.name in names:
            raise OptionError(f"{where} places {entry.name} twice: give all of its devices in one list.")
        names.add(entry.name)
    for name in names & set(graph.node_names):
        if split := sorted(names & {f"{name}.{phase}" for phase in PHASES}):
            raise OptionError(f"{where} places {name} whole and {split[0]} too: give one of the two.")


def check_phase(entry: PlacedStage, node: ModelStage, where: str) -> None:
    if not node.generates:
        raise OptionError(f"{where} places {entry.name}, and {node.name} has no prefill and decode: place {node.name}.")
    if entry.phase not in PHASES:
        raise OptionError(f"{where} places {entry.name}, and a stage has the walks {' and '.join(PHASES)}.")
    if not node.splits:
        raise OptionError(
            f"{where} places {entry.name}, and {node.name} reads a stream but moves by a state of its own, so all of "
            f"its walks are on one worker: place {node.name}."
        )


def refuse_lists(options: LaunchOptions, graph: StagedModel) -> None:
    """Refuse flags that say another thing about the first stage than its placement."""
    flag = next((f"--{role}" for role in GENERATING_ROLES if getattr(options, role) is not None), None)
    flag = flag or ("--role mixed" if options.role == "mixed" else None)
    if flag:
        raise OptionError(f"{flag} and the placement both say where {graph.first} runs: remove one of the two.")


def lists_of(graph: StagedModel, node: ModelStage, entries: Sequence[PlacedStage]) -> list[WorkerList]:
    """Return the workers of a placed stage."""
    phases = {entry.phase: entry.items for entry in entries}
    if None in phases:
        role = "mixed" if node.generates else NODE
        return [WorkerList(workers_name(graph, node, role), role, phases[None], node)]
    for phase in PHASES:
        if phase not in phases:
            raise OptionError(
                f"The placement has {entries[0].name} and no {node.name}.{phase}: name its devices, or none."
            )
    return [WorkerList(workers_name(graph, node, phase), phase, phases[phase], node) for phase in PHASES]


def workers_name(graph: StagedModel, node: ModelStage, role: str) -> str:
    """Return the name of a stage's workers without a number. Those of the first stage have the names that a model of
    one stage gives them."""
    return role if node.name == graph.first else stem(node.name, role)


def check_list(workers: WorkerList) -> None:
    """Check that only stages that make tokens have workers of several devices."""
    item = next((item for item in workers.items if len(item.ranks) > 1), None)
    if item is not None and workers.node is not None and not workers.node.generates:
        raise OptionError(
            f"{workers.names()[workers.items.index(item)]} has {len(item.ranks)} devices joined by +, and "
            f"{workers.node.name} makes no tokens, so it cannot be divided: use commas."
        )
