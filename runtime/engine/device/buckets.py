# SPDX-License-Identifier: Apache-2.0
"""The row counts to which tiles of a device are padded, so that few shapes occur."""

SMALL = (1, 2, 4, 8, 16, 24, 32, 48)
STEP = 32


def buckets(most: int) -> tuple[int, ...]:
    """Return the row counts up to `most`, which is one of them: 1, 2, 4, 8, 16, 24, 32, 48, 64, then steps of 32."""
    larger = range(64, most, STEP)
    return tuple(sorted({*(size for size in SMALL if size < most), *larger, most}))


def bucket_of(rows: int, sizes: tuple[int, ...]) -> int:
    """Return the least of the sizes that is enough."""
    return next(size for size in sizes if size >= rows)


def widths(most: int) -> tuple[int, ...]:
    """Return the numbers of blocks for which tables of decode steps are made: the most, and eighths of it while they
    are many. Kernels may start programs for a whole table."""
    table_widths = [most]
    while table_widths[-1] > 64:
        table_widths.append(-(-table_widths[-1] // 8))
    return tuple(reversed([-(-width // 4) * 4 for width in table_widths]))
