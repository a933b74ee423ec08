# SPDX-License-Identifier: Apache-2.0
"""The changes of a prefix index: a reader that takes all of them knows what the index knows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.cache import prefix_journal
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.prefix import PrefixIndex, chain, full_keys, root_key
from pontil.runtime.cache.prefix_journal import PrefixJournal


def key_of(number: int) -> bytes:
    """A key that differs from others in its first bytes."""
    return number.to_bytes(8, "little") + bytes(8)


def shorts(data: bytes) -> list[bytes]:
    return [data[place : place + 8] for place in range(0, len(data), 8)]


@given(
    st.lists(st.tuples(st.sampled_from(("add", "forget", "take")), st.integers(1, 6), st.integers(1, 9)), max_size=60)
)
def test_a_reader_follows_the_index(changes: list[tuple[str, int, int]]) -> None:
    index, held = PrefixIndex(), set[bytes]()
    for before in range(3):
        index.add(key_of(before), before + 1)
    journal = index.open_journal()

    def take(most: int) -> None:
        added, removed = journal.take(most)
        assert len(added) + len(removed) <= 8 * most and not set(shorts(added)) & set(shorts(removed))
        held.update(shorts(added))
        held.difference_update(shorts(removed))

    for what, number, block in changes:
        if what == "add":
            index.add(key_of(number), block)
        elif what == "forget":
            index.forget(block)
        else:
            take(number)
    while journal.changes:
        take(2)
    assert held == {one[:8] for one in index.blocks}


def test_evicted_blocks_are_told() -> None:
    pool = BlockPool(3)
    keys = list(full_keys(list(range(32)), "", 16))
    journal = pool.index.open_journal()
    blocks = pool.take(2)
    assert blocks is not None
    for each, block in zip(keys, blocks, strict=True):
        pool.index.add(each, block)
    assert journal.take(10) == (keys[0][:8] + keys[1][:8], b"")
    pool.release(blocks)
    pool.take(1)
    assert journal.take(10) == (b"", keys[1][:8]), "the end of a prefix goes first"


def test_more_than_it_keeps_makes_it_void(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_journal, "MOST_CHANGES", 4)
    journal = PrefixJournal()
    for number in range(5):
        journal.add(key_of(number))
    assert journal.is_void and not journal.changes
    index = PrefixIndex()
    index.open_journal()
    index.clear()
    assert all(journal.is_void for journal in index.journals)


def test_a_journal_begins_with_the_newest_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_journal, "MOST_PRESENT", 2)
    assert PrefixJournal(map(key_of, range(5))).take(9) == (key_of(3)[:8] + key_of(4)[:8], b"")


def test_keys_are_chained_from_the_salt() -> None:
    prompt = list(range(40))
    first = chain(root_key("a"), prompt[:16])
    assert list(full_keys(prompt, "a", 16)) == [first, chain(first, prompt[16:32])]
    assert not set(full_keys(prompt, "b", 16)) & set(full_keys(prompt, "a", 16))
    assert list(full_keys(prompt[:15], "a", 16)) == []
