# SPDX-License-Identifier: Apache-2.0
"""The index from token prefixes to KV blocks, so that a prompt that begins like an earlier one is not computed again.

A block is found by a chained hash: of its own tokens and, through the key of the block before it, of all earlier
tokens. The chain starts from a salt, so that tenants who must not learn of each other's prompts share nothing. An
adapter is in the key of the block that has the first position computed with it, and so in those of all later ones: what
another one computed is never found, and what the model alone computed before it always is. The last, unfilled block of
a prompt has a key as well, so that an identical prompt finds all of it. Where blocks end with states, one that is not
full is found by whatever begins with all of its tokens (`end_keys`).

A position whose rows are made of more than its token, as the first one of an image, has a number from OTHER_THAN_ID on
in place of that token, which names whatever they are made of.
"""

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from pontil.runtime.cache.adaptation import NOT_ADAPTED, Adaptation
from pontil.runtime.cache.prefix_journal import PrefixJournal

KEY_BYTES = 16
# Tokens of a block that ends with the states of recurrent layers: more than of any other.
STATE_TOKENS = 256
# The least number that stands for more than a token, and the bytes of the largest.
OTHER_THAN_ID, OTHER_BYTES = 1 << 127, 16
# The beginning of such a number among the ids, none of which is negative.
OTHER_MARK = (-1).to_bytes(8, "little", signed=True)

Key = bytes


def root_key(salt: str) -> Key:
    """The start of the chain of every prompt with this salt."""
    data = salt.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=KEY_BYTES, person=b"salt").digest()


def encoded(tokens: Sequence[int]) -> bytes:
    """Return the bytes of tokens, and of what stands in the places of some. No two sequences have the same ones."""
    try:
        return array("q", tokens).tobytes()
    except OverflowError:
        return b"".join(map(of_one, tokens))


def of_one(token: int) -> bytes:
    if token < OTHER_THAN_ID:
        return token.to_bytes(8, "little", signed=True)
    return OTHER_MARK + token.to_bytes(OTHER_BYTES, "little")


def chain(parent: Key, tokens: Sequence[int], first: int = 0, adapted: Adaptation = NOT_ADAPTED) -> Key:
    """The key of a block with these tokens, the first of them at this position of its text, after the block with the
    key `parent`. The number of tokens counts."""
    if adapted.begins_in(first, first + len(tokens)):
        parent = adapted_parent(parent, first, adapted)
    return hashlib.blake2b(encoded(tokens), digest_size=KEY_BYTES, key=parent).digest()


def adapted_parent(parent: Key, first: int, adapted: Adaptation) -> Key:
    """A parent's key with an adapter: for the key of the block that begins at this position and has the adapter's first
    one. Of two blocks with the same tokens the adapter may begin at other ones."""
    told = adapted.behind(first).told
    return hashlib.blake2b(told, digest_size=KEY_BYTES, key=parent, person=b"adapter").digest()


def full_keys(prompt: Sequence[int], salt: str, block_size: int, adapted: Adaptation = NOT_ADAPTED) -> Iterator[Key]:
    """Yield the keys of the blocks that a prompt fills. Each is computed when it is asked for."""
    key = root_key(salt)
    for start in range(0, len(prompt) - block_size + 1, block_size):
        key = chain(key, prompt[start : start + block_size], start, adapted)
        yield key


def some_keys(
    parent: Key, tokens: Sequence[int], block_size: int, first: int = 0, adapted: Adaptation = NOT_ADAPTED
) -> Iterator[Key]:
    """Yield the keys of these tokens' blocks, the first of them at this position, after the block with the key
    `parent`. The last block may be partial."""
    for start in range(0, len(tokens), block_size):
        parent = chain(parent, tokens[start : start + block_size], first + start, adapted)
        yield parent


def end_keys(parent: Key, tokens: Sequence[int], first: int = 0, adapted: Adaptation = NOT_ADAPTED) -> list[Key]:
    """The keys that a block after `parent`, which begins at this position, would have with the first one of these
    tokens, the first two, and so on."""
    if adapted.begins_in(first, first + len(tokens)):
        own = adapted.start - first
        return end_keys(parent, tokens[:own]) + end_keys(adapted_parent(parent, first, adapted), tokens)[own:]
    state, keys = hashlib.blake2b(digest_size=KEY_BYTES, key=parent), list[Key]()
    for token in tokens:
        state.update(encoded((token,)))
        keys.append(state.copy().digest())
    return keys


