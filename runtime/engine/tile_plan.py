# SPDX-License-Identifier: Apache-2.0
"""A tile as plain numbers: all that a process needs to compute it, without sequences."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pontil.gpu_ops.kernels.tile import TileSpan


@dataclass(frozen=True, slots=True)
class TilePlan:
    """The rows of `spans`, with their token `ids`, one after the other. `generated`: they go through products of the
    class for generated positions.

    Final hidden states are wanted of `rows`, in rising order. Of these, by their place among `rows`: the logits of
    `recorded` give logprobs of prompt tokens; those of `drawn` give new tokens.

    Rows that are no tokens are given by `embeddings`, float32 [rows, hidden_size]; followers know only ids.
    """

    generated: bool
    ids: Sequence[int]
    spans: Sequence[TileSpan]
    rows: Sequence[int]
    recorded: Sequence[int]
    drawn: Sequence[int]
    embeddings: Tensor | None = None

    @property
    def positions(self) -> list[int]:
        return [position for span in self.spans for position in range(span.start, span.start + span.count)]

    def to_wire(self) -> dict[str, Any]:
        """Return what followers need of the plan as the fields of a message. Numbers are 32 bits wide, in this
        machine's order."""
        spans = [number for span in self.spans for number in (span.start, span.count, len(span.blocks))]
        blocks = array("i")
        for span in self.spans:
            blocks.extend(span.blocks)
        numbers = {"ids": self.ids, "spans": spans, "rows": self.rows, "recorded": self.recorded, "drawn": self.drawn}
        packed = {name: array("i", each).tobytes() for name, each in numbers.items()}
        return {"generated": self.generated, "blocks": blocks.tobytes(), **packed}


def tile_plan(fields: dict[str, Any]) -> TilePlan:
    """Return the plan that `to_wire` wrote. Raises KeyError, TypeError or ValueError for anything else."""
    ids, spans, rows, recorded, drawn, blocks = (
        array("i", fields[name]) for name in ("ids", "spans", "rows", "recorded", "drawn", "blocks")
    )
    found: list[TileSpan] = []
    first = 0
    for start, count, length in zip(spans[::3], spans[1::3], spans[2::3], strict=True):
        found.append(TileSpan(start, count, blocks[first : first + length]))
        first += length
    return TilePlan(bool(fields["generated"]), ids, found, rows, recorded, drawn)
