# SPDX-License-Identifier: Apache-2.0
"""Changes of adapters that processes merge: in whatever order they come, all end with the same."""

from dataclasses import replace
from itertools import permutations

from pontil.runtime.wire import adapter_book
from pontil.runtime.wire.adapter_book import AdapterBook, AdapterChange
from pontil.runtime.wire.messages import AdapterTable

ONE, TWO = "5a" * 32, "1c" * 32
CHANGES = (
    AdapterChange(1, ONE, "/a"),
    AdapterChange(2, "", ""),
    AdapterChange(2, TWO, "/b"),
    AdapterChange(2, TWO, "/b", retracted=True),
    AdapterChange(3, ONE, "/a"),
)


def test_changes_in_any_order_end_alike() -> None:
    for order in permutations(CHANGES):
        book = AdapterBook()
        changed = [bool(book.merge({"sql": change})) for change in order]
        assert book.changes == {"sql": CHANGES[-1]} and changed[0], order
        assert not book.merge({"sql": CHANGES[1]})
    # Of two with one number all choose the same.
    ties = [AdapterBook(), AdapterBook()]
    for book, order in zip(ties, (CHANGES[1:3], CHANGES[2:0:-1]), strict=True):
        for change in order:
            book.merge({"sql": change})
    assert ties[0] == ties[1] and ties[0].changes["sql"].digest == TWO


def test_names_of_the_launch_stand_until_they_are_changed() -> None:
    book, before = AdapterBook(), {"law": ONE, "sql": TWO}
    assert book.named(before) == before and book.digest_of("law", ONE) == ONE and book.digest_of("x", None) is None
    book.merge({"law": AdapterChange(book.next_number, "", ""), "x": AdapterChange(book.next_number, ONE, "/x")})
    assert book.named(before) == {"sql": TWO, "x": ONE}
    assert book.digest_of("law", ONE) is None and book.digest_of("x", None) == ONE


def test_a_message_tells_all_of_a_book_and_who_lacks_some_is_noticed() -> None:
    book, other = AdapterBook({"sql": CHANGES[0]}), AdapterBook()
    told = AdapterTable("p", "w", **book.fields)
    assert book.lacks(AdapterTable("w", "p", **other.fields))
    assert other.take(told) == ["sql"] and other == book and other.take(told) == []
    assert not book.lacks(AdapterTable("w", "p", **other.fields))
    # Of two changes with one number, the sender may have the one that does not count.
    tied = AdapterBook({"sql": AdapterChange(CHANGES[0].number, "", "")})
    assert book.lacks(AdapterTable("w", "p", **tied.fields)) and not tied.lacks(told)
    # No other text is taken for a digest.
    assert (
        other.take(AdapterTable("p", "w", {"bad": 9}, {"bad": "../x"}, {"bad": "/"})) == []
        and "bad" not in other.changes
    )


def test_a_change_that_is_taken_back_stands_for_nothing_and_gives_way_to_others_of_its_number() -> None:
    book = AdapterBook({"sql": AdapterChange(2, TWO, "/b", retracted=True)})
    assert book.named({"sql": ONE}) == {} and book.digest_of("sql", ONE) is None
    # The one of the lower digest has lost to it before, and whoever made it was told.
    assert not book.merge({"sql": AdapterChange(2, TWO, "/b")}) and not book.merge({"sql": AdapterChange(2, "", "")})
    other = AdapterBook()
    assert other.take(AdapterTable("p", "w", **book.fields)) == ["sql"] and other == book
    assert book.merge({"sql": AdapterChange(2, ONE, "/a")}) == ["sql"] and book.named({}) == {"sql": ONE}


def test_who_cannot_know_that_a_change_was_taken_back_is_not_told_again_and_again() -> None:
    book = AdapterBook({"sql": AdapterChange(2, TWO, "/b", retracted=True)})
    earlier = AdapterTable("w", "p", {"sql": 2}, {"sql": TWO}, {"sql": "/b"})
    assert not book.lacks(earlier) and book.lacks(replace(earlier, retracted=[]))
    assert book.lacks(replace(earlier, changes={"sql": 1}))


def test_names_that_are_remembered_are_bounded() -> None:
    most = adapter_book.MOST_NAMES
    book = AdapterBook({f"gone{number}": AdapterChange(number, "", "") for number in range(1, most + 1)})
    book.merge({"new": AdapterChange(most + 1, ONE, "/a")})
    assert len(book.changes) == most and "gone1" not in book.changes and "new" in book.changes
