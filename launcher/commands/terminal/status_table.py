# SPDX-License-Identifier: Apache-2.0
"""The processes of a server as a table for people: a pure function of the rows of /admin/topology."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from pontil.launcher.foundation.columns import aligned

STYLES = {
    "green": ("ready",),
    "yellow": ("starting", "draining", "backoff"),
    "red": ("stale", "killed", "exited", "given up"),
}
# A state fills its cell: two spaces, or the end of the line, stand around it.
PATTERNS = {colour: re.compile(rf"(?<=  )(?:{'|'.join(states)})(?=  |$)") for colour, states in STYLES.items()}


def coloured(lines: Sequence[str], out: TextIO) -> list[str]:
    """Return the lines of a table with colours, if the terminal has any: NO_COLOR and TERM are obeyed."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=out, force_terminal=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
    coloured_lines = []
    for number, line in enumerate(lines):
        text = Text(line, style="bold" if not number and len(lines) > 1 else "")
        for colour, pattern in PATTERNS.items():
            text.highlight_regex(pattern, colour)
        with console.capture() as capture:
            console.print(text, end="")
        coloured_lines.append(capture.get())
    return coloured_lines


StatusRow = Mapping[str, Any]
Columns = tuple[tuple[str, bool, Callable[[StatusRow], str]], ...]
MORE = "…"
# Rows of keys that are shown.
SHOWN_KEYS = 16
# The key of clients that need none.
NO_KEY = "-"


def table(processes: Sequence[StatusRow], width: int | None = None) -> list[str]:
    """Return lines without line ends: a heading, then a line for each row, and for each rank of a worker that has
    several. Columns that no row fills are left out; a line has at most `width` characters."""
    return laid_out([row for process in processes for row in (process, *ranks(process))], COLUMNS, width)


def laid_out(rows: Sequence[StatusRow], columns: Columns, width: int | None) -> list[str]:
    made_columns = [(name, right, [plain(cell(row)) for row in rows]) for name, right, cell in columns]
    filled_columns = [(name, right, cells) for name, right, cells in made_columns if any(cells)]
    lines = list(zip(*((name, *cells) for name, _, cells in filled_columns), strict=True))
    return [cut(line, width) for line in aligned(lines, [right for _, right, _ in filled_columns])]


def prompt_table(prompts: Sequence[StatusRow], width: int | None = None) -> list[str]:
    """Return an empty line and a table of the keys that sent prompts last; nothing if none did."""
    return ["", *laid_out(prompts[:SHOWN_KEYS], PROMPT_COLUMNS, width)] if prompts else []


def lease_table(leases: Sequence[StatusRow], width: int | None = None) -> list[str]:
    """Return an empty line and a table of the keys that hold leases on prefixes; nothing if none does."""
    return ["", *laid_out(leases[:SHOWN_KEYS], LEASE_COLUMNS, width)] if leases else []


def class_table(classes: Sequence[StatusRow], width: int | None = None) -> list[str]:
    """Return an empty line and a table of the classes, if there are requests of another one than the standard one."""
    others = [row for row in classes if row.get("class") != "standard" and (row.get("running") or row.get("waiting"))]
    return ["", *laid_out(classes, CLASS_COLUMNS, width)] if others else []


def key_table(keys: Sequence[StatusRow], width: int | None = None) -> list[str]:
    """Return an empty line and a table of the keys by class; nothing where there are no keys."""
    named = any(row.get("key") != NO_KEY for row in keys)
    return ["", *laid_out(keys[:SHOWN_KEYS], KEY_COLUMNS, width)] if named else []


def ranks(row: StatusRow) -> list[StatusRow]:
    return [rank | {"name": f"{row.get('name', '')} rank {rank.get('rank')}"} for rank in row.get("ranks", ())]


