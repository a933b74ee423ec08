# SPDX-License-Identifier: Apache-2.0
"""The ownership of KV blocks.

Conservation: free + idle + owned = all blocks but block 0, and credits <= free + idle. Block 0 is never owned: tables
are padded with it.

free    it holds nothing worth keeping
idle    it has no owner, but the prefix index can find it; the least recently used one is evicted first
owned   one or more owners; a block with several owners is read-only

A credit is a reservation of one block that has not been picked yet, so that a prompt can be admitted whole and bind
blocks only as it grows.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from pontil.runtime.cache.prefix import IndexObserver, Key, PrefixIndex


class BlockPool:
    """Allocates block numbers 1 … num_blocks - 1. Not thread-safe: the engine's thread owns it.

    Blocks released last are allocated first, and free ones before idle ones: memory that was never needed is never
    touched. Blocks are first allocated in the order of their numbers; `highest` is the last one that ever was.
    `returned` counts what became available ever: blocks that lost their last owner, and credits.

    `evicted`, set by the component that keeps evicted blocks elsewhere, is called with a block and its last key, that
    of most tokens, while the block still has its content.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError("a pool needs block 0 and at least one more")
        self.num_blocks = num_blocks
        self.index = PrefixIndex()
        self.free_list = list(range(num_blocks - 1, 0, -1))
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.owners: dict[int, int] = {}
        self.credits = 0
        self.highest = self.returned = 0
        self.evicted: Callable[[int, Key], None] | None = None

    @property
    def capacity(self) -> int:
        """Blocks that sequences can own."""
        return self.num_blocks - 1

    @property
    def available(self) -> int:
        """Blocks that are neither owned nor reserved."""
        return len(self.free_list) + len(self.idle) - self.credits

    @property
    def has_unused(self) -> bool:
        """Return whether a block is available that holds nothing worth keeping."""
        return bool(self.free_list) and self.available > 0

    def reserve(self, count: int, found: Sequence[int] = (), spare: int = 0) -> bool:
        """Become an owner of the blocks `found` and reserve `count` credits more, or change nothing and return False.

        `spare` blocks must stay available beyond that.
        """
        if self.taken_by(count, found) + spare > self.available:
            return False
        self.share(found)
        self.credits += count
        return True

    def taken_by(self, count: int, found: Sequence[int]) -> int:
        """Return how many fewer blocks are available after such a reservation."""
        return count + sum(block in self.idle for block in found)

    def bind(self, count: int) -> list[int]:
        """Turn `count` credits into blocks."""
        assert count <= self.credits, "a block was bound without a credit"
        self.credits -= count
        blocks = [self.pick() for _ in range(count)]
        self.owners.update(dict.fromkeys(blocks, 1))
        return blocks

    def take(self, count: int) -> list[int] | None:
        """Allocate `count` blocks at once, or return None."""
        return self.bind(count) if self.reserve(count) else None

    def pick(self) -> int:
        if self.free_list:
            block = self.free_list.pop()
            self.highest = max(self.highest, block)
            return block
        self.evict()
        return self.free_list.pop()

    def evict(self) -> None:
        """Make the idle block that was used least recently a free one."""
        block = next(iter(self.idle))
        if self.evicted is not None:
            # A block that an earlier process left may be damaged, and must not be kept elsewhere as if it were whole.
            if not self.index.observer.confirms(block):
                return
            self.evicted(block, self.index.keys[block][-1])
        self.discard(block)

    def touched(self) -> list[int]:
        """Return the free blocks that had an owner once, in ascending order."""
        return sorted(block for block in self.free_list if block <= self.highest)

    def is_free(self, block: int) -> bool:
        return block not in self.owners and block not in self.idle

    def renew(self) -> None:
        """Begin anew with free blocks as if none of them had ever had an owner."""
        self.free_list.sort(reverse=True)
        self.highest = max((*self.owners, *self.idle), default=0)

    def share(self, blocks: Sequence[int]) -> None:
        """Add an owner to each of these blocks, which are owned or idle. The caller makes sure that no credit needs the
        idle ones."""
        for block in blocks:
            if block in self.idle:
                del self.idle[block]
                self.owners[block] = 1
            else:
                self.owners[block] += 1

    def touch(self, block: int) -> None:
        """Mark a block as just used, without an owner."""
        if block in self.idle:
            self.idle.move_to_end(block)
            self.index.observer.used(block)

    def retire(self, block: int) -> None:
        """Mark a block without an owner as the first one to be evicted."""
        if block in self.idle:
            self.idle.move_to_end(block, last=False)

    def is_shared(self, block: int) -> bool:
        return self.owners[block] > 1

    def release(self, blocks: Sequence[int], credits: int = 0) -> None:
        """Remove one owner of each block, and return unused credits. A prefix is evicted from its end."""
        assert credits <= self.credits, "more credits came back than were given"
        self.credits -= credits
        self.returned += credits
        for block in reversed(blocks):
            assert block in self.owners, f"block {block} was released twice"
            self.owners[block] -= 1
            if self.owners[block] == 0:
                self.rest(block)

    def rest(self, block: int) -> None:
        """Make a block idle or free after its last owner released it."""
        del self.owners[block]
        self.returned += 1
        if self.index.knows(block):
            self.idle[block] = None
            self.index.observer.rested(block)
        else:
            self.free_list.append(block)

    def watch(self, observer: IndexObserver) -> None:
        """Have an observer hear of everything that happens to blocks with keys."""
        self.index.observer = observer

    def restore(self, blocks: Sequence[int]) -> None:
        """Make these blocks of a fresh pool idle: the index knows them. The one that was used last is at the end."""
        self.idle.update(dict.fromkeys(blocks))
        self.free_list = [block for block in self.free_list if block not in self.idle]
        self.highest = max(blocks, default=0)

    def discard(self, block: int) -> None:
        """Forget an idle block, which is free then."""
        del self.idle[block]
        self.index.forget(block)
        self.free_list.append(block)

    def forget_prefixes(self) -> None:
        """Forget the prefix index: no computed block will be found again."""
        self.free_list += reversed(self.idle)
        self.idle.clear()
        self.index.clear()

    def check(self) -> None:
        """Assert the conservation law."""
        free, idle, owned_blocks = set(self.free_list), set(self.idle), set(self.owners)
        assert len(self.free_list) + len(idle) + len(owned_blocks) == self.capacity
        assert len(free | idle | owned_blocks) == self.capacity and 0 not in free | idle | owned_blocks
        assert 0 <= self.credits <= len(free) + len(idle)
        assert all(count > 0 for count in self.owners.values())
        assert idle <= self.index.keys.keys() and not free & self.index.keys.keys()
