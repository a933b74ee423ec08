# SPDX-License-Identifier: Apache-2.0
"""The workers of a model of several stages: which there are, and on which devices."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.host.devices import HostDevices, check_cores, check_gpus
from pontil.launcher.options.options import LaunchOptions
from pontil.launcher.options.stage_list import PHASES, PlacedStage, read_placement, stem
from pontil.launcher.options.worker_roles import EMBED, GENERATING_ROLES, NODE
from pontil.launcher.plan.graph_choice import chosen_stage
from pontil.launcher.plan.worker_lists import WorkerList, default_item, role_lists, roles_of
from pontil.runtime.foundation.staged_model import ModelStage, StagedModel


def stage_lists(options: LaunchOptions, graph: StagedModel, machine: HostDevices) -> list[WorkerList]:
    """Return the workers of this launch, those of the first stage first. Raises OptionError for a placement that is
    not possible."""
    if options.role == EMBED:
        return role_lists(options, (EMBED,), machine)
    lists = joined_lists(options, graph, machine) if options.join else all_lists(options, graph, machine)
    for one in lists:
        check_list(one)
    for name in dict.fromkeys(one.node and one.node.name for one in lists):
        items = [item for one in lists if (one.node and one.node.name) == name for item in one.items]
        check_gpus(items, machine, options.share_devices)
        check_cores(items, machine, options.share_devices)
    return lists


def joined_lists(options: LaunchOptions, graph: StagedModel, machine: HostDevices) -> list[WorkerList]:
    """Return the workers of the one stage that joins a proxy."""
    node = chosen_stage(options, graph)
    if (options.role == NODE) == node.generates:
        roles = ", ".join(GENERATING_ROLES) if node.generates else NODE
        raise OptionError(f"The workers of {node.name} have the role {roles}, not {options.role}: name it with --role.")
    placed = {one.name: one for one in options.place}
    if others := [name for name in placed if options.role != NODE or name != node.name]:
        flag = f"--{options.role}" if node.generates else f"--place {node.name}=LIST"
        raise OptionError(f"--place {others[0]} is not what --role {options.role} starts: use {flag}.")
    if not node.generates:
        items = placed[node.name].items if placed else (default_item(NODE, (), machine, True),)
        return [WorkerList(node.name, NODE, items, node)]
    (one,) = role_lists(options, (options.role,), machine)
    return [replace(one, name=workers_name(graph, node, one.role), node=node)]


def all_lists(options: LaunchOptions, graph: StagedModel, machine: HostDevices) -> list[WorkerList]:
    """Return the workers of every stage: as placed, or one on what suits the machine for each."""
    placed = placed_stages(options, graph)
    first = graph.node(graph.first)
    if graph.first in placed:
        refuse_lists(options, graph)
        lists = lists_of(graph, first, placed[graph.first])
    else:
        given = role_lists(options, [role for role in roles_of(options) if role != EMBED], machine)
        lists = [replace(one, node=first) for one in given]
    for node in others(graph):
        if node.name in placed:
            lists += lists_of(graph, node, placed[node.name])
        else:
            taken = [item for one in lists for item in one.items]
            role = "mixed" if node.generates else NODE
            lists.append(
                WorkerList(workers_name(graph, node, role), role, (default_item(role, taken, machine, True),), node)
            )
    return lists + (role_lists(options, (EMBED,), machine) if options.embed is not None else [])


def others(graph: StagedModel) -> Sequence[ModelStage]:
    """Return the stages but the first one, those that follow it before those that lead to it: where two workers share
    a core, it is better one that waits while the other computes."""
    place = graph.node_names.index(graph.first)
    return (*graph.nodes[place + 1 :], *graph.nodes[:place])


def placed_stages(options: LaunchOptions, graph: StagedModel) -> dict[str, list[PlacedStage]]:
    """Return the entries of each placed stage: the flags' where they name it, else the file's. Either all stages are
    placed or none; the first one may have its devices by the flags of a model of one stage."""
    named = read_placement(Path(options.placement)) if options.placement else ()
    check_entries(named, graph, options.placement or "")
    check_entries(options.place, graph, "--place")
    flags = {one.node for one in options.place}
    entries = [*options.place, *(one for one in named if one.node not in flags)]
    placed: dict[str, list[PlacedStage]] = {}
    for entry in entries:
        placed.setdefault(entry.node, []).append(entry)
    listed = {graph.first} if any(getattr(options, role) is not None for role in GENERATING_ROLES) else set[str]()
    missing = [name for name in graph.node_names if name not in placed and name not in listed]
    if placed and missing:
        raise OptionError(
            f"The placement says nothing of {', '.join(missing)}: place every stage of {graph.name} "
            f"({', '.join(graph.node_names)}), or none."
        )
    return placed


def check_entries(entries: Iterable[PlacedStage], graph: StagedModel, where: str) -> None:
    """Check the names in a placement, and that each is there once."""
    seen = set[str]()
    for entry in entries:
        if entry.node not in graph.node_names:
            raise OptionError(
                f"{where} places a stage {entry.node!r}, and {graph.name} has {', '.join(graph.node_names)}."
            )
        node = graph.node(entry.node)
        if entry.phase is not None:
            check_phase(entry, node, where)
        if entry.name in seen:
            raise OptionError(f"{where} places {entry.name} twice: give all of its devices in one list.")
        seen.add(entry.name)
    for name in seen & set(graph.node_names):
        if split := sorted(seen & {f"{name}.{phase}" for phase in PHASES}):
            raise OptionError(f"{where} places {name} whole and {split[0]} too: give one of the two.")


def check_phase(one: PlacedStage, node: ModelStage, where: str) -> None:
    if not node.generates:
        raise OptionError(f"{where} places {one.name}, and {node.name} has no prefill and decode: place {node.name}.")
    if one.phase not in PHASES:
        raise OptionError(f"{where} places {one.name}, and a stage has the walks {' and '.join(PHASES)}.")
    if not node.splits:
        raise OptionError(
            f"{where} places {one.name}, and {node.name} reads a stream but moves by a state of its own, so all of its "
            f"walks are on one worker: place {node.name}."
        )


def refuse_lists(options: LaunchOptions, graph: StagedModel) -> None:
    """Refuse flags that say another thing about the first stage than its placement."""
    given = next((f"--{role}" for role in GENERATING_ROLES if getattr(options, role) is not None), None)
    given = given or ("--role mixed" if options.role == "mixed" else None)
    if given:
        raise OptionError(f"{given} and the placement both say where {graph.first} runs: remove one of the two.")


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


def check_list(one: WorkerList) -> None:
    """Check that only stages that make tokens have workers of several devices."""
    joined = next((item for item in one.items if len(item.ranks) > 1), None)
    if joined is not None and one.node is not None and not one.node.generates:
        raise OptionError(
            f"{one.names()[one.items.index(joined)]} has {len(joined.ranks)} devices joined by +, and {one.node.name} "
            "makes no tokens, so it cannot be divided: use commas."
        )
