# SPDX-License-Identifier: Apache-2.0
"""The decision whether a prefix is read from a tier or computed: whichever is expected to be sooner."""

from collections.abc import Iterable
from dataclasses import dataclass, field

# Reading must be expected to take at most this part of what computing takes.
SHARE = 0.5
# The weight of one observed read against all before it; and the most it counts for, in times of what was expected.
WEIGHT, MOST_SURPRISE = 0.1, 8.0
# With each time that a tier is not read, what was observed of it weighs so much less against what was measured at
# start: a disk that was slow once is tried again.
FORGET = 0.99


@dataclass(slots=True)
class TierCosts:
    """The seconds to compute a prompt token, the seconds of a read besides its blocks, and by tier those of a block, as
    measured at start. Reads that are observed change the last. Pure: touches no clock."""

    per_token: float
    base: float
    at_start: dict[str, float]
    per_block: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        self.per_block = dict(self.at_start)

    def know(self, tier: str, seconds: float) -> None:
        """Take the seconds of a block of one more tier."""
        self.at_start[tier] = self.per_block[tier] = seconds

    def seconds(self, tiers: Iterable[str]) -> float:
        """Return the expected seconds of a read of blocks from these tiers."""
        return self.base + sum(self.per_block[tier] for tier in tiers)

    def worth(self, blocks: Iterable[tuple[str, int]], waiting: float = 0.0) -> int:
        """Return how many of the blocks to read, from the first on, so that most time is saved. For each there are its
        tier and the tokens that need not be computed then; `waiting` seconds pass before the read begins."""
        best, most, read_seconds, compute_seconds = 0, 0.0, self.base + waiting, 0.0
        for place, (tier, tokens) in enumerate(blocks, 1):
            read_seconds += self.per_block[tier]
            compute_seconds += tokens * self.per_token
            saved_seconds = SHARE * compute_seconds - read_seconds
            if saved_seconds > most:
                best, most = place, saved_seconds
        return best

    def least(self, tier: str, block_size: int) -> int | None:
        """Return the fewest tokens that are worth a read from a tier; None where computing is always sooner."""
        gain = SHARE * block_size * self.per_token - self.per_block[tier]
        return None if gain <= 0 else block_size * (int(self.base / gain) + 1)

    def observe(self, seconds: dict[str, tuple[float, int]]) -> None:
        """Take note of reads: by tier, the seconds and the number of blocks."""
        for tier, (total, count) in seconds.items():
            expected_seconds = self.per_block[tier]
            measured_seconds = min(total / count, MOST_SURPRISE * expected_seconds)
            self.per_block[tier] = expected_seconds + WEIGHT * (measured_seconds - expected_seconds)

    def refused(self, tiers: Iterable[str]) -> None:
        """Take note that blocks of these tiers were not worth reading."""
        for tier in set(tiers):
            start = self.at_start[tier]
            self.per_block[tier] = start + FORGET * (self.per_block[tier] - start)
