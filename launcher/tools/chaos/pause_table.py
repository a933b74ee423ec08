# SPDX-License-Identifier: Apache-2.0
"""The pauses of streams, each attributed to the faults during which it was; pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from pontil.launcher.tools.chaos.chaos_load import AnswerRecord
from pontil.launcher.tools.chaos.disturber import FaultRecord
from pontil.launcher.tools.chaos.fault_plan import OF_PROXIES, VARIANTS, Kind

NONE = "none"
KINDS: tuple[Kind, ...] = (
    *((variant, False) for variants in VARIANTS.values() for variant in variants),
    *((variant, True) for fault in OF_PROXIES for variant in VARIANTS[fault]),
)
HEADING = (
    "fault",
    "times",
    "longest pause",
    "median",
    "first token",
    "back after",
    "failovers",
    "failed handoffs",
    "failed writes",
)
EFFECTS = ("failovers", "failed_handoffs", "failed_writes")
Window = tuple[float, float]


@dataclass(frozen=True, slots=True)
class PauseRow:
    """The figures of one kind of fault, in seconds; None where no stream ran meanwhile. `median` is that of the
    longest pauses of all streams in each fault, `first_token` the longest wait for one, `back_after` the longest time
    until the launch was whole. Then what the server counted meanwhile: failovers, handoffs that failed, and writes to
    the usage log that did."""

    fault: str
    times: int
    longest: float | None
    median: float | None
    first_token: float | None
    back_after: float | None
    failovers: int | None = None
    failed_handoffs: int | None = None
    failed_writes: int | None = None


def pause_rows(records: Sequence[AnswerRecord], faults: Sequence[FaultRecord]) -> list[PauseRow]:
    """Return a row for each kind that took place, those of proxies last, and one for the times without any fault."""
    actual_faults = [fault for fault in faults if fault.took_place]
    windows = [(fault.begun, fault.recovered) for fault in actual_faults]
    rows = []
    for kind in KINDS:
        some = [fault for fault in actual_faults if fault.planned.kind == kind]
        if some:
            rows.append(row_of(label_of(kind), records, some))
    calm = [gap for record in records if (gap := longest_outside(waits(record), windows)) is not None]
    firsts = [gap for record in records if (gap := longest_outside(first_wait(record), windows)) is not None]
    first = max(firsts, default=None)
    return [*rows, PauseRow(NONE, 0, max(calm, default=None), median(calm) if calm else None, first, None)]


def label_of(kind: Kind) -> str:
    variant, of_proxy = kind
    return f"{variant}, proxy" if of_proxy else variant


def row_of(label: str, records: Sequence[AnswerRecord], faults: Sequence[FaultRecord]) -> PauseRow:
    windows = [(fault.begun, fault.recovered) for fault in faults]
    pauses = [gap for window in windows for record in records if (gap := longest_in(waits(record), window)) is not None]
    firsts = [
        gap for window in windows for record in records if (gap := longest_in(first_wait(record), window)) is not None
    ]
    effects = {name: sum(fault.effects.get(name, 0) for fault in faults) for name in EFFECTS}
    return PauseRow(
        label,
        len(faults),
        max(pauses, default=None),
        median(pauses) if pauses else None,
        max(firsts, default=None),
        max(fault.recovered - fault.begun for fault in faults),
        **effects,
    )


def waits(record: AnswerRecord) -> list[Window]:
    return record.gaps


def first_wait(record: AnswerRecord) -> list[Window]:
    """Return the wait for the first token, if one came."""
    return [(record.sent, record.arrivals[0])] if record.arrivals else []


def longest_in(gaps: Sequence[Window], window: Window) -> float | None:
    """Return the longest of the gaps that a window meets."""
    window_start, window_end = window
    return max((end - start for start, end in gaps if start <= window_end and end >= window_start), default=None)


def longest_outside(gaps: Sequence[Window], windows: Sequence[Window]) -> float | None:
    calm = [
        (start, end)
        for start, end in gaps
        if all(end < window_start or start > window_end for window_start, window_end in windows)
    ]
    return max((end - start for start, end in calm), default=None)


def table_lines(rows: Sequence[PauseRow]) -> Iterator[str]:
    """Yield the rows under their headings; the first column is text."""
    cells = [HEADING, *(row_cells(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADING))]
    for first, *other_cells in cells:
        yield "  ".join(
            [first.ljust(widths[0]), *(cell.rjust(size) for cell, size in zip(other_cells, widths[1:], strict=True))]
        )


def row_cells(row: PauseRow) -> tuple[str, ...]:
    times = (row.longest, row.median, row.first_token, row.back_after)
    time_cells = (
        "" if seconds is None else f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
        for seconds in times
    )
    counts = ("" if getattr(row, name) is None else str(getattr(row, name)) for name in EFFECTS)
    return (row.fault, str(row.times or ""), *time_cells, *counts)