class IndexObserver(Protocol):
    """Hears of every change of an index and its pool. Called before a block can be used otherwise."""

    def added(self, block: int, final: bool) -> None:
        """A key was added. `final`: the block's bytes stay as they are until it is forgotten; else until it has an
        owner who writes on."""

    def used(self, block: int) -> None:
        """A block without an owner was used."""

    def leased(self, block: int) -> None:
        """A block got an owner that keeps it for others to find: it is to be evicted last where it is found next."""

    def rested(self, block: int) -> None:
        """A block with a key has lost its last owner: nobody writes it until it is forgotten."""

    def forgotten(self, block: int) -> None:
        """All keys of a block were removed."""

    def confirms(self, block: int) -> bool:
        """Return whether a block that was found holds what its key says. If not, it was forgotten."""


class NoObserver:
    """The observer of an index that nobody else depends on."""

    def added(self, block: int, final: bool) -> None: ...
    def used(self, block: int) -> None: ...
    def leased(self, block: int) -> None: ...
    def rested(self, block: int) -> None: ...
    def forgotten(self, block: int) -> None: ...

    def confirms(self, block: int) -> bool:
        return True


NOBODY = NoObserver()


class KeysBelow(Protocol):
    """The keys of blocks that tiers below the pool keep. `in` may be asked by any thread."""

    def __contains__(self, key: Key) -> bool: ...

    def known(self) -> list[Key]:
        """Return all keys, the least recently used first."""

    def changes(self) -> list[Key | None]:
        """Return the keys that came or went since the last call; None stands for any number of keys."""


class NothingBelow:
    """The keys below a pool without tiers."""

    def __contains__(self, key: Key) -> bool:
        return False

    def known(self) -> list[Key]:
        return []

    def changes(self) -> list[Key | None]:
        return []


NOTHING_BELOW = NothingBelow()


class PrefixIndex:
    """Keys to blocks. A key names one block; a block may have several keys (an unfilled one gets another when full).
    Every change is noted in each of the `journals`, which have the keys of tiers `below` the pool too."""

    below: KeysBelow = NOTHING_BELOW

    def __init__(self) -> None:
        self.blocks: dict[Key, int] = {}
        self.keys: dict[int, list[Key]] = {}
        self.observer: IndexObserver = NOBODY
        self.journals: list[PrefixJournal] = []

    def open_journal(self) -> PrefixJournal:
        """Begin another journal with all keys that are known."""
        journal = PrefixJournal([*self.below.known(), *self.blocks])
        self.journals.append(journal)
        return journal

    def find(self, key: Key) -> int | None:
        block = self.blocks.get(key)
        return block if block is not None and self.observer.confirms(block) else None

    def leading(self, keys: Iterable[Key]) -> list[int]:
        """Return the blocks of the first of these keys, up to one that is not known."""
        blocks: list[int] = []
        for key in keys:
            block = self.find(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def add(self, key: Key, block: int, final: bool = True) -> None:
        """Map a key to a block. The first block with a key keeps it: a second one holds the same bytes. A block that is
        not filled yet is not `final`."""
        if key not in self.blocks:
            self.blocks[key] = block
            self.keys.setdefault(block, []).append(key)
            for journal in self.journals:
                journal.note(key, True)
            self.observer.added(block, final)

    def knows(self, block: int) -> bool:
        return block in self.keys

    def forget(self, block: int) -> None:
        for key in self.keys.pop(block, ()):
            del self.blocks[key]
            for journal in self.journals:
                journal.note(key, key in self.below)
        self.observer.forgotten(block)

    def catch_up(self) -> None:
        """Note in the journals what came to the tiers below and what left them. A block that the pool evicted is known
        again once a tier has it."""
        for key in self.below.changes():
            for journal in self.journals:
                if key is None:
                    journal.clear()
                elif key not in self.blocks:
                    journal.note(key, key in self.below)

    def clear(self) -> None:
        for block in list(self.keys):
            self.forget(block)
        for journal in self.journals:
            journal.clear()
