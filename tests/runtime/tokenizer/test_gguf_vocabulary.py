# SPDX-License-Identifier: Apache-2.0
"""Tokenizers in GGUF files written here, from the tiny directory's own tokens and merges."""

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from sentencepiece_file import write_sentencepiece

from pontil.runtime.errors import ModelError
from pontil.runtime.tokenizer.byte_level_bpe import splitter
from pontil.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer
from pontil.runtime.tokenizer.vocabulary import bytes_of_all, ids_of, special_ids

TEXT = "the theory and  a 2024 test<|im_end|>\n 你好"


@pytest.fixture
def write(tmp_path: Path, tiny_directory: Path) -> Any:
    data = json.loads((tiny_directory / "tokenizer.json").read_text())
    tokens = list(data["model"]["vocab"])
    merges = [" ".join(pair) for pair in data["model"]["merges"]]

    def write(**changes: Any) -> Path:
        said: dict[str, Any] = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": merges, "bos": 1} | changes
        path = tmp_path / "tokenizer.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tokenizer_model(said["model"])
        writer.add_tokenizer_pre(said["pre"])
        writer.add_token_list(said["tokens"])
        writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(said["tokens"]) - 3))
        writer.add_token_merges(said["merges"])
        writer.add_bos_token_id(said["bos"])
        writer.add_eos_token_id(2)
        writer.add_eot_token_id(0)
        if "add_bos" in said:
            writer.add_add_bos_token(said["add_bos"])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return path

    return write


def test_the_same_tokenizer_as_the_directory(write: Any, tiny: Tokenizer) -> None:
    tokenizer = load_tokenizer(write())
    assert tokenizer.encode(TEXT, add_special_tokens=True) == tiny.encode(TEXT, add_special_tokens=True)
    assert (tokenizer.vocab_size, tokenizer.special_ids) == (tiny.vocab_size, tiny.special_ids)
    assert (tokenizer.bos_token, tokenizer.eos_token) == (tiny.bos_token, tiny.eos_token)
    assert tokenizer.eos_ids == (2, 0)
    assert tokenizer.chat_template is None


def test_nothing_is_read_for_a_worker_before_it_asks_for_it(write: Any) -> None:
    path = write()
    whole, late = load_tokenizer(path), load_tokenizer(path, encodes=False)
    assert "vocabulary" in vars(whole) and "vocabulary" not in vars(late)
    assert late.token_bytes(5) == whole.token_bytes(5) and late.special_ids == whole.special_ids
    path.write_bytes(b"no GGUF")
    load_tokenizer(path, encodes=False)
    with pytest.raises(ModelError, match="fetch it again"):
        load_tokenizer(path)


def check_without_backend(path: Path) -> None:
    """Compare what is read without what encodes with what that says of itself."""
    tokenizer = load_tokenizer(path, encodes=False)
    read = (tokenizer.bytes_by_id, tokenizer.special_ids, {n: t.content for n, t in tokenizer.added_tokens.items()})
    named = {token.content: tokenizer.token_id(token.content) for token in tokenizer.added_tokens.values()}
    assert "backend" not in tokenizer.__dict__ and not {"", None} & {*named, *named.values()}
    backend = tokenizer.backend
    added_tokens = {number: token.content for number, token in backend.get_added_tokens_decoder().items()}
    assert read == (bytes_of_all(backend), special_ids(backend), added_tokens)
    assert named == {content: backend.token_to_id(content) for content in named}
    names = [backend.id_to_token(number) for number in tokenizer.eos_ids]
    assert tokenizer.eos_ids == ids_of(backend, names) == load_tokenizer(path).eos_ids
    assert backend.to_str() == load_tokenizer(path).backend.to_str()


MARKED = ["<|channel|>", "<|start|>", "<|message|>"]


@pytest.mark.parametrize("first", [None, MARKED, ["<tool_call>", "né", "日本"], ["the", "Ġthe", ""]])
def test_the_table_is_what_the_backend_has(write: Any, tiny_directory: Path, first: list[str] | None) -> None:
    tokens = list(json.loads((tiny_directory / "tokenizer.json").read_text())["model"]["vocab"])
    check_without_backend(write() if first is None else write(tokens=[*first, *tokens, *first]))


