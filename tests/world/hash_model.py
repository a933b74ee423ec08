# SPDX-License-Identifier: Apache-2.0
"""The model's arithmetic: the next token is a hash of all tokens before it, the seed and the choice, so that every
schedule and every topology has one right answer.

Each KV cell holds the running hash of the tokens up to its own, in the two planes of a layout of one layer. A step
reads the cells of the whole prefix, as attention does: a block that does not hold what it should is noticed when it is
read, and the token is another one then. Of several heads each holds the hash in another form, so that none can stand
for another.
"""

import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import hash_logits
import numpy as np
import torch
from hash_adapters import HashAdapters
from numpy.typing import NDArray
from virtual_time import HERE

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.runner.memory_errors import compute_what_fits, left_out_of
from pontil.runtime.engine.runner.runner import Launched
from pontil.runtime.engine.sampling.sampler import Sampled
from pontil.runtime.engine.sequences.batch import Batch, Span
from pontil.runtime.engine.sequences.sequence import Sequence as EngineSequence
from pontil.runtime.engine.sequences.streamed import FrameMaker

StepCost = Callable[[int, int], float]
MASK, HALF = (1 << 62) - 1, 31
LOW = (1 << HALF) - 1
# A hash as numbers of so many bits, which float32 holds.
WIDTH, NUMBER, NUMBERS = 4, 16, (1 << 16) - 1
# Ids below are special in the tiny model's vocabulary.
FIRST_TOKEN = 3
# The first hash of all prefixes of another release.
NEXT_SALT = 0x2E1EA5E
# Mixed by a wrong model into the hash behind a prefix; its KV is right.
WRONG = 0xBAD
# The beginning of the names of requests by which a worker is tried before it serves.
TRIED = "gate-"
# The sequence by which a worker measures itself at its start.
MEASURED = "measured"
# The heads of a pool that holds the hashes as they are.
ONE_HEAD = range(1)


class MixedIn(NamedTuple):
    """The value of an adapter, and the position before which it is mixed into a running hash."""

    value: int = 0
    position: int = 0


NOTHING = MixedIn()


def layout_of(block_size: int, heads: int = 1, rank: int = 0, ranks: int = 1) -> KVLayout:
    return KVLayout(block_size, 1, heads, 1, "float32", rank=rank, ranks=ranks)


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


def salt_of_model(name: str) -> int:
    """Return the salt of a model that is served beside others; that of the first one is 0."""
    return 0 if name == "tiny" else zlib.crc32(name.encode())


def answer_of(
    prompt: Sequence[int], seed: int, choice: int, count: int, vocab: int, salt: int = 0, adapted: MixedIn = NOTHING
) -> list[int]:
    """Return the tokens of a choice: the oracle. The hashes of each release of the model begin with another salt."""
    return list(tokens_after(tuple(prompt), seed, choice, count, vocab, (salt, *adapted)))


@cache
def tokens_after(
    prompt: tuple[int, ...], seed: int, choice: int, count: int, vocab: int, begins: tuple[int, int, int]
) -> list[int]:
    """Return the tokens of a choice. Several checks ask for those of each."""
    running, value, start = begins
    ids = list[int]()
    for position, token in enumerate(prompt):
        running = mixed(running ^ value if position == start else running, token)
    for _ in range(count):
        ids.append(token_after(running, seed, choice, vocab))
        running = mixed(running, ids[-1])
    return ids


def numbers_of(value: int) -> list[int]:
    """Return a hash as four numbers that float32 holds exactly."""
    return [value >> NUMBER * place & NUMBERS for place in range(WIDTH)]


def value_of(numbers: Sequence[float]) -> int:
    return sum(int(number) << NUMBER * place for place, number in enumerate(numbers))


def tokens_of(sequence: EngineSequence, start: int, end: int) -> Sequence[int]:
    """Return the tokens of some positions; of a stage that another one drives, the values of its rows."""
    if sequence.streams.inputs is not None:
        return [value_of(row) for row in sequence.streams.inputs.rows(start, end - start).tolist()]
    prompt = sequence.prompt
    if start >= (count := len(prompt)):
        return sequence.output[start - count : end - count]
    return prompt[start:end] + sequence.output[: max(0, end - count)]


