# SPDX-License-Identifier: Apache-2.0
"""Leases on blocks that are in a pool or in the tiers below it, over any history: floods, tiers that lag, fail, fill up
or lose a block, and kills."""

import tempfile
from collections import Counter
from itertools import count
from random import Random

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from kept_files import LAYOUT, KeptFiles, key_of
from tiers import ScriptedTier, SteppedStore, always

from pontil.runtime.cache.leases.lease import EXPIRED, HELD, REFUNDED, RELEASED, ByteSeconds, LeaseTerm, PrefixLease
from pontil.runtime.cache.leases.lease_book import LOST, STUCK, LeaseBook, LeaseRefused
from pontil.runtime.cache.leases.pinned_blocks import PATIENCE, PinnedBlocks
from pontil.runtime.cache.prefix import Key
from pontil.runtime.cache.tier.chain import TierChain
from pontil.runtime.cache.tier.disk_tier import PAGE, RECORD_BYTES, DiskTier
from pontil.runtime.cache.tier.tier_pins import TierPins
from pontil.runtime.cache.tier.tier_store import TierStore, TierWrite

CAPACITY, LONGEST, STAGED, SIZE = 10, 6, 6, LAYOUT.block_bytes
IN_MEMORY, ON_DISK = 5, 12
OWNERS = ("ada", "bob")
MOST_OF_ONE = 10 * SIZE