def test_the_table_of_pieces_is_what_the_backend_has(tmp_path: Path) -> None:
    for architecture in ("llama", "gemma3"):
        check_without_backend(write_sentencepiece(tmp_path / "small.gguf", architecture))


@pytest.mark.parametrize(
    ("pre", "add_bos", "first"), [("gpt-2", None, False), ("gpt-2", True, True), ("llama-bpe", None, True)]
)
def test_a_first_token_as_the_file_says(write: Any, pre: str, add_bos: bool | None, first: bool) -> None:
    tokenizer = load_tokenizer(write(pre=pre) if add_bos is None else write(pre=pre, add_bos=add_bos))
    ids = tokenizer.encode("the", add_special_tokens=True)
    assert ids == [1] * first + tokenizer.encode("the", add_special_tokens=False)


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["I", "'ll", "ĠPAY", "Ġ", "Ġ12345", "!", "ĊĊĠ", "Ġok"]),
        ("smollm", ["I", "'ll", "ĠPAY", "ĠĠ", "1", "2", "3", "4", "5", "!", "ĊĊĠ", "Ġok"]),
        ("llama-bpe", ["I", "'ll", "ĠPAY", "Ġ", "Ġ", "123", "45", "!ĊĊ", "Ġ", "Ġok"]),
        ("tekken", ["I", "'ll", "ĠPAY", "Ġ", "Ġ", "1", "2", "3", "4", "5", "!ĊĊ", "Ġ", "Ġok"]),
        ("gpt-4o", ["I'll", "ĠPAY", "Ġ", "Ġ", "123", "45", "!ĊĊ", "Ġ", "Ġok"]),
        ("qwen2", ["I", "'ll", "ĠPAY", "Ġ", "Ġ", "1", "2", "3", "4", "5", "!ĊĊ", "Ġ", "Ġok"]),
        ("glm4", ["I", "'ll", "ĠPAY", "Ġ", "Ġ", "123", "45", "!ĊĊ", "Ġ", "Ġok"]),
        ("deepseek-v3", ["I", "'ll", "ĠPAY", "ĠĠ", "123", "45", "!ĊĊ", "Ġ", "Ġok"]),
        ("deepseek-coder", ["I", "'", "ll", "ĠPAY", "ĠĠ", "1", "2", "3", "4", "5", "!", "Ċ", "Ċ", "Ġ", "Ġok"]),
    ],
)
def test_how_text_is_split(pre: str, pieces: list[str]) -> None:
    assert [piece for piece, _ in splitter(pre).pre_tokenize_str("I'll PAY  12345!\n\n  ok")] == pieces


def test_deepseeks_splitter_takes_signs_before_letters_and_ideographs_apart() -> None:
    pieces = [piece for piece, _ in splitter("deepseek-v3").pre_tokenize_str("a.b $x é1234 中文かな!")]
    text = ["a", ".b", "Ġ$", "x", "ĠÃ©", "123", "4", "Ġ", "ä¸Ńæĸĩãģĭãģª", "!"]
    assert pieces == text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": "llama"}, "holds no tokens and scores"),
        ({"model": "bert"}, "'bert' is not known: this version reads 'gpt2'"),
        ({"pre": "viking"}, "'viking', which is not known: known are default, gpt-2"),
        ({"merges": ["Ġ t", "no such"]}, "merges do not fit"),
    ],
)
def test_what_is_not_known_is_refused_by_name(write: Any, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        load_tokenizer(write(**changes))


def test_a_first_token_that_does_not_exist(write: Any) -> None:
    assert load_tokenizer(write(bos=10**6)).bos_token is None


def test_a_truncated_file(write: Any) -> None:
    path = write()
    content = path.read_bytes()
    for kept in range(0, len(content) - 32, 101):
        path.write_bytes(content[:kept])
        with pytest.raises(ModelError, match="not a whole GGUF file"):
            load_tokenizer(path)