class PrefixHashes:
    """The running hashes of one sequence, which begin with a `salt`, and have something of its adapter `mixed_in`: the
    last, and the `cells` of all positions, by block and in it by plane, as they lie in a pool of head 0 alone."""

    def __init__(self, size: int, salt: int, mixed_in: MixedIn) -> None:
        self.size, self.salt, self.mixed_in = size, salt, mixed_in
        self.running, self.count = salt, 0
        self.cells = array("i")

    def extend(self, span: Span) -> None:
        """Add the positions before the end of a span that are new."""
        start, end = self.count, span.start + span.count
        if end <= start:
            return
        running, cells, size = self.running, self.cells, self.size
        tokens, offset = tokens_of(span.sequence, start, end), start % size
        assert len(tokens) == end - start, "each position has a token"
        place = 2 * (start - offset) + offset
        value, adapted_from = self.mixed_in
        for position, token in enumerate(tokens, start):
            if not offset:
                cells.frombytes(bytes(2 * size * cells.itemsize))
            running = mixed(running ^ value if position == adapted_from else running, token)
            cells[place], cells[place + size] = running & LOW, running >> HALF
            place, offset = place + 1, offset + 1
            if offset == size:
                place, offset = place + size, 0
        self.running, self.count = running, end

    def adopt(self, cells: NDArray[np.int32], count: int) -> None:
        """Take the hashes of the first positions from a pool of head 0, where their tokens are not known: another
        worker computed them of rows that it alone has."""
        self.cells = array("i", cells.tobytes())
        self.count, self.running = count, self.value_at(count - 1)

    def value_at(self, position: int) -> int:
        """Return the running hash behind a position."""
        block, offset = divmod(position, self.size)
        place = 2 * block * self.size + offset
        return self.cells[place + self.size] << HALF | self.cells[place]

    def cells_of(self, heads: range, blocks: int) -> NDArray[np.int32]:
        """Return the cells of the first blocks as they lie in a pool of some heads."""
        cells = np.frombuffer(self.cells, np.int32, blocks * 2 * self.size)
        if heads == ONE_HEAD:
            return cells
        forms = np.array([form_of(head) for head in heads], np.int32).reshape(-1, 1)
        return (cells.reshape(blocks, 2, 1, self.size) ^ forms).ravel()


def mistaken(sequence: EngineSequence, running: int) -> int:
    """Return the hash by which a wrong model draws. No client may have its tokens."""
    if not sequence.id.startswith((TRIED, MEASURED)):
        HERE.world.violate(f"who_is_refused_serves_nobody: {sequence.id} is served by a worker that is wrong")
    return mixed(running, WRONG)


