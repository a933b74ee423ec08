# SPDX-License-Identifier: Apache-2.0
"""The part of one run that a worker does: the stage, and the edges into it and out of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pontil.runtime.errors import MalformedFrame

# A producer of an edge: its incarnation, and the endpoint at which it is reached.
Producer = tuple[str, str]


@dataclass(frozen=True, slots=True)
class GraphPart:
    """One worker's part of a run. Edges are named "from/to/name".

    It produces the items of `outputs`, and consumes those of `inputs`, whose producers are named. `walks` are those of
    its stage that it computes, empty for all of them. A stage that is computed again for its items alone gets prompt
    and answer, without the last id, as one prompt: the first `positions` tokens of it are the prompt of the run (None:
    all), and `answer` is the whole answer. `options` are the client's for this stage.
    """

    run: str
    node: str
    secret: str = field(repr=False)
    outputs: tuple[str, ...] = ()
    inputs: Mapping[str, tuple[Producer, ...]] = field(default_factory=dict)
    walks: tuple[str, ...] = ()
    positions: int | None = None
    answer: tuple[int, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        """Return the part as plain values for a message."""
        return {
            "run": self.run,
            "node": self.node,
            "secret": self.secret,
            "outputs": list(self.outputs),
            "inputs": {edge: [list(producer) for producer in producers] for edge, producers in self.inputs.items()},
            "walks": list(self.walks),
            "positions": self.positions,
            "options": dict(self.options),
            "answer": list(self.answer),
        }


def graph_part(values: Mapping[str, Any]) -> GraphPart:
    """Return the part that `to_wire` wrote. Raises MalformedFrame for anything else."""
    try:
        inputs = {
            edge: tuple((str(peer), str(endpoint)) for peer, endpoint in producers)
            for edge, producers in values["inputs"].items()
        }
        part = GraphPart(
            str(values["run"]),
            str(values["node"]),
            str(values["secret"]),
            tuple(map(str, values["outputs"])),
            inputs,
            tuple(map(str, values["walks"])),
            values["positions"],
            tuple(values["answer"]),
            dict(values["options"]),
        )
        numbers = part.answer if part.positions is None else (part.positions, *part.answer)
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError("positions and ids are whole numbers from 0 on")
        return part
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MalformedFrame(f"a part of a graph is malformed: {error}") from None