def plain(text: str) -> str:
    """Return the text on one line, whatever an exiting process wrote."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def cut(line: str, width: int | None) -> str:
    return line if width is None or len(line) <= width else line[: max(0, width - 1)] + MORE


def role(row: StatusRow) -> str:
    """Return the role if the name does not tell it: a worker may have been given another one."""
    role_name, name = str(row.get("role", "")), str(row.get("name", ""))
    return "" if name.partition(":")[0].rpartition("-")[2] == role_name else role_name


def state(row: StatusRow) -> str:
    return str(row.get("state", "")).lower().replace("_", " ")


def uptime(row: StatusRow) -> str:
    return "" if (seconds := row.get("uptime_seconds")) is None else duration(seconds)


def restarts(row: StatusRow) -> str:
    return str(row.get("restarts", ""))


def load(row: StatusRow) -> str:
    """Return waiting and running requests; an idle worker is called idle."""
    counts = row.get("load")
    if counts is None:
        return ""
    busy = [f"{counts[name]} {name}" for name in ("running", "waiting") if counts.get(name)]
    return ", ".join(busy) or "idle"


def cpu(row: StatusRow) -> str:
    return "" if (percent := row.get("cpu_percent")) is None else f"{percent:.0f} %"


def memory(row: StatusRow) -> str:
    return size(row.get("rss_bytes"))


def gpu_memory(row: StatusRow) -> str:
    return size(row.get("gpu_bytes"))


def reason(row: StatusRow) -> str:
    """Return why a process is in its state; for a healthy one, how its predecessor ended."""
    if row.get("reason"):
        wait = row.get("starts_in_seconds")
        return str(row["reason"]) + ("" if wait is None else f"; starts again in {duration(wait)}")
    exit_cause = row.get("last_death")
    return f"{duration(exit_cause['seconds_ago'])} ago it {exit_cause['reason']}" if exit_cause else ""


# Heading, whether it is right-aligned, and the cell of a row.
COLUMNS: Columns = (
    ("NAME", False, lambda row: str(row.get("name", ""))),
    ("ROLE", False, role),
    ("STATE", False, state),
    ("DEVICE", False, lambda row: str(row.get("device", ""))),
    ("PID", True, lambda row: str(row.get("pid") or "")),
    ("UPTIME", True, uptime),
    ("RESTARTS", True, restarts),
    ("CPU", True, cpu),
    ("MEMORY", True, memory),
    ("GPU MEMORY", True, gpu_memory),
    ("LOAD", False, load),
    ("REASON", False, reason),
)


def reused(row: StatusRow) -> str:
    """Return the share of the prompt tokens that were cached."""
    tokens = row.get("prompt_tokens")
    return f"{100 * row.get('cached_tokens', 0) / tokens:.0f} %" if tokens else ""


def difference(row: StatusRow) -> str:
    """Return where the last prompt first differed from the one before it that is most like it."""
    found = row.get("difference")
    if not found:
        return ""
    number = "" if found.get("message") is None else f", message {found['message']}"
    return f"token {found.get('token')} of {found.get('of')}, {found.get('part')}{number}"


PROMPT_COLUMNS: Columns = (
    ("KEY", False, lambda row: str(row.get("key", ""))),
    ("PROMPTS", True, lambda row: str(row.get("prompts", ""))),
    ("TOKENS", True, lambda row: str(row.get("prompt_tokens", ""))),
    ("CACHED", True, reused),
    ("LAST DIFFERENCE", False, difference),
)
LEASE_COLUMNS: Columns = (
    ("KEY", False, lambda row: str(row.get("key", ""))),
    ("LEASES", True, lambda row: str(row.get("leases", ""))),
    ("TOKENS", True, lambda row: str(row.get("tokens", ""))),
    ("KV", True, lambda row: size(row.get("bytes"))),
    ("UNTIL", True, lambda row: duration(row.get("seconds", 0))),
)


KEY_COLUMNS: Columns = (
    ("KEY", False, lambda row: str(row.get("key", ""))),
    ("CLASS", False, lambda row: str(row.get("class", ""))),
    ("SHARE", True, lambda row: f"{row.get('share', 1):g}"),
    ("REQUESTS", True, lambda row: str(row.get("requests", ""))),
    ("TOKENS", True, lambda row: str(row.get("tokens", ""))),
    ("RUNNING", True, lambda row: str(row.get("running", ""))),
    ("WAITING", True, lambda row: str(row.get("waiting", ""))),
)
CLASS_COLUMNS: Columns = (
    ("CLASS", False, lambda row: str(row.get("class", ""))),
    ("RUNNING", True, lambda row: str(row.get("running", ""))),
    ("WAITING", True, lambda row: str(row.get("waiting", ""))),
)


def duration(seconds: float) -> str:
    """Format seconds in the two largest units: 42 s, 3 min 07 s, 5 h 12 min, 9 d 4 h."""
    minutes, remainder = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {remainder:02} s" if minutes else f"{remainder} s"


def size(count: int | None) -> str:
    if count is None:
        return ""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
