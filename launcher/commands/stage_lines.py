# SPDX-License-Identifier: Apache-2.0
"""The placement of a model of several stages in words: where each stage runs, and what it feeds."""

from collections.abc import Iterator, Sequence

from pontil.launcher.host.devices import CPU
from pontil.launcher.plan.child_plan import ChildPlan
from pontil.launcher.plan.topology import Topology
from pontil.runtime.foundation.number_ranges import spell
from pontil.runtime.foundation.staged_model import StagedModel

TEXT, AUDIO = "text", "audio"


def drawing(topology: Topology) -> list[str]:
    """Return a line for each stage, in the order in which a request passes them; none for a model of one stage."""
    graph = topology.graph
    if graph is None:
        return []
    width = max(map(len, graph.node_names))
    return [
        f"{name:<{width}}  {workers_of(name, topology) or 'on other hosts'}  {arrows(name, graph)}"
        for name in graph.node_names
    ]


def workers_of(stage: str, topology: Topology) -> str:
    return ", ".join(f"{plan.name} ({where(plan)})" for plan in topology.children if plan.config.get("node") == stage)


def where(plan: ChildPlan) -> str:
    return plan.place if plan.device != CPU or plan.followers else cores_of(plan)


def cores_of(plan: ChildPlan) -> str:
    return f"core{'s' * (len(plan.cores) != 1)} {spell(plan.cores)}"


def arrows(stage: str, graph: StagedModel) -> str:
    """Return what a stage passes on, and to whom."""
    outputs = [f"-{stream}-> {target}" for target, stream in graph.consumers(stage)]
    if stage == graph.first:
        outputs.append(f"-> {TEXT}")
    if stage == graph.recognizer:
        outputs.append(f"-transcript-> {graph.first}")
    if stage == graph.audio:
        outputs.append(f"-> {AUDIO}")
    return ", ".join(outputs)


def stage_lines(topology: Topology) -> list[str]:
    """Return the sentence that says how stages share devices, if they do."""
    if topology.graph is None or not topology.shares:
        return []
    together = list(shared(topology.children))
    return [f"stages share devices: {'; '.join(together)} (--placement or --place names others)"] if together else []


def shared(children: Sequence[ChildPlan]) -> Iterator[str]:
    """Yield each device that several workers have, and which they are."""
    workers = [plan for plan in children if not plan.is_proxy]
    for device in sorted({device for plan in workers for device in plan.devices}):
        names = [plan.name for plan in workers if device in plan.devices]
        if len(names) > 1:
            yield f"{device} has {', '.join(names)}"