class LeasedTiers:
    """A pool above a tier in memory and one on a disk, and the leases on blocks in any of them. A prompt is a list of
    numbers, each the content of one block; prompts of one parity begin alike."""

    def __init__(self, chance: Random) -> None:
        self.chance, self.now = chance, 1000.0
        self.folder, self.launcher = tempfile.TemporaryDirectory(), KeptFiles()
        self.numbers, self.names = count(100), count()
        # All that were ever granted, and what was granted to each by then.
        self.granted: dict[str, PrefixLease] = {}
        self.gone = ByteSeconds()
        self.is_amiss = False
        self.start()

    def start(self) -> None:
        self.process = self.launcher.start(num_blocks=CAPACITY + 1)
        self.memory = ScriptedTier(IN_MEMORY * SIZE, SIZE)
        disk = DiskTier(self.folder.name, "worker", ON_DISK * (PAGE + RECORD_BYTES), SIZE, "same")
        chain = TierChain((self.memory, disk), SIZE, pins=TierPins(0.5))
        self.tiers = self.memory, disk
        self.store = SteppedStore(self.process.storage, chain, always(*self.tiers), staging_bytes=STAGED * SIZE)
        self.pool = self.process.pool
        self.pool.evicted, self.pool.index.below = self.store.evicted, chain
        self.book = LeaseBook(PinnedBlocks.of(self.pool, 0.5, LONGEST, self.store), SIZE, 1, MOST_OF_ONE)

    def close(self) -> None:
        self.store.close()
        self.launcher.close()
        self.folder.cleanup()

    def compute(self, numbers: list[int]) -> bool:
        """Have a sequence compute blocks, or find them in the pool, and end."""
        keys = tuple(key_of(number) for number in numbers)
        found = self.pool.index.leading(keys)
        if not self.pool.reserve(len(keys) - len(found), found):
            return False
        blocks = [*found, *self.pool.bind(len(keys) - len(found))]
        for number, key, block in list(zip(numbers, keys, blocks, strict=True))[len(found) :]:
            self.process.fill(block, number)
            self.pool.index.add(key, block)
        self.pool.release(blocks)
        return True

    def grant(self) -> None:
        text, length = self.chance.randrange(6), self.chance.randint(1, 8)
        numbers = [text % 2 + 2 * place if place < 2 else 10 * text + 10 + place for place in range(length)]
        name, owner, keys = f"lease-{next(self.names)}", self.chance.choice(OWNERS), tuple(map(key_of, numbers))
        theirs = sum(len(one.keys) for one in self.book.leases.values() if one.owner == owner)
        fits = (theirs + length) * SIZE <= MOST_OF_ONE and length <= self.book.room
        try:
            self.book.promise(name, owner, length)
        except LeaseRefused:
            assert not fits, "a lease within its budgets was refused"
            return
        assert fits, "a lease beyond its budgets was promised"
        if not self.compute(numbers):
            self.book.forgo(name)
            return
        term = LeaseTerm(length * SIZE, self.now, self.chance.randint(1, 30))
        self.granted[name] = PrefixLease(name, owner, keys, length, "proxy", term)
        self.book.grant(self.granted[name], self.now)

    def flood(self) -> None:
        """Compute a prompt that nobody computed before. The longest request waits at most for tiers to take leased
        blocks, which have a time for that; never for a lease."""
        numbers = [next(self.numbers) for _ in range(self.chance.randint(1, LONGEST))]
        for _ in range(200):
            if self.compute(numbers):
                return
            assert self.book.pins.excess > 0, "a request waits for a lease that may stay"
            self.work()
            self.wait(0.5)
        raise AssertionError("a request waited for ever")

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.book.expire(self.now)
        self.book.settle(self.now)

    def pause(self) -> None:
        self.wait(self.chance.random() * 4)

    def work(self) -> None:
        """Let the tiers' thread go on."""
        self.store.work(self.chance.randint(0, 6))
        self.book.settle(self.now)

    def some(self) -> PrefixLease | None:
        return self.chance.choice(list(self.book.leases.values())) if self.book.leases else None

    def release(self) -> None:
        if (lease := self.some()) is not None:
            self.book.release(lease.id, self.now)

    def extend(self) -> None:
        if (lease := self.some()) is not None:
            self.book.extend(lease.id, lease.term.lasting(self.chance.randint(1, 20), self.now), self.now)

    def record(self) -> None:
        self.process.recorder.rest(self.chance.randint(1, 8))

    def read(self) -> None:
        """Read a block that a tier has."""
        if keys := self.store.chain.known():
            into = self.store.staging.rows[-1]
            self.store.chain.read(self.chance.choice(keys), into)

    def lose(self) -> None:
        """Find a block of a tier damaged."""
        if keys := self.store.chain.known():
            self.is_amiss = True
            self.store.chain.drop(self.chance.choice(keys))

    def fail(self) -> None:
        """Have a tier fail: the memory at its next write, the disk at once."""
        self.is_amiss = True
        if self.chance.random() < 0.5:
            self.memory.fault = OSError(28, "No space left on device")
        else:
            self.store.chain.switch_off(self.tiers[1], OSError(5, "Input/output error"))

    def kill(self) -> None:
        """Kill the process. The next one is asked to keep what it finds; what it does not find is refunded."""
        before = list(self.book.leases.values())
        self.gone += self.book.settled
        self.store.close()
        self.start()
        self.is_amiss = True
        for lease in before:
            term = LeaseTerm(lease.term.size, lease.term.began, lease.term.seconds)
            again = PrefixLease(lease.id, lease.owner, lease.keys, lease.tokens, "proxy", term)
            try:
                self.book.grant(again, self.now)
                self.granted[lease.id] = again
            except LeaseRefused:
                lease.term.close(REFUNDED, self.now, "not found")
                self.gone += lease.term.amounts(self.now)

    def check(self) -> None:
        self.pool.check()
        self.book.check()
        pins, chain = self.book.pins, self.store.chain
        assert len(pins) + self.book.promised_blocks <= pins.most or self.is_amiss, "leases are beyond their budget"
        for tier in self.tiers:
            pinned = chain.pins.by_tier.get(tier.name, set())
            assert len(pinned) <= tier.capacity // 2 and pinned <= set(tier.known())
            assert len(tier) + len(tier.free) == tier.capacity or tier not in chain.tiers
        staged = sum(isinstance(job, TierWrite) and job.number is not None for job in self.store.writes)
        assert len(self.store.staging.free) + staged == STAGED
        has_news = not chain.pins.results.empty()
        assert has_news or all(any(key in keys for keys in chain.pins.by_tier.values()) for key in pins.below)
        self.check_amounts()

    def check_amounts(self) -> None:
        """Granted = held + released + refunded + what is to come, in the book and by each lease."""
        each = sum((lease.term.amounts(self.now) for lease in self.granted.values()), ByteSeconds())
        assert self.book.amounts(self.now) + self.gone == each
        ahead = sum(lease.term.amounts(self.now).ahead for lease in self.book.leases.values())
        assert each.ahead == ahead
        states = Counter(lease.term.state for lease in self.granted.values())
        assert states[HELD] == len(self.book.leases)
        assert sum(states.values()) == states[HELD] + states[EXPIRED] + states[RELEASED] + states[REFUNDED]
        assert self.is_amiss or all(one.term.reason in (None, STUCK) for one in self.granted.values())

    def check_contents(self) -> None:
        """Have the tiers' thread end its work, and read every leased block."""
        self.store.work(1000)
        self.book.settle(self.now)
        for lease in list(self.book.leases.values()):
            for key in lease.keys:
                assert self.content(key) == key, "a leased block is not what was leased"

    def content(self, key: Key) -> Key:
        if key in self.book.pins.owned:
            return key_of(self.process.content(self.book.pins.owned[key]))
        into = self.store.staging.rows[-1]
        assert self.store.chain.read(key, into) is not None
        return key_of(int(into.view("int32")[0]))


