# SPDX-License-Identifier: Apache-2.0
"""The report of a bench: a table in Markdown, with a row for each load and server, and a picture of time to first token
and goodput over the load."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pontil.launcher.tools.bench.figures import DEFINITIONS, Figures

COLUMNS = {
    "server": "server",
    "load": "load",
    "requests": "requests",
    "failures": "failures",
    "ttft_ms_median": "TTFT ms",
    "ttft_ms_p99": "TTFT p99",
    "tpot_ms_median": "TPOT ms",
    "tpot_ms_p99": "TPOT p99",
    "itl_ms_p99": "ITL p99",
    "e2e_ms_median": "E2E ms",
    "output_tokens_per_second": "output tokens/s",
    "kept_share": "kept",
    "goodput_per_second": "goodput/s",
}
# Of these a comparison has a row of ratios: the second server's figure over the first one's.
COMPARED = tuple(COLUMNS)[4:]
# Of a line for each server.
COLOURS = ("#2563b0", "#c2571a")


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


def draw(rows: Sequence[Figures], file: Path) -> None:
    """Write a PNG of the rows, which have `server`, a load and its figures. Raises OSError."""
    from matplotlib.figure import Figure

    axis = "request_rate" if "request_rate" in rows[0] else "concurrency"
    speed, unit = best_rate(rows)
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    times, rates = figure.subplots(1, 2)
    timed_rows = sorted((row for row in rows if "ttft_ms_median" in row), key=lambda row: row[axis])
    for server, colour in zip(dict.fromkeys(row["server"] for row in rows), COLOURS, strict=False):
        server_rows = [row for row in timed_rows if row["server"] == server]
        loads = [row[axis] for row in server_rows]
        times.plot(loads, [row["ttft_ms_median"] for row in server_rows], "o-", color=colour, label=f"{server}, median")
        times.plot(loads, [row["ttft_ms_p99"] for row in server_rows], "^:", color=colour, label=f"{server}, 99 %")
        rates.plot(loads, [row[speed] for row in server_rows], "o-", color=colour, label=server)
    label = "requests a second" if axis == "request_rate" else "streams at once"
    for plot, title, name in ((times, "time to first token", "ms"), (rates, unit, "a second")):
        plot.set(title=title, xlabel=label, ylabel=name, ylim=(0, None))
        plot.grid(alpha=0.3)
        plot.legend()
    figure.savefig(file, format="png", dpi=110)


def best_rate(rows: Sequence[Figures]) -> tuple[str, str]:
    """Return the rate that is drawn: goodput where limits were given, else tokens."""
    if any("goodput_per_second" in row for row in rows):
        return "goodput_per_second", "goodput: requests within the limits"
    return "output_tokens_per_second", "output tokens"
