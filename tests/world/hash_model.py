# SPDX-License-Identifier: Apache-2.0
"""The model's arithmetic: the next token is a hash of all tokens before it, the seed and the choice, so that every
schedule and every topology has one right answer.

Each KV cell holds the running hash of the tokens up to its own, in the two planes of a layout of one layer. A step
reads the cells of the whole prefix, as attention does: a block that does not hold what it should is noticed when it is
read, and the token is another one then. Of several heads each holds the hash in another form, so that none can stand
for another.
"""

from array import array
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from virtual_time import HERE

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.batch import Batch, Span
from pontil.runtime.engine.runner import Launched
from pontil.runtime.engine.sampler import Sampled
from pontil.runtime.engine.sequence import Sequence as EngineSequence

MASK, HALF = (1 << 62) - 1, 31
LOW = (1 << HALF) - 1
CELL_BYTES = 4
# Ids below are special in the tiny model's vocabulary.
FIRST_TOKEN = 3


def layout_of(block_size: int, heads: int = 1, rank: int = 0, ranks: int = 1) -> KVLayout:
    return KVLayout(block_size, 1, heads, 1, "float32", rank=rank, ranks=ranks)


def planes_of(heads: range, all_heads: int) -> list[int]:
    """Return the numbers of the planes of some heads, in the order of a pool that holds these."""
    return [plane * all_heads + head for plane in (0, 1) for head in heads]


def form_of(head: int) -> int:
    """Return the bits in which a head's cells differ from those of head 0."""
    return head * 0x2545F491 & LOW


def cells_of(storage: KVStorage) -> NDArray[np.int32]:
    """View a pool as cells [block, plane, slot] of its own planes."""
    return storage.bytes.view(np.int32).reshape(storage.num_blocks, -1, storage.layout.block_size)


@cache
def mixed(value: int, more: int) -> int:
    """Return a hash of two numbers, of 62 bits (the finalizer of MurmurHash3). Each prefix is hashed several times:
    where it is computed, where its KV comes from elsewhere, in another try, by the oracle."""
    value = (value * 0x9E3779B97F4A7C15 + more + 1) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 29)


def token_after(running: int, seed: int, choice: int, vocab: int) -> int:
    return FIRST_TOKEN + mixed(mixed(running, seed), choice) % (vocab - FIRST_TOKEN)


def answer_of(prompt: Sequence[int], seed: int, choice: int, count: int, vocab: int) -> list[int]:
    """Return the tokens of a choice: the oracle."""
    running, ids = 0, list[int]()
    for token in prompt:
        running = mixed(running, token)
    for _ in range(count):
        ids.append(token_after(running, seed, choice, vocab))
        running = mixed(running, ids[-1])
    return ids


class PrefixHashes:
    """The running hashes of one sequence: the last, and the cells of all positions, by plane and head."""

    def __init__(self, heads: int = 1) -> None:
        self.running, self.heads = 0, heads
        self.planes = tuple(array("i") for _ in range(2 * heads))

    def extend(self, span: Span) -> None:
        """Add the positions before the end of a span that are new."""
        low, high = self.planes[0], self.planes[self.heads]
        prompt, start, end = span.sequence.prompt, len(low), span.start + span.count
        tokens = prompt[start:end] if start < len(prompt) else []
        for token in (*tokens, *map(span.token, range(start + len(tokens), end))):
            self.running = mixed(self.running, token)
            low.append(self.running & LOW)
            high.append(self.running >> HALF)
        for head in range(1, self.heads):
            for place, base in ((head, low), (self.heads + head, high)):
                self.planes[place].extend([value ^ form_of(head) for value in base[start:]])


