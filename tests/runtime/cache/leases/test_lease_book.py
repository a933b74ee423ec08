# SPDX-License-Identifier: Apache-2.0
"""The lease book over any history, against a model that counts seconds one by one; its budgets and its ends."""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from hypothesis.strategies import floats, integers, sampled_from

from pontil.runtime.cache.leases.lease import EXPIRED, HELD, REFUNDED, RELEASED, ByteSeconds, LeaseTerm, PrefixLease
from pontil.runtime.cache.leases.lease_book import STALE_ENDS, LeaseBook, LeaseRefused
from pontil.runtime.cache.leases.pinned_blocks import PinnedBlocks
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.prefix import Key, chain, root_key

CAPACITY, LONGEST, SIZE, BLOCK_BYTES = 24, 8, 4, 100
OWNERS = ("ada", "bob")
MOST_OF_ONE = 900


def book_of(capacity: int = CAPACITY, most: int | None = MOST_OF_ONE) -> LeaseBook:
    pool = BlockPool(capacity + 1)
    return LeaseBook(PinnedBlocks.of(pool, 0.5, LONGEST), BLOCK_BYTES, SIZE, most)


def keys_of(text: int, count: int) -> tuple[Key, ...]:
    """Return the keys of a prompt's blocks. Texts of one parity have their first two blocks in common."""
    key, keys = root_key(""), list[Key]()
    for place in range(count):
        key = chain(key, [text % 2 if place < 2 else text, place])
        keys.append(key)
    return tuple(keys)


def compute(pool: BlockPool, keys: tuple[Key, ...]) -> bool:
    """Have a sequence compute a prompt, or find it, and end."""
    found = pool.index.leading(keys)
    if not pool.reserve(len(keys) - len(found), found):
        return False
    blocks = [*found, *pool.bind(len(keys) - len(found))]
    for key, block in zip(keys, blocks, strict=True):
        pool.index.add(key, block)
    pool.release(blocks)
    return True


def lease(book: LeaseBook, name: str, keys: tuple[Key, ...], now: float, seconds: int, owner: str = "ada") -> None:
    term = LeaseTerm(len(keys) * BLOCK_BYTES, now, seconds)
    book.grant(PrefixLease(name, owner, keys, len(keys) * SIZE, "proxy", term), now)


@dataclass
class ModelLease:
    """A lease as a client thinks of it: `left` seconds are to come, `fraction` of one has begun."""

    owner: str
    keys: tuple[Key, ...]
    began: float
    seconds: int
    state: str = HELD
    held: int = 0


