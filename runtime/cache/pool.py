# SPDX-License-Identifier: Apache-2.0
"""Who owns which KV block.

Conservation: free + owned = all blocks but block 0, and credits <= free. Block 0 belongs to nobody: tables are padded
with it. A credit is a promise of one block that has not been picked yet, so that a sequence can be admitted whole and
bind blocks only as it grows.
"""


class BlockPool:
    """Hands out block numbers 1 … num_blocks - 1. Not thread-safe: the engine's thread owns it.

    What was released last goes out first: memory that was never needed is never touched.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError("a pool needs block 0 and at least one more")
        self.num_blocks = num_blocks
        self.free_list = list(range(num_blocks - 1, 0, -1))
        self.owned: set[int] = set()
        self.credits = 0

    @property
    def capacity(self) -> int:
        """Blocks that sequences can own."""
        return self.num_blocks - 1

    @property
    def available(self) -> int:
        """Blocks that are neither owned nor promised."""
        return len(self.free_list) - self.credits

    def reserve(self, count: int) -> bool:
        """Promise `count` blocks, or change nothing and say False."""
        if count > self.available:
            return False
        self.credits += count
        return True

    def bind(self, count: int) -> list[int]:
        """Turn `count` credits into blocks."""
        assert count <= self.credits, "a block was bound without a credit"
        self.credits -= count
        blocks = [self.free_list.pop() for _ in range(count)]
        self.owned.update(blocks)
        return blocks

    def release(self, blocks: list[int], credits: int = 0) -> None:
        """Take back blocks and unused credits."""
        assert credits <= self.credits, "more credits came back than were given"
        self.credits -= credits
        for block in reversed(blocks):
            assert block in self.owned, f"block {block} was released twice"
            self.owned.remove(block)
            self.free_list.append(block)

    def check(self) -> None:
        """Assert the conservation law."""
        assert len(self.free_list) + len(self.owned) == self.capacity
        assert 0 <= self.credits <= len(self.free_list)
        assert not self.owned.intersection(self.free_list)