def give_states(span: Span, hashes: PrefixHashes) -> None:
    """Give a sequence that wants them the states of a span's positions: the running hash, half as the embedding."""
    if span.sequence.streams.states is not None:
        positions = range(span.start, span.start + span.count)
        states = torch.tensor([numbers_of(hashes.value_at(one)) for one in positions], dtype=torch.float32)
        span.sequence.streams.states.take(span.start, states[:, : WIDTH // 2], states[:, WIDTH // 2 :])


class HashRunner:
    """A Runner (runtime/engine/runner/runner.py) without a model. A step of so many prompt rows and others takes `cost`
    seconds, or has no memory. The `maker` is that of a stage whose steps make frames."""

    keeps_states, answers_are_found = False, True
    # The first hash of all prefixes; True for a model that draws by another hash than that of the prefix.
    salt, is_wrong = 0, False
    # Those that mix something else into it.
    adapters: HashAdapters | None = None

    def __init__(self, storage: KVStorage, vocab: int, cost: StepCost, maker: FrameMaker | None = None) -> None:
        self.storage, self.vocab, self.cost, self.maker = storage, vocab, cost, maker
        self.size, self.heads = storage.layout.block_size, storage.layout.kv_heads
        self.cells = cells_of(storage).reshape(storage.num_blocks, -1)
        # Of each plane of the pool: its first cell in a block, that of the plane of head 0 of which it is another form,
        # and the form.
        self.places = [
            ((plane * len(self.heads) + place) * self.size, plane * self.size, form_of(head))
            for plane in (0, 1)
            for place, head in enumerate(self.heads)
        ]
        self.hashes: dict[EngineSequence, PrefixHashes] = {}
        self.steps = self.rows = 0

    def beside(self, storage: KVStorage) -> "HashRunner":
        made = HashRunner(storage, self.vocab, self.cost)
        made.salt, made.is_wrong, made.adapters = self.salt, self.is_wrong, self.adapters
        return made

    def hashes_of(self, sequence: EngineSequence) -> PrefixHashes:
        """Return the hashes of a sequence, which have the adapter in them that has its number now."""
        prefix, hashes = sequence.prefix, self.hashes.get(sequence)
        value = 0 if self.adapters is None else self.adapters.salt(prefix.adapter.number, sequence.id)
        if hashes is None:
            hashes = self.hashes[sequence] = PrefixHashes(self.size, self.salt, MixedIn(value, prefix.start))
        if (hashes.salt, hashes.mixed_in.value) != (self.salt, value):
            HERE.world.violate(f"every_row_has_its_adapter: {sequence.id} goes on with another one")
        return hashes

    def launch(self, batch: Batch) -> Launched:
        sampled = self.run(batch)
        return Launched(lambda: sampled, left_out=left_out_of(sampled))

    def run(self, batch: Batch) -> list[Sampled]:
        sampled, dropped = compute_what_fits(batch, self.compute)
        return sampled + dropped

    def compute(self, batch: Batch) -> list[Sampled]:
        seconds = self.seconds_of(batch.spans)
        self.storage.copy(list(batch.copies))
        return self.compute_spans(batch.spans, seconds)

    def seconds_of(self, spans: Sequence[Span]) -> float:
        """Return the seconds of a step of these spans. Raises MemoryError."""
        counts = [span.count for span in spans]
        return self.cost(sum(counts) - counts.count(1), counts.count(1))

    def compute_spans(self, spans: Sequence[Span], seconds: float) -> list[Sampled]:
        """Write the cells of these spans' positions within so many seconds, read their prefixes, and sample."""
        for span in spans:
            hashes = self.hashes_of(span.sequence)
            if span.sequence.streams.inputs is not None and hashes.count < span.start:
                hashes.adopt(self.cells.take(span.sequence.blocks[: -(-span.start // self.size)], axis=0), span.start)
            hashes.extend(span)
            give_states(span, hashes)
            self.write(span.sequence.blocks, hashes, span.start, span.start + span.count)
        if HERE.world.current is not None:
            HERE.world.spend(seconds)
        sampled = list[Sampled]()
        for span, is_right in zip(spans, self.read(spans), strict=True):
            running, samples = self.hashes[span.sequence].running, span.samples
            if self.is_wrong and samples:
                running = mistaken(span.sequence, running)
            if self.salt and samples:
                HERE.world.salted.add(span.sequence.id)
            hash_logits.record_prompt(span, self.vocab)
            if samples and hash_logits.asks_for_logits(span.sequence.params):
                sampled += [self.alike(one, running) for one in hash_logits.draw(span.sequence, running, self.vocab)]
            elif samples:
                seed = span.sequence.params.seed
                assert seed is not None, "the proxy gives each request a seed"
                running = running if is_right else mixed(running, 0x5EED)
                for choice in span.sequence.choices:
                    token = token_after(running, seed, choice, self.vocab)
                    sampled.append(
                        Sampled(span.sequence, choice, [token], 1, [], frames=self.frames(span, running, token))
                    )
        self.steps += 1
        self.rows += sum(span.count for span in spans)
        if self.steps % 64 == 0:
            self.forget()
        return sampled

    def alike(self, one: Sampled, running: int) -> Sampled:
        """Return what is drawn with the logits that a receipt states: the same token as without them."""
        params = one.sequence.params
        if params.greedy or params.seed is None or hash_logits.asks_for_logits(replace(params, top_logits=0)):
            return one
        token = token_after(running, params.seed, one.choice, self.vocab)
        return Sampled(one.sequence, one.choice, [token], one.count, one.logprobs)

    def frames(self, span: Span, running: int, token: int) -> list[list[int]]:
        """Return the frame of a sampled id, in a stage that makes such."""
        if self.maker is None:
            return []
        hidden, params = torch.tensor([numbers_of(running)], dtype=torch.float32), span.sequence.params
        assert params.seed is not None
        return self.maker.frames([(params.seed, span.sequence.length, token, params.greedy)], hidden)

    def write(self, blocks: Sequence[int], hashes: PrefixHashes, start: int, end: int) -> None:
        """Write the cells of these positions into the sequence's blocks."""
        size = self.size
        for index in range(start // size, -(-end // size)):
            first, after, base = max(start - index * size, 0), min(end - index * size, size), 2 * index * size
            cells = self.cells[blocks[index]]
            if after == first + 1:
                for place, plane, form in self.places:
                    cells[place + first] = hashes.cells[base + plane + first] ^ form
                continue
            for place, plane, form in self.places:
                part = hashes.cells[base + plane + first : base + plane + after]
                cells[place + first : place + after] = [cell ^ form for cell in part] if form else part

    def read(self, spans: Sequence[Span]) -> list[bool]:
        """Read the prefixes of spans. Return of each whether it holds what it should."""
        return [
            self.is_as_it_should(span.sequence, self.hashes[span.sequence], span.start + span.count) for span in spans
        ]

    def is_as_it_should(self, sequence: EngineSequence, hashes: PrefixHashes, end: int) -> bool:
        """Read the whole prefix of a sequence. Return whether it holds what it should."""
        blocks, unread = sequence.blocks[: -(-end // self.size)], end % self.size
        read = self.cells.take(blocks, axis=0)
        right = hashes.cells_of(self.heads, len(blocks))
        if unread:
            # The cells behind the end are not read.
            last = read[-1].reshape(-1, self.size)
            last[:, unread:] = right[-last.size :].reshape(last.shape)[:, unread:]
        if read.tobytes() == right.tobytes():
            return True
        wrong = [index for index, differs in enumerate((read != right.reshape(read.shape)).any(axis=1)) if differs]
        HERE.world.violate(
            f"no_wrong_block_is_read: {sequence.id} reads wrong KV in its blocks {wrong} of {len(blocks)}"
        )
        return False

    def forget(self) -> None:
        """Forget the sequences that have ended."""
        self.hashes = {one: hashes for one, hashes in self.hashes.items() if one.state.value != "finished"}
