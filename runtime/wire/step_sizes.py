# SPDX-License-Identifier: Apache-2.0
"""The times of steps in heartbeats, by the steps' sizes."""

from collections.abc import Mapping
from math import log2

# Steps are of one size whose rows differ by less than a part of so many of a doubling, up to this one.
SIZES, LAST = 2, 40
DECODE_GAUGES = tuple(f"decode_step_microseconds_{size}" for size in range(LAST + 1))
PREFILL_GAUGES = tuple(f"prefill_step_microseconds_{size}" for size in range(LAST + 1))


def size_of(rows: int) -> int:
    """Return the size of steps of so many rows, at least one."""
    return min(LAST, int(SIZES * log2(rows)))


def step_seconds(gauges: Mapping[str, int], names: tuple[str, ...]) -> dict[float, float]:
    """Return the seconds of steps that a heartbeat tells of under these names, by the fewest rows of their size."""
    return {2.0 ** (size / SIZES): gauges[name] * 1e-6 for size, name in enumerate(names) if gauges.get(name, 0) > 0}
