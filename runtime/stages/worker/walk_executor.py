# SPDX-License-Identifier: Apache-2.0
"""The execution of a walk: the nodes of a stage run one after the other as the walk's declaration says."""

from dataclasses import replace

from pontil.runtime.errors import GraphError
from pontil.runtime.stages.graph.walk import Loop, Node, Parallel, Sequential, WalkPart
from pontil.runtime.stages.nodes.node import NOTHING, NodeInput, NodeRun, Pieces, WalkValues

# Rounds of a loop that no node stops. Nothing real comes near it.
MOST_ROUNDS = 1 << 16


def run_part(part: WalkPart, run: NodeRun, given: NodeInput) -> Pieces:
    """Run a part of a walk in pieces, and return what it made. Raises GraphError for what no declaration means."""
    if isinstance(part, Node):
        return (yield from run.feed(replace(given, node=part.name)))
    if isinstance(part, Sequential):
        return (yield from run_in_order(part, run, given))
    if isinstance(part, Parallel):
        return (yield from run_side_by_side(part, run, given))
    return (yield from run_in_rounds(part, run, given))


def run_in_order(part: Sequential, run: NodeRun, given: NodeInput) -> Pieces:
    """Give each part what the one before it made. Any of them may stop the loop around."""
    made, stops = NOTHING, False
    for one in part.parts:
        made = yield from run_part(one, run, given)
        given, stops = given.after(made), stops or made.stops
    return replace(made, stops=stops)


def run_side_by_side(part: Parallel, run: NodeRun, given: NodeInput) -> Pieces:
    """Give each part the same, and join what they made. A worker computes them in the order of the declaration."""
    values, stops, goes_on = dict(NOTHING.values), False, False
    for one in part.parts:
        made = yield from run_part(one, run, given)
        if twice := sorted(values.keys() & made.values.keys()):
            raise GraphError(f"two parts of a Parallel make '{twice[0]}': give what each makes its own name")
        values, stops, goes_on = {**values, **made.values}, stops or made.stops, goes_on or made.goes_on
    return WalkValues(values, stops, goes_on)


def run_in_rounds(part: Loop, run: NodeRun, given: NodeInput) -> Pieces:
    """Give each round what the one before it made, and return what the last one made. A node that stops ends the loop
    after its round, and no loop around it."""
    for number in range(part.times or MOST_ROUNDS):
        if number:
            # Other tasks have their turn, also where no node of the body has several pieces.
            yield None
        made = yield from run_part(part.body, run, given)
        if made.stops or number + 1 == part.times:
            return replace(made, stops=False)
        given = given.after(made)
    raise GraphError(f"no node stopped a Loop in {MOST_ROUNDS} rounds")
