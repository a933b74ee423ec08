# SPDX-License-Identifier: Apache-2.0
"""The colours of the table of `status` on a terminal."""

import re
from collections.abc import Sequence
from typing import TextIO

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
    made = []
    for number, line in enumerate(lines):
        text = Text(line, style="bold" if not number and len(lines) > 1 else "")
        for colour, pattern in PATTERNS.items():
            text.highlight_regex(pattern, colour)
        with console.capture() as captured:
            console.print(text, end="")
        made.append(captured.get())
    return made