@settings(max_examples=examples(6, 400))
@given(st.integers(0, 1 << 32))
def test_leased_blocks_stay_whatever_happens_or_are_refunded(seed: int) -> None:
    chance = Random(seed)
    history = LeasedTiers(chance)
    often = [history.grant, history.flood, history.work, history.record, history.pause]
    seldom = [history.release, history.extend, history.read]
    rarely = [history.kill, history.lose, history.fail] if chance.random() < 0.7 else [history.pause]
    for _ in range(200):
        chance.choice(chance.choices([often, seldom, rarely], [30, 10, 1])[0])()
        history.check()
    history.check_contents()
    history.close()


@pytest.fixture
def tiers() -> LeasedTiers:
    return LeasedTiers(Random(1))


def leased(tiers: LeasedTiers, *numbers: int, name: str = "one", owner: str = "ada") -> PrefixLease:
    assert tiers.compute(list(numbers))
    term = LeaseTerm(len(numbers) * SIZE, tiers.now, 600)
    lease = PrefixLease(name, owner, tuple(map(key_of, numbers)), len(numbers), "proxy", term)
    tiers.granted[name] = lease
    tiers.book.grant(lease, tiers.now)
    return lease


def moved(tiers: LeasedTiers) -> None:
    """Let leased blocks move to tiers until there are no more to move."""
    for _ in range(20):
        tiers.book.settle(tiers.now)
        tiers.store.work(100)


def test_the_oldest_leases_move_to_the_disk_and_outlive_a_flood(tiers: LeasedTiers) -> None:
    first, second = leased(tiers, 1, 2, 3), leased(tiers, 4, 5, 6, name="two", owner="bob")
    assert tiers.book.pins.most == 4 + 2 + 6 and tiers.book.pins.excess == 2
    moved(tiers)
    assert tiers.store.chain.pins.by_tier["disk"] == set(first.keys[:2]) == tiers.book.pins.below
    assert tiers.book.pins.owned.keys() == {*first.keys[2:], *second.keys}
    for _ in range(40):
        tiers.flood()
        tiers.store.work(100)
    tiers.check_contents()
    assert set(tiers.book.leases) == {"one", "two"}
    tiers.close()


def test_a_pool_without_room_for_leases_has_them_in_its_tiers(tiers: LeasedTiers) -> None:
    tiers.book = LeaseBook(PinnedBlocks.of(tiers.pool, 0.5, CAPACITY, tiers.store), SIZE, 1)
    lease = leased(tiers, *range(1, 9))
    moved(tiers)
    assert tiers.book.pins.below == set(lease.keys) and tiers.pool.available == CAPACITY
    with pytest.raises(LeaseRefused, match=f"would hold {SIZE} bytes, and leases may hold 0 bytes more .* {8 * SIZE} "):
        tiers.book.promise("two", "bob", 1)
    tiers.close()


