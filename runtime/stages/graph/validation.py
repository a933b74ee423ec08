# SPDX-License-Identifier: Apache-2.0
"""Checks of a graph before anything starts: each mistake in one sentence that says what to change (E1)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pontil.runtime.stages.graph.connection import Connection
from pontil.runtime.stages.graph.partition import GraphPartition
from pontil.runtime.stages.graph.walk import mistakes_of

Partitions = Sequence[GraphPartition]
Connections = Sequence[Connection]


def first_mistake(partitions: Partitions, connections: Connections) -> str | None:
    """Return the first mistake of a graph, or None. The later checks rely on the earlier ones."""
    for check in (names, structures, ends, streams, authorities, agreement, circles):
        for mistake in check(partitions, connections):
            return mistake
    return None


def repeated(found: Iterable[str]) -> Iterator[str]:
    return (name for name, count in Counter(found).items() if count > 1)


def names(partitions: Partitions, connections: Connections) -> Iterator[str]:
    if not partitions:
        yield "it has no partition: give it at least one"
    for name in repeated(one.name for one in partitions):
        yield f"two partitions are named '{name}': give each its own name"
    for name in repeated(node for one in partitions for node in one.nodes):
        yield f"the node '{name}' stands twice: a node belongs to one partition, once"
    for name in repeated(walk.name for one in partitions for walk in one.walks):
        yield f"two walks are named '{name}': give each its own name"
    for key, count in Counter(one.key for one in connections).items():
        if count > 1:
            yield f"connection '{key[2]}' from '{key[0]}' to '{key[1]}' stands twice: give each edge its own name"


def structures(partitions: Partitions, connections: Connections) -> Iterator[str]:
    for one in partitions:
        if not one.walks:
            yield f"partition '{one.name}' has no walk: give it at least one"
        for walk in one.walks:
            yield from (f"walk '{walk.name}' has {mistake}" for mistake in mistakes_of(walk.body))
            for node in walk.nodes:
                if node not in one.nodes:
                    yield f"walk '{walk.name}' runs the node '{node}', which partition '{one.name}' does not have"
        for node in one.nodes:
            if not any(node in walk.nodes for walk in one.walks):
                yield f"no walk of partition '{one.name}' runs its node '{node}': remove it, or add it to a walk"
        for name in (*one.transitions, *one.transitions.values(), one.initial, one.terminal):
            if name is not None and one.walk(name) is None:
                yield f"partition '{one.name}' names the walk '{name}', which it does not have"


def ends(partitions: Partitions, connections: Connections) -> Iterator[str]:
    known = {one.name for one in partitions}
    for one in connections:
        if one.target not in known and one.drives:
            yield f"the callback of {one.label} drives a partition that does not exist: '{one.target}'"
        for name in (one.source, one.target):
            if name not in known:
                yield f"{one.label} names a partition that does not exist: '{name}'"
        if one.source == one.target:
            yield f"{one.label} leads from a partition to itself: use a Loop in a walk"


def streams(partitions: Partitions, connections: Connections) -> Iterator[str]:
    for one in connections:
        mistake = one.policy.mistake()
        if mistake is not None:
            yield f"{one.label} has the policy {mistake}"
        if one.capacity < one.policy.largest:
            yield (
                f"{one.label} lets its producer be {one.capacity} items ahead, but a chunk may need"
                f" {one.policy.largest}: raise its capacity"
            )


def authorities(partitions: Partitions, connections: Connections) -> Iterator[str]:
    for one in partitions:
        drivers = [each for each in connections if each.target == one.name and each.drives]
        if one.is_driven:
            if not drivers:
                yield (
                    f"partition '{one.name}' is PRODUCER_TRIGGERED but no connection drives it:"
                    " give a connection to it a callback, or make it STATE_MACHINE"
                )
            if one.transitions or one.initial is not None:
                yield (
                    f"partition '{one.name}' is PRODUCER_TRIGGERED and has walks of a state machine too:"
                    " remove its initial walk and its transitions"
                )
            if one.terminal is None and len(one.walks) > 1:
                yield f"partition '{one.name}' is PRODUCER_TRIGGERED with several walks: name its terminal walk"
        else:
            for each in drivers:
                yield (
                    f"{each.label} has a callback but '{one.name}' is STATE_MACHINE:"
                    " remove the callback, or make the partition PRODUCER_TRIGGERED"
                )
            if one.initial is None:
                yield f"partition '{one.name}' is STATE_MACHINE: name its initial walk"
            if one.terminal is not None:
                yield f"partition '{one.name}' is STATE_MACHINE and has a terminal walk: remove that"


def agreement(partitions: Partitions, connections: Connections) -> Iterator[str]:
    """A pass takes one chunk of each stream, so they are cut alike, and come from one producer: of two, one could be
    held up by its window while the other waits for it, and nobody could see that their callbacks agree."""
    for name in (partition.name for partition in partitions):
        sources = dict.fromkeys(each.source for each in connections if each.target == name)
        if len(sources) > 1:
            yield f"{' and '.join(sources)} both lead to partition '{name}': one producer has all of its streams"
    for one in connections:
        for other in connections:
            if one.key[:2] == other.key[:2] and one.policy != other.policy:
                yield f"{one.label} and {other.label} have different policies: a pass takes a chunk of each, cut alike"


def circles(partitions: Partitions, connections: Connections) -> Iterator[str]:
    """Refuse circles: each partition would wait for the first items of another."""
    waits = {one.name: {each.source for each in connections if each.target == one.name} for one in partitions}
    done = set[str]()
    while len(done) < len(waits):
        free = {name for name, sources in waits.items() if name not in done and sources <= done}
        if not free:
            left = ", ".join(f"'{name}'" for name in waits if name not in done)
            yield f"{left} wait for each other's items in a circle: remove one of the connections"
            return
        done |= free
