# SPDX-License-Identifier: Apache-2.0
"""The next sequence in turn when it does not fit: how long another try would end the same way."""

from dataclasses import dataclass

from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.prefix import Key
from pontil.runtime.engine.sequences.sequence import Sequence


@dataclass(frozen=True, slots=True)
class BlockShortage:
    """A `sequence` found too few blocks: `lacking` more had to be available when `returned` had come back to the pool
    and `spare` had to stay available. Blocks that others take do not make it fit, nor do those of its own prefix: they
    are as many fewer to take. The key `missing` is the first of its prompt that was not known, if any."""

    sequence: Sequence
    lacking: int
    returned: int
    spare: int
    missing: Key | None

    def lasts(self, sequence: Sequence, pool: BlockPool, spare: int) -> bool:
        """Return whether the sequence still cannot fit, where so many blocks are to stay available."""
        came = pool.returned - self.returned + self.spare - spare
        is_known = self.missing is not None and self.missing in pool.index.blocks
        return sequence is self.sequence and came < self.lacking and not is_known
