# SPDX-License-Identifier: Apache-2.0
"""The table that a bench prints: Markdown, a row for each load and server."""

from collections.abc import Iterator, Sequence

from pontil.launcher.tools.bench.figures import DEFINITIONS, Figures

COLUMNS = {
    "server": "server", "load": "load", "requests": "requests", "failures": "failures",
    "ttft_ms_median": "TTFT ms", "ttft_ms_p99": "TTFT p99", "tpot_ms_median": "TPOT ms", "tpot_ms_p99": "TPOT p99",
    "itl_ms_p99": "ITL p99", "e2e_ms_median": "E2E ms", "output_tokens_per_second": "output tokens/s",
    "kept_share": "kept", "goodput_per_second": "goodput/s",
}  # fmt: skip
# Of these a comparison has a row of ratios: the second server's figure over the first one's.
COMPARED = tuple(COLUMNS)[4:]


def table(rows: Sequence[Figures]) -> Iterator[str]:
    """Yield the lines of a Markdown table. Columns that no row has are left out."""
    names = [name for name in COLUMNS if any(name in row for row in rows)]
    yield line([COLUMNS[name] for name in names])
    yield line(["---" if name in ("server", "load") else "---:" for name in names])
    for row in rows:
        yield line([str(row.get(name, "")) for name in names])


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def ratio(first: Figures, second: Figures) -> Figures:
    """Return the row that compares two servers under one load."""
    shared_names = [name for name in COMPARED if first.get(name) and second.get(name) is not None]
    quotients = {name: round(second[name] / first[name], 2) for name in shared_names}
    return {"server": f"{second['server']} / {first['server']}", "load": first["load"]} | quotients


def definitions() -> Iterator[str]:
    width = max(map(len, DEFINITIONS))
    for term, meaning in DEFINITIONS.items():
        yield f"{term.ljust(width)}  {meaning}"