class HashRunner:
    """A Runner (runtime/engine/runner.py) without a model. A step of so many rows takes `cost` seconds."""

    keeps_states, rows_are_alike = False, True

    def __init__(self, storage: KVStorage, vocab: int, cost: Callable[[int, int], float]) -> None:
        self.storage, self.vocab, self.cost = storage, vocab, cost
        self.size, self.cells = storage.layout.block_size, cells_of(storage)
        self.heads = storage.layout.num_kv_heads
        self.held = planes_of(storage.layout.kv_heads, self.heads)
        self.hashes: dict[EngineSequence, PrefixHashes] = {}
        self.steps = self.rows = 0

    def beside(self, storage: KVStorage) -> "HashRunner":
        return HashRunner(storage, self.vocab, self.cost)

    def launch(self, batch: Batch) -> Launched:
        sampled = self.run(batch)
        return Launched(lambda: sampled)

    def run(self, batch: Batch) -> list[Sampled]:
        self.storage.copy(list(batch.copies))
        return self.compute(batch.spans)

    def compute(self, spans: Sequence[Span]) -> list[Sampled]:
        """Write the cells of these spans' positions, read their prefixes, and sample."""
        prompt_rows = decode_rows = 0
        for span in spans:
            hashes = self.hashes.get(span.sequence)
            if hashes is None:
                hashes = self.hashes[span.sequence] = PrefixHashes(self.heads)
            hashes.extend(span)
            self.write(span.sequence.blocks, hashes, span.start, span.start + span.count)
            if span.count == 1:
                decode_rows += 1
            else:
                prompt_rows += span.count
        if HERE.world.current is not None:
            HERE.world.spend(self.cost(prompt_rows, decode_rows))
        sampled = list[Sampled]()
        for span, is_right in zip(spans, self.read(spans), strict=True):
            if span.samples:
                seed, running = span.sequence.params.seed, self.hashes[span.sequence].running
                assert seed is not None, "the proxy gives each request a seed"
                running = running if is_right else mixed(running, 0x5EED)
                for choice in span.sequence.choices:
                    token = token_after(running, seed, choice, self.vocab)
                    sampled.append(Sampled(span.sequence, choice, [token], 1, []))
        self.steps += 1
        self.rows += prompt_rows + decode_rows
        if self.steps % 64 == 0:
            self.forget()
        return sampled

    def write(self, blocks: Sequence[int], hashes: PrefixHashes, start: int, end: int) -> None:
        """Write the cells of these positions into the sequence's blocks."""
        for index in range(start // self.size, -(-end // self.size)):
            first, after = max(start - index * self.size, 0), min(end - index * self.size, self.size)
            base = index * self.size
            for place, plane in enumerate(self.held):
                self.cells[blocks[index], place, first:after] = hashes.planes[plane][base + first : base + after]

    def read(self, spans: Sequence[Span]) -> list[bool]:
        """Read the prefixes of spans. Return of each whether it holds what it should."""
        return [
            self.is_as_it_should(span.sequence, self.hashes[span.sequence], span.start + span.count) for span in spans
        ]

    def is_as_it_should(self, sequence: EngineSequence, hashes: PrefixHashes, end: int) -> bool:
        """Read the whole prefix of a sequence. Return whether it holds what it should."""
        blocks = sequence.blocks[: -(-end // self.size)]
        found, count = self.cells.take(blocks, axis=0), end * CELL_BYTES
        planes = [
            (found[:, place].tobytes()[:count], hashes.planes[plane][:end].tobytes())
            for place, plane in enumerate(self.held)
        ]
        if all(read == right for read, right in planes):
            return True
        size = self.size * CELL_BYTES
        starts = range(0, count, size)
        wrong = [
            start // size
            for start in starts
            if any(read[start : start + size] != right[start : start + size] for read, right in planes)
        ]
        HERE.world.violate(
            f"no_wrong_block_is_read: {sequence.id} reads wrong KV in its blocks {wrong} of {len(blocks)}"
        )
        return False

    def forget(self) -> None:
        """Forget the sequences that have ended."""
        self.hashes = {one: hashes for one, hashes in self.hashes.items() if one.state.value != "finished"}
