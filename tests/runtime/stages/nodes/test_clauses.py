# SPDX-License-Identifier: Apache-2.0
"""A streamed text is cut into pieces that a voice can speak, in the same way however it arrives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.stages.nodes.clauses import MOST, Clauses, pieces_of

# Letters, marks and gaps that rules look at, so that texts meet the rules often.
TEXTS = st.one_of(
    st.text(st.sampled_from("aB1.!?…,;: \n\t\"')*。！」Dr."), max_size=600),
    st.lists(
        st.sampled_from(["Dr.", "e.g.", "Yes.", "word", "1.", "J.", '"No!"', "well,", "\n", "  "]), max_size=120
    ).map(" ".join),
    st.text(max_size=300),
)


def cut(parts: list[str]) -> list[str]:
    return list(pieces_of(parts))


def stripped(text: str) -> list[str]:
    return [piece.strip() for piece in cut([text])]


@given(TEXTS, st.data())
def test_pieces_are_the_text_however_it_arrives(text: str, data: st.DataObject) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parts = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    pieces = cut(parts)
    assert "".join(pieces) == text
    assert pieces == cut(list(text))
    assert all(0 < len(piece) <= MOST for piece in pieces)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Yes. It is!  Why?", ["Yes.", "It is!", "Why?"]),
        ('He said "Stop." Then he left.', ['He said "Stop."', "Then he left."]),
        (
            "Dr. Smith met J. K. Rowling in the U.S. They spoke.",
            ["Dr. Smith met J. K. Rowling in the U.S. They spoke."],
        ),
        ("It is 3.14, e.g. Pi. Next.", ["It is 3.14, e.g. Pi.", "Next."]),
        ("1. Bread\n2. Milk and eggs", ["1. Bread", "2. Milk and eggs"]),
        ("**Bold.** Plain.", ["**Bold.**", "Plain."]),
        ("これは本です。それも！", ["これは本です。", "それも！"]),
        ("「はい。」と言った。", ["「はい。」", "と言った。"]),
        ("So do I. You too.", ["So do I.", "You too."]),
        ("Title\n\nText", ["Title", "Text"]),
        ("", []),
        (" \n", [""]),
    ],
)
def test_sentences(text: str, pieces: list[str]) -> None:
    assert stripped(text) == pieces


def test_only_the_first_piece_ends_early_at_a_comma() -> None:
    text = "In the middle of the night, a dog barked at the moon, and then, as nobody came, it slept."
    first, rest = stripped(text)
    assert first == "In the middle of the night,"
    assert rest.endswith("it slept.")


def test_a_piece_is_given_with_the_first_letter_after_it() -> None:
    clauses = Clauses()
    assert clauses.feed("It rains. ") == []
    assert clauses.feed("S") == ["It rains. "]
    assert clauses.finish() == ["S"]
    assert clauses.finish() == []


def test_long_text_without_marks_is_cut_between_words() -> None:
    pieces = cut(["word " * 100])
    assert all(piece.endswith("word ") for piece in pieces)
    assert max(map(len, pieces)) == MOST
    assert [len(piece) for piece in cut(["x" * (2 * MOST + 1)])] == [MOST, MOST, 1]
