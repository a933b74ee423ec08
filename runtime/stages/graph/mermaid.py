# SPDX-License-Identifier: Apache-2.0
"""A graph as text of Mermaid, the diagram language (https://mermaid.js.org/syntax/flowchart.html)."""

from itertools import count

from pontil.runtime.stages.graph.catalog import GraphModel
from pontil.runtime.stages.graph.graph import Graph
from pontil.runtime.stages.graph.walk import Loop, Node, Sequential, WalkPart


def diagram(model: GraphModel) -> str:
    """Return the graph of a model as Mermaid."""
    return mermaid(model.graph)


def mermaid(graph: Graph) -> str:
    """Return a flowchart: a box for each partition, in it a line for each walk with its nodes, and an arrow for each
    connection with its policy. A thick arrow is a connection that drives its target."""
    names = {partition.name: f"p{number}" for number, partition in enumerate(graph.partitions)}
    lines = ["flowchart LR"]
    numbers = count()
    for partition in graph.partitions:
        authority = partition.authority.value
        lines.append(f'    subgraph {names[partition.name]}["{text(partition.name)} ({authority})"]')
        walks = {walk.name: f"w{next(numbers)}" for walk in partition.walks}
        lines += [
            f'        {walks[walk.name]}["{text(walk.name)}: {text(shown(walk.body))}"]' for walk in partition.walks
        ]
        # The transitions of a driven partition are in its producers' callbacks.
        lines += [f"        {walks[here]} --> {walks[there]}" for here, there in partition.transitions.items()]
        lines.append("    end")
    lines += (
        f'    {names[one.source]} {"==>" if one.drives else "-->"}|"{text(one.edge)}: {text(one.policy.label)}"|'
        f" {names[one.target]}"
        for one in graph.connections
    )
    return "\n".join(lines) + "\n"


def shown(part: WalkPart) -> str:
    """Return a part of a walk as a line of text."""
    if isinstance(part, Node):
        return part.name
    if isinstance(part, Loop):
        return f"loop({shown(part.body)})" + ("" if part.times is None else f" × {part.times}")
    sign = " → " if isinstance(part, Sequential) else " ∥ "
    inside = sign.join(shown(one) for one in part.parts)
    return inside if len(part.parts) == 1 else f"({inside})"


def text(name: str) -> str:
    """Return text with quotation marks as Mermaid's entities."""
    return name.replace("#", "#35;").replace('"', "#quot;")
