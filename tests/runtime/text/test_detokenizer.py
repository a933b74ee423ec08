# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.text.detokenizer import Detokenizer
from pontil.runtime.text.tokenizer import Tokenizer

pieces = st.lists(st.lists(st.integers(0, 300), max_size=6), max_size=12)


@given(pieces=pieces, skip=st.booleans())
def test_pieces_join_to_the_whole(tiny: Tokenizer, pieces: list[list[int]], skip: bool) -> None:
    detokenizer = Detokenizer(tiny, skip)
    text = "".join([detokenizer.add(ids) for ids in pieces] + [detokenizer.finish()])
    assert text == tiny.decode([item for ids in pieces for item in ids], skip)


@given(text=st.text(max_size=40))
def test_a_character_appears_when_it_is_whole(tiny: Tokenizer, text: str) -> None:
    detokenizer = Detokenizer(tiny, skip_special_tokens=False)
    shown = ""
    for item in tiny.encode(text, add_special_tokens=False):
        shown += detokenizer.add([item])
        assert text.startswith(shown)
    assert shown == text and detokenizer.finish() == ""


def test_an_unfinished_character_is_shown_at_the_end(tiny: Tokenizer) -> None:
    detokenizer = Detokenizer(tiny)
    ids = tiny.encode("ok🎉", add_special_tokens=False)
    assert detokenizer.add(ids[:-1]) == "ok"
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.add(ids) == "ok🎉"


def test_special_tokens_do_not_break_a_character(tiny: Tokenizer) -> None:
    first, second = tiny.encode("é", add_special_tokens=False)
    detokenizer = Detokenizer(tiny)
    assert detokenizer.add([first, 2]) + detokenizer.add([second]) == "é"


def test_tokenizers_are_shared(tiny: Tokenizer) -> None:
    one, other = Detokenizer(tiny), Detokenizer(tiny)
    first, second = tiny.encode("é", add_special_tokens=False)
    assert one.add([first]) == ""
    assert other.add(tiny.encode("a", add_special_tokens=False)) == "a"
    assert one.add([second]) == "é"
