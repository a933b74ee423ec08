# SPDX-License-Identifier: Apache-2.0
"""Tables of plain text."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Return a line for each row: cells as wide as the widest of their column, two spaces apart, aligned to the `right`
    in some columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = (zip(row, widths, right, strict=True) for row in rows)
    return [
        "  ".join(text.rjust(size) if end else text.ljust(size) for text, size, end in row).rstrip() for row in cells
    ]
