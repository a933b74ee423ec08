# SPDX-License-Identifier: Apache-2.0
"""The output of a launch once all of it is ready: placement of the processes, KV transfer rates between them, an
example request."""

import json
from collections.abc import Sequence
from typing import Any

from pontil.launcher.child.child import Child
from pontil.runtime.foundation.number_ranges import spell

NOTHING = "-"
PROCESSES = ("process", "device", "cores", "KV tokens", "KV dtype", "pid")
PAIRS = ("pair", "KV moved", "GB/s")


def overview(children: Sequence[Child], results: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of two tables: the processes, and the worker pairs that the self-test used."""
    lines = table(PROCESSES, [process_row(child) for child in children])
    pairs = [pair_row(result) for result in results if result.get("bytes")]
    return lines + (table(PAIRS, pairs) if pairs else [])


def process_row(child: Child) -> tuple[str, ...]:
    tokens = child.facts.get("kv_tokens")
    pid = child.running.process.pid if child.running else None
    kv = NOTHING if tokens is None else f"{tokens:,}"
    cells = str(child.facts.get("kv_cache_dtype", NOTHING))
    cores = {core for member in child.plan.members for core in member.cores}
    return child.name, child.plan.place, spell(cores), kv, cells, str(pid or NOTHING)


def pair_row(result: dict[str, Any]) -> tuple[str, ...]:
    """Return the row of a pair's first transfer. Memory that was never touched is slower than it will be later."""
    moved, seconds = result["bytes"], result.get("seconds")
    rate = f"{moved / seconds / 1e9:.2f}" if seconds else NOTHING
    return result["route"], f"{moved / 1e6:.1f} MB", rate


def table(heading: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Format columns as wide as their widest cell; number columns are right-aligned."""
    cells = [heading, *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heading))]
    numbers = [all(is_number(row[column]) for row in rows) for column in range(len(heading))]
    return ["  " + "  ".join(map(aligned, row, widths, numbers)).rstrip() for row in cells]


def is_number(cell: str) -> bool:
    return cell == NOTHING or cell[:1].isdigit()


def aligned(cell: str, width: int, number: bool) -> str:
    return cell.rjust(width) if number else cell.ljust(width)


def example(url: str, model: str, asks_for_keys: bool = False) -> str:
    """Return a command to try at a terminal."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello!"}]})
    key = ' -H "authorization: Bearer $KEY"' if asks_for_keys else ""
    return f"curl {url}/v1/chat/completions{key} -H 'content-type: application/json' -d '{shell_quoted(body)}'"


def shell_quoted(text: str) -> str:
    """Quote the text for use between single quotes."""
    return text.replace("'", "'\\''")
