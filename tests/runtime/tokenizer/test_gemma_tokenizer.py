# SPDX-License-Identifier: Apache-2.0
"""Gemma 3's own tokenizer, from the built-in model's GGUF file (fetched once; transformers needs most of the time)."""

from pathlib import Path
from typing import Any

import pytest
from kept_reference import reference_of
from mixed_text import mixed_lines

from pontil.runtime.tokenizer.detokenizer import Detokenizer
from pontil.runtime.tokenizer.tokenizer import Tokenizer

RARE = "𓀀𓀁𓀂𓀃 𓀀𓀁𓀂𓀃 𓀀𓀁"
ZWJ = "👩‍👩‍👧‍👦"


@pytest.fixture(scope="module")
def reference(gemma_path: Path) -> Any:
    return reference_of(gemma_path)


@pytest.mark.long  # transformers takes half a minute to read the vocabulary
def test_mixed_text_agrees_with_transformers(gemma: Tokenizer, reference: Any) -> None:
    lines = mixed_lines(2000)
    assert len(set(lines)) > 1800
    for line in lines:
        ids = gemma.encode(line, add_special_tokens=True)
        assert ids == reference.encode(line), line
        assert gemma.decode(ids, skip_special_tokens=False) == reference.decode(ids), line
        assert gemma.decode(ids) == reference.decode(ids, skip_special_tokens=True), line


def test_what_the_file_says(gemma: Tokenizer) -> None:
    assert gemma.vocab_size == 262144
    assert (gemma.bos_token, gemma.eos_token, gemma.eos_ids) == ("<bos>", "<eos>", (1,))
    assert (gemma.roles["pad_token"], gemma.roles["unk_token"]) == ("<pad>", "<unk>")
    assert gemma.chat_template is None
    assert gemma.encode("", add_special_tokens=True) == [2]


def test_a_rare_script_is_bytes(gemma: Tokenizer) -> None:
    ids = gemma.encode(RARE, add_special_tokens=False)
    tokens = [gemma.backend.id_to_token(item) or "" for item in ids]
    assert len(ids) == 4 * 10 + 2
    assert [token for token in tokens if not token.startswith("<0x")] == ["\u2581"] * 2
    assert gemma.decode(ids) == RARE


def test_a_character_of_bytes_appears_with_its_last(gemma: Tokenizer) -> None:
    detokenizer = Detokenizer(gemma)
    shown = [detokenizer.add([item]) for item in gemma.encode(RARE, add_special_tokens=False)]
    assert shown == [part for character in RARE for part in ([""] * 3 + [character] if character != " " else [" "])]
    assert detokenizer.finish() == ""


def test_special_tokens_between_bytes(gemma: Tokenizer) -> None:
    ids = gemma.encode("𓀀", add_special_tokens=False)
    split = [*ids[:2], 1, *ids[2:]]
    assert gemma.decode(split) == "𓀀"
    assert gemma.decode(split, skip_special_tokens=False) == "\ufffd<eos>\ufffd\ufffd"
    assert gemma.decode(gemma.encode(ZWJ, add_special_tokens=False)) == ZWJ