class LeaseHistory(RuleBasedStateMachine):
    """Leases that are granted, extended and ended in any order, while others flood the pool and time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.book, self.now = book_of(), 1000.0
        self.model: dict[str, ModelLease] = {}
        self.ended: list[ModelLease] = []
        self.flooded = 0

    @rule(seconds=floats(0.0, 7.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.book.expire(self.now)
        self.settle()

    def settle(self) -> None:
        for name, one in list(self.model.items()):
            one.held = min(int(self.now - one.began), one.seconds)
            if one.held >= one.seconds:
                self.end(name, EXPIRED)

    def end(self, name: str, state: str) -> None:
        one = self.model.pop(name)
        one.state = state
        self.ended.append(one)

    @rule(text=integers(0, 5), count=integers(1, 9), seconds=integers(1, 9), owner=sampled_from(OWNERS))
    def grant(self, text: int, count: int, seconds: int, owner: str) -> None:
        name, keys = f"lease-{len(self.model) + len(self.ended)}", keys_of(text, count)
        self.settle()
        self.book.expire(self.now)
        theirs = sum(len(one.keys) for one in self.model.values() if one.owner == owner)
        is_in_budget = (theirs + count) * BLOCK_BYTES <= MOST_OF_ONE
        pinned = {key for one in self.model.values() for key in one.keys}
        fits = len(pinned | set(keys)) <= self.book.pins.most
        here = compute(self.book.pins.pool, keys)
        try:
            lease(self.book, name, keys, self.now, seconds, owner)
        except LeaseRefused:
            assert not (here and is_in_budget and fits), "a lease within its budgets was refused"
        else:
            assert here and is_in_budget and fits, "a lease beyond its budgets was granted"
            self.model[name] = ModelLease(owner, keys, self.now, seconds)

    @rule(which=integers(0, 20), seconds=integers(1, 9))
    def extend(self, which: int, seconds: int) -> None:
        self.settle()
        if not self.model:
            return
        name = list(self.model)[which % len(self.model)]
        one = self.model[name]
        assert self.book.extend(name, self.book.leases[name].term.lasting(seconds, self.now), self.now)
        while one.began + one.seconds < self.now + seconds:
            one.seconds += 1

    @rule(which=integers(0, 20))
    def release(self, which: int) -> None:
        self.settle()
        if self.model:
            name = list(self.model)[which % len(self.model)]
            self.book.release(name, self.now)
            self.end(name, RELEASED)

    @rule()
    def refund(self) -> None:
        self.settle()
        self.book.refund_all("the worker drains", self.now)
        for name in list(self.model):
            self.end(name, REFUNDED)

    @rule(count=integers(1, LONGEST))
    def flood(self, count: int) -> None:
        """Compute a prompt that nobody computed before. The longest request always has room beside all leases."""
        self.flooded += 1
        assert compute(self.book.pins.pool, keys_of(1000 + self.flooded, count))

    @invariant()
    def a_leased_block_is_found(self) -> None:
        self.book.expire(self.now)
        self.settle()
        for one in self.model.values():
            assert len(self.book.pins.pool.index.leading(one.keys)) == len(one.keys), "a leased block was evicted"

    @invariant()
    def all_is_conserved(self) -> None:
        self.book.pins.pool.check()
        self.book.check()
        assert self.book.leases.keys() == self.model.keys()
        every = [*self.model.values(), *self.ended]

        def sum_of(state: str, is_held: bool) -> int:
            chosen = [one for one in every if is_held or one.state == state]
            return sum(
                len(one.keys) * BLOCK_BYTES * (one.held if is_held else one.seconds - one.held) for one in chosen
            )

        granted = sum(len(one.keys) * BLOCK_BYTES * one.seconds for one in every)
        expected = ByteSeconds(granted, sum_of(HELD, True), sum_of(RELEASED, False), sum_of(REFUNDED, False))
        assert self.book.amounts(self.now) == expected
        assert expected.ahead == sum_of(HELD, False)


TestLeaseHistory = LeaseHistory.TestCase
TestLeaseHistory.settings = settings(max_examples=20, stateful_step_count=25)


class MovedLease(RuleBasedStateMachine):
    """One lease that moves between two workers' books, whatever its proxy, which bills it, does in between."""

    def __init__(self) -> None:
        super().__init__()
        self.books, self.at, self.now = (book_of(most=None), book_of(most=None)), 0, 1000.0
        self.keys, self.flooded = keys_of(0, 8), 0
        self.billed = LeaseTerm(len(self.keys) * BLOCK_BYTES, self.now, 9)
        self.take()

    def take(self) -> None:
        """Have the worker where it is now keep it, since it began."""
        assert compute(self.books[self.at].pins.pool, self.keys)
        term = LeaseTerm(self.billed.size, self.billed.began, self.billed.seconds)
        self.books[self.at].grant(PrefixLease("moved", "ada", self.keys, 32, "proxy", term), self.now)

    @property
    def is_over(self) -> bool:
        return self.now >= self.billed.end

    @rule(seconds=floats(0.0, 4.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for book in self.books:
            book.expire(self.now)

    @rule()
    def move(self) -> None:
        """The first worker lets go once the other one has it."""
        if not self.is_over:
            before, self.at = self.books[self.at], 1 - self.at
            self.take()
            before.release("moved", self.now)

    @rule(seconds=integers(1, 9))
    def extend(self, seconds: int) -> None:
        if not self.is_over:
            self.billed.seconds = self.billed.lasting(seconds, self.now)
            assert self.books[self.at].extend("moved", self.billed.seconds, self.now)

    @rule(count=integers(1, LONGEST))
    def flood(self, count: int) -> None:
        self.flooded += 1
        assert all(compute(book.pins.pool, keys_of(1000 + self.flooded, count)) for book in self.books)

    @invariant()
    def it_is_kept_once_and_for_all_that_is_billed(self) -> None:
        here, other = self.books[self.at], self.books[1 - self.at]
        assert not other.leases and ("moved" in here.leases) is not self.is_over
        if not self.is_over:
            assert here.leases["moved"].term.amounts(self.now) == self.billed.amounts(self.now)
            assert len(here.pins.pool.index.leading(self.keys)) == len(self.keys), "a leased block was evicted"
        for book in self.books:
            book.check()
            book.pins.pool.check()


TestMovedLease = MovedLease.TestCase
TestMovedLease.settings = settings(max_examples=20, stateful_step_count=25)


def test_a_leased_prefix_outlives_a_flood_that_fills_the_pool_many_times() -> None:
    book, keys = book_of(), keys_of(0, 8)
    assert compute(book.pins.pool, keys)
    lease(book, "one", keys, 0.0, 60)
    for number in range(100):
        assert compute(book.pins.pool, keys_of(1000 + number, LONGEST))
    assert len(book.pins.pool.index.leading(keys)) == 8


def test_a_lease_that_is_over_is_evicted_like_any_other_prefix() -> None:
    book, keys = book_of(), keys_of(0, 8)
    assert compute(book.pins.pool, keys)
    lease(book, "one", keys, 0.0, 60)
    book.expire(60.0)
    for number in range(100):
        assert compute(book.pins.pool, keys_of(1000 + number, LONGEST))
    assert len(book.pins.pool.index.leading(keys)) == 2, "the flood begins alike"


def test_shared_blocks_are_kept_once_and_paid_by_each() -> None:
    book = book_of()
    for name, text in (("one", 0), ("two", 2)):
        assert compute(book.pins.pool, keys_of(text, 4))
        lease(book, name, keys_of(text, 4), 0.0, 10, owner=name)
    assert len(book.pins) == 6 and book.owner_blocks == {"one": 4, "two": 4}
    book.release("one", 5.0)
    assert len(book.pins.pool.index.leading(keys_of(2, 4))) == 4, "the other's blocks are still there"
    assert book.amounts(10.0) == ByteSeconds(8000, 2000 + 4000, 2000, 0)


def test_what_is_promised_is_not_promised_twice() -> None:
    book = book_of(most=None)
    book.promise("one", "ada", 8)
    with pytest.raises(LeaseRefused, match="would hold 500 bytes, and leases may hold 400 bytes more .* of 1200 bytes"):
        book.promise("two", "bob", 5)
    book.forgo("one")
    book.promise("two", "bob", 5)


def test_a_keys_budget_counts_what_it_was_promised() -> None:
    book = book_of()
    book.promise("one", "ada", 8)
    with pytest.raises(LeaseRefused, match="the key's leases hold 800 bytes of the 900"):
        book.promise("two", "ada", 2)
    book.promise("two", "bob", 2)


def test_leases_leave_room_for_the_longest_request() -> None:
    assert PinnedBlocks.of(BlockPool(101), 0.5, 80).most == 20
    assert PinnedBlocks.of(BlockPool(101), 0.5, 100).most == 0


def test_the_ends_of_a_lease_that_is_extended_all_the_time_stay_few() -> None:
    book, keys = book_of(), keys_of(0, 2)
    assert compute(book.pins.pool, keys)
    lease(book, "one", keys, 0.0, 1)
    for second in range(1000):
        assert book.extend("one", 1 + second, second / 2)
    assert len(book.ends) <= STALE_ENDS + 4
    assert not book.extend("one", 2000, 2000.0)


def test_a_lease_that_is_over_was_held_for_all_of_its_seconds() -> None:
    """Readings of a clock are not exact: an end less its beginning may be a little less than the time."""
    for number in range(1000):
        term = LeaseTerm(10, 12345.678 + number * 0.1, 60 + number)
        term.close(EXPIRED, term.began + term.seconds)
        assert term.amounts(0.0) == ByteSeconds(10 * term.seconds, 10 * term.seconds)


def test_time_that_stands_still_or_goes_back_ends_nothing_and_bills_nothing() -> None:
    term = LeaseTerm(10, 100.0, 60)
    assert term.amounts(50.0) == ByteSeconds(600)
    term.close(RELEASED, 50.0)
    assert term.amounts(1e9) == ByteSeconds(600, 0, 600)
