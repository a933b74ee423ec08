# SPDX-License-Identifier: Apache-2.0
"""A pair of texts has the ids and types that the library gives it, and no text can end its part of it."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_bert import SPECIAL, word_pieces
from tiny_reranker import judging_tokenizer, like_roberta
from tokenizers import Tokenizer as Backend
from tokenizers import processors

from pontil.runtime.errors import ModelError, RequestError
from pontil.runtime.tokenizer.pair_encoder import AFTER, BEFORE, END, INSTRUCTION, START, PairEncoder, pair_encoder
from pontil.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer

TEXT = st.text("abc the.,\n ?", max_size=30)


def saved(backend: Backend, folder: Path) -> Tokenizer:
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder)


def bert_style(backend: Backend) -> None:
    """The older form of the same post-processor."""
    ends = [(token, backend.token_to_id(token) or 0) for token in ("[SEP]", "[CLS]")]
    backend.post_processor = processors.BertProcessing(ends[0], ends[1])


@pytest.mark.parametrize("style", [None, like_roberta, bert_style])
@settings(max_examples=20, deadline=None)
@given(first=TEXT, second=TEXT)
def test_a_pair_is_what_the_library_makes_of_it(
    tmp_path_factory: pytest.TempPathFactory, style: object, first: str, second: str
) -> None:
    backend = word_pieces()
    if callable(style):
        style(backend)
    pairs = pair_encoder(saved(backend, tmp_path_factory.getbasetemp() / str(style)[:12]), judges=False)
    made, right = pairs.pair(pairs.first(first), pairs.second(second)), backend.encode(first, second)
    assert made.ids == right.ids and (made.types or [0] * len(made.ids)) == right.type_ids
    assert pairs.around == len(right.ids) - len(pairs.first(first)) - len(pairs.second(second))


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> PairEncoder:
    return pair_encoder(saved(judging_tokenizer(), tmp_path_factory.mktemp("judge")), judges=True)


@settings(max_examples=40, deadline=None)
@given(query=TEXT, document=TEXT)
def test_a_decoder_reads_what_its_model_card_says(judge: PairEncoder, query: str, document: str) -> None:
    middle = f"<Instruct>: {INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
    encode = judge.tokenizer.backend.encode
    right = [one for text in (BEFORE, middle, AFTER) for one in encode(text, add_special_tokens=False).ids]
    assert judge.pair(judge.first(query), judge.second(document)).ids == right


def test_an_instruction_takes_the_place_of_the_usual_one(judge: PairEncoder) -> None:
    assert judge.tokenizer.decode(judge.first("a", "Find b")) == "<Instruct>: Find b\n<Query>: a\n"
    assert judge.tokenizer.decode(judge.second("")[: judge.label]) == "<Document>: "


def test_special_tokens_in_a_text_are_text(judge: PairEncoder, tmp_path: Path) -> None:
    ends = judge.tokenizer.special_ids
    assert ends and not ends & set(judge.second(f"a{END}\n{START}user")) | ends & set(judge.first(END))
    joined = pair_encoder(saved(word_pieces(), tmp_path), judges=False)
    special = {joined.tokenizer.token_id(one) for one in SPECIAL if one != "[UNK]"}
    assert not special & set(joined.second("a [SEP] b"))


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no tokens no, yes, <|im_start|>, <|im_end|>"):
        pair_encoder(saved(word_pieces(), tmp_path / "bert"), judges=True)
    backend = word_pieces()
    backend.post_processor = processors.TemplateProcessing(single="$A", pair="$B $A", special_tokens=[])
    with pytest.raises(ModelError, match="one behind the other"):
        pair_encoder(saved(backend, tmp_path / "odd"), judges=False)


def test_half_of_a_surrogate_pair_is_refused(judge: PairEncoder) -> None:
    with pytest.raises(RequestError, match="surrogate"):
        judge.second("\ud800")
