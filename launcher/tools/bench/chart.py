# SPDX-License-Identifier: Apache-2.0
"""A picture of a bench: time to first token and goodput over the load, a line for each server."""

from collections.abc import Sequence
from pathlib import Path

from pontil.launcher.tools.bench.figures import Figures

COLOURS = ("#2563b0", "#c2571a")


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
