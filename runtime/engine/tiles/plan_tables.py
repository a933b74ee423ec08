# SPDX-License-Identifier: Apache-2.0
"""Plans of tiles on their way from the driver of a worker to its followers: of a block table only what has changed.

The writer numbers tables by slots and keeps what it has told of each. It compares the whole table each time, so that no
change can be missed, and says how many of the first blocks stay and which follow. The reader has the same slots. Both
begin empty, and every plan has a number: one that is lost or comes twice is an error, never a wrong table.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pontil.gpu_ops.kernels.tile import TileSpan
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.errors import TransferError
from pontil.runtime.models.media_rows import MediaRows

# Tables that followers keep: more than a tile has spans.
MOST_TABLES = 1024
# Numbers that describe a span: its start and count, its adapter, its drafts, the position from which on it has the
# adapter, the slot of its table, the blocks of it that stay, and new ones.
SPAN_FIELDS = 8


class PlanWriter:
    """Writes the plans of one driver, in the order in which its followers read them."""

    def __init__(self) -> None:
        self.number = 0
        # By the identity of a sequence's list of blocks, a mere guess at what is alike: slot and last told blocks, the
        # least recently used first.
        self.told: dict[int, tuple[int, list[int]]] = {}

    def write(self, plan: TilePlan) -> dict[str, Any]:
        """Return what followers need of the plan as the fields of a message. Numbers are 32 bits wide, in this
        machine's order."""
        assert len(plan.spans) <= MOST_TABLES
        self.number += 1
        spans, blocks = array("i"), array("i")
        for span in plan.spans:
            slot, kept_count, new_blocks = self.change(span)
            own = span.start, span.count, span.adapter, span.drafts, span.adapted_from
            spans.extend((*own, slot, kept_count, len(new_blocks)))
            blocks.extend(new_blocks)
        numbers = {"ids": plan.ids, "rows": plan.rows, "recorded": plan.recorded, "drawn": plan.drawn}
        columns = {name: array("i", column).tobytes() for name, column in numbers.items()}
        tables = {"spans": spans.tobytes(), "blocks": blocks.tobytes()}
        if plan.embeddings is not None:
            tables["embeddings"] = sent(plan.embeddings)
        if plan.media is not None:
            tables |= {"angles": sent(torch.cat(plan.media.angles, 1)), "deep": sent(plan.media.deep)}
        return {"number": self.number, "generated": plan.generated, "on_device": plan.on_device, **tables, **columns}

    def change(self, span: TileSpan) -> tuple[int, int, list[int]]:
        """Return the slot of a span's table, how many of the blocks told before stay, and those that follow."""
        key, blocks = id(span.blocks), span.blocks
        slot, known_blocks = self.told.pop(key) if key in self.told else self.new_table()
        prefix = blocks if len(blocks) == len(known_blocks) else blocks[: len(known_blocks)]
        kept_count = len(known_blocks) if prefix == known_blocks else common(known_blocks, blocks)
        new_blocks = list(blocks[kept_count:])
        known_blocks[kept_count:] = new_blocks
        self.told[key] = slot, known_blocks
        return slot, kept_count, new_blocks

    def new_table(self) -> tuple[int, list[int]]:
        """Return a slot that was never used, or that of the table that was used least recently, with its blocks."""
        if len(self.told) < MOST_TABLES:
            return len(self.told), []
        return self.told.pop(next(iter(self.told)))


def common(some: Sequence[int], others: Sequence[int]) -> int:
    """Return the length of the common beginning."""
    pairs = zip(some, others, strict=False)
    return next((place for place, (first, second) in enumerate(pairs) if first != second), min(len(some), len(others)))


class PlanReader:
    """Reads the plans of a driver. The tables of a plan are as it says until the next one is read. `highest` is the
    last block that was ever in one."""

    def __init__(self) -> None:
        self.number = self.highest = 0
        self.tables: dict[int, array[int]] = {}

    def read(self, fields: dict[str, Any]) -> TilePlan:
        """Return the plan that was written. Raise TransferError for one that is not the next, or cannot be read."""
        if fields.get("number") != self.number + 1:
            raise TransferError(
                f"tile {fields.get('number')} came after tile {self.number}: this worker's ranks have parted"
            )
        self.number += 1
        try:
            return self.plan(fields)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise TransferError(f"a tile cannot be read ({error!r}): start the worker again") from error

    def plan(self, fields: dict[str, Any]) -> TilePlan:
        ids, numbers, rows, recorded_places, drawn_places, blocks = (
            array("i", fields[name]) for name in ("ids", "spans", "rows", "recorded", "drawn", "blocks")
        )
        self.highest = max((self.highest, *blocks))
        spans, first = list[TileSpan](), 0
        columns = (numbers[place::SPAN_FIELDS] for place in range(SPAN_FIELDS))
        for start, count, adapter, drafts, adapted_from, slot, kept_count, added_count in zip(*columns, strict=True):
            table = self.table(slot, kept_count, blocks[first : first + added_count], added_count)
            spans.append(TileSpan(start, count, table, adapter, drafts, adapted_from))
            first += added_count
        if first != len(blocks):
            raise ValueError("blocks of no table")
        is_generated, on_device = bool(fields["generated"]), bool(fields["on_device"])
        embeddings = embedded(fields.get("embeddings"), len(ids))
        media = None if embeddings is None else media_of(fields, embeddings)
        return TilePlan(is_generated, ids, spans, rows, recorded_places, drawn_places, embeddings, on_device, media)

    def table(self, slot: int, kept: int, added: "array[int]", count: int) -> "array[int]":
        table = self.tables.setdefault(slot, array("i"))
        if not 0 <= kept <= len(table) or not 0 <= slot < MOST_TABLES or len(added) != count:
            raise ValueError(f"a table of {len(table)} blocks has no {kept} to keep, or is not whole")
        del table[kept:]
        table.extend(added)
        return table


def sent(rows: Tensor) -> bytes:
    return rows.float().cpu().numpy().tobytes()


def media_of(fields: dict[str, Any], embeddings: Tensor) -> MediaRows | None:
    """Return the facts about the rows of these embeddings, if some stand for images."""
    angles = embedded(fields.get("angles"), len(embeddings))
    if angles is None:
        return None
    cosines, sines = angles.chunk(2, dim=1)
    deep = np.frombuffer(fields["deep"], np.float32).reshape(-1, *embeddings.shape)
    return MediaRows((cosines, sines), torch.from_numpy(deep.copy()))


def embedded(data: bytes | None, rows: int) -> Tensor | None:
    """Return the embeddings of so many rows, None where they are those of ids."""
    return torch.from_numpy(np.frombuffer(data, np.float32).reshape(rows, -1).copy()) if data else None