def test_a_disk_that_fails_refunds_what_only_it_had(tiers: LeasedTiers) -> None:
    """A leased block that the pool still has is kept there."""
    first, second = leased(tiers, 1, 2, 3), leased(tiers, 4, 5, 6, name="two", owner="bob")
    moved(tiers)
    tiers.pool.discard(tiers.pool.index.blocks[first.keys[0]])
    tiers.store.chain.switch_off(tiers.tiers[1], OSError(28, "No space left on device"))
    tiers.is_amiss = True
    tiers.wait(1.0)
    assert (first.term.state, first.term.reason) == (REFUNDED, LOST) and second.term.state == HELD
    assert tiers.book.pins.most == 4 + 2 and not tiers.book.pins.below
    tiers.check()
    tiers.close()


def test_a_disk_that_fails_refunds_nothing_that_the_memory_has_too(tiers: LeasedTiers) -> None:
    """Blocks that were evicted before they were leased are in memory, and on the disk for the lease."""
    assert tiers.compute([1, 2])
    for key in map(key_of, (1, 2)):
        tiers.store.evicted(tiers.pool.index.blocks[key], key)
    tiers.store.work(2)
    first, _ = leased(tiers, 1, 2, 3), leased(tiers, 4, 5, 6, name="two", owner="bob")
    moved(tiers)
    for key in first.keys[:2]:
        tiers.pool.discard(tiers.pool.index.blocks[key])
    tiers.store.chain.switch_off(tiers.tiers[1], OSError(28, "No space left on device"))
    tiers.is_amiss = True
    tiers.wait(1.0)
    assert first.term.state == HELD and tiers.book.pins.below == set(first.keys[:2])
    tiers.check()
    tiers.check_contents()
    tiers.close()


def test_a_disk_that_hangs_refunds_what_it_does_not_take(tiers: LeasedTiers) -> None:
    first, second = leased(tiers, 1, 2, 3), leased(tiers, 4, 5, 6, name="two", owner="bob")
    tiers.wait(0.1)
    tiers.wait(PATIENCE)
    assert tiers.book.pins.excess == 2
    tiers.wait(0.2)
    assert first.term.state == HELD and (second.term.state, second.term.reason) == (REFUNDED, STUCK)
    assert tiers.book.pins.excess < 0
    moved(tiers)
    tiers.check_contents()
    tiers.close()


def test_a_lease_that_ends_while_its_blocks_move_leaves_no_pin(tiers: LeasedTiers) -> None:
    leased(tiers, 1, 2, 3)
    leased(tiers, 4, 5, 6, name="two", owner="bob")
    tiers.book.settle(tiers.now)
    assert len(tiers.book.pins.moving) == 2
    tiers.book.release("one", tiers.now)
    leased(tiers, 1, 2, name="three")
    moved(tiers)
    tiers.check_contents()
    tiers.book.release("two", tiers.now)
    tiers.book.release("three", tiers.now)
    moved(tiers)
    assert not any(tiers.store.chain.pins.by_tier.values()) and not tiers.book.pins.leases
    tiers.close()


def test_a_disk_has_its_leases_after_a_kill_and_memory_has_not(tiers: LeasedTiers) -> None:
    first, second = leased(tiers, 1, 2, 3), leased(tiers, 4, 5, 6, name="two", owner="bob")
    moved(tiers)
    tiers.record()
    for number in range(40):
        tiers.process.recorder.rest(1 + number)
    tiers.kill()
    moved(tiers)
    assert set(tiers.book.leases) == {"one", "two"} and first.term.state == second.term.state == HELD
    tiers.check_contents()
    tiers.close()


def test_the_thread_that_stores_is_given_no_more_than_half_of_its_buffers(tiers: LeasedTiers) -> None:
    """The others are for what is evicted meanwhile."""
    assert isinstance(tiers.store, TierStore)
    for number in range(1, 7):
        leased(tiers, number, name=str(number), owner=OWNERS[number % 2])
    tiers.book.promise("more", "eve", 6)
    tiers.book.settle(tiers.now)
    assert len(tiers.book.pins.moving) == STAGED // 2
    tiers.close()
