# SPDX-License-Identifier: Apache-2.0
"""Agreement with transformers, on the built-in model's GGUF file and on a tiny Hugging Face directory."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kept_reference import reference_of
from tiny_bert import write_tiny_bert
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from pontil.runtime.errors import ModelError, RequestError
from pontil.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer
from pontil.runtime.tokenizer.vocabulary import byte_level_decoder

ROOT = Path(__file__).resolve().parents[3]
PIECES = (
    "The quick brown fox, who'd jumped 1234 times, isn't tired; we'll SEE what they're up to!",
    "def f(x: int) -> str:\n\treturn f\"{x:>10}\"  # ''quoted''\n",
    "中文字符，日本語のテキスト、한국어 문장。",
    "🎉👩‍👩‍👧‍👦🏳️‍🌈 é ñ ß Ø ﬁ ½ ② ๓",
    "   leading,  double   triple    and trailing   ",
    "\t\ttabs\r\nand\n\n\nlines\r \x00\x01\x1b[0m\x7f\u200b\ufeff\u2028\u00a0",
    "اللغة العربية עברית русский язык हिन्दी",
    "{}()[]<>=+-*/\\\"'`#@!$%^&_|~;:,.?…—–",
    "<|im_start|>user\nhi<|im_end|>\n<jupyter_code>x<|no_such_token|><|im_",
    "https://example.org/a/b?c=d&e=%20#f 3.14159e-10 0xDEADBEEF 1,000,000",
)
LINES = [
    *PIECES,
    *(first[cut:] + second[: 2 * cut] for cut in (3, 7, 11) for first in PIECES for second in PIECES),
]
texts = st.text(max_size=80) | st.lists(st.sampled_from(LINES), max_size=3).map("".join)


@pytest.fixture(scope="module")
def reference(smollm2_path: Path) -> Any:
    """transformers' reading of the GGUF file, which lacks the step by which `smollm` splits digits off first."""
    tokenizer = reference_of(smollm2_path)
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), backend.pre_tokenizer])
    return tokenizer


def test_ids_and_text_agree_with_transformers(smollm2: Tokenizer, reference: Any) -> None:
    assert len(LINES) > 300
    for line in LINES:
        ids = smollm2.encode(line, add_special_tokens=True)
        assert ids == reference.encode(line), line
        assert smollm2.decode(ids, skip_special_tokens=False) == reference.decode(ids)
        assert smollm2.decode(ids) == reference.decode(ids, skip_special_tokens=True)


def test_without_the_lock_ids_are_the_same(smollm2: Tokenizer) -> None:
    for line in LINES:
        for special in (False, True):
            assert smollm2.encode_unlocked(line, special) == smollm2.encode(line, special), line
    with pytest.raises(RequestError, match="surrogate"):
        smollm2.encode_unlocked("\ud83d", False)


def test_others_run_while_a_long_text_is_encoded(smollm2: Tokenizer) -> None:
    """With a switch interval of a minute, another thread runs only if the encoding thread releases the lock."""
    begun, ended = threading.Event(), threading.Event()

    def encode() -> None:
        begun.set()
        smollm2.encode_unlocked("one two 345 " * 50_000, False)
        ended.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        thread = threading.Thread(target=encode)
        thread.start()
        begun.wait()
        assert not ended.is_set(), "it ran from beginning to end without a break"
        thread.join()
    finally:
        sys.setswitchinterval(interval)


def test_no_token_is_longer_than_the_longest(smollm2: Tokenizer) -> None:
    assert smollm2.longest_token == 81
    assert len(smollm2.encode(" " * 8100, False)) >= 100


@given(ids=st.lists(st.integers(0, 49151), max_size=30), skip=st.booleans())
def test_any_ids_decode_as_in_transformers(smollm2: Tokenizer, reference: Any, ids: list[int], skip: bool) -> None:
    assert smollm2.decode(ids, skip) == reference.decode(ids, skip_special_tokens=skip)


@given(text=texts, parse=st.booleans())
def test_text_survives(tiny: Tokenizer, text: str, parse: bool) -> None:
    ids = tiny.encode(text, add_special_tokens=False, parse_special=parse)
    assert tiny.decode(ids, skip_special_tokens=False) == text
    assert parse or not tiny.special_ids.intersection(ids)


@given(text=texts)
def test_any_text_encodes_as_in_transformers(smollm2: Tokenizer, reference: Any, text: str) -> None:
    assert smollm2.encode(text, add_special_tokens=True) == reference.encode(text)


@given(text=texts)
def test_a_directory_agrees_with_transformers(tiny: Tokenizer, tiny_reference: Any, text: str) -> None:
    assert tiny.encode(text, add_special_tokens=True) == tiny_reference.encode(text)


@pytest.fixture(scope="module")
def tiny_reference(tiny_directory: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_directory)


def test_what_the_gguf_file_says(smollm2: Tokenizer) -> None:
    assert smollm2.vocab_size == 49152
    assert (smollm2.bos_token, smollm2.eos_token, smollm2.eos_ids) == ("<|im_start|>", "<|im_end|>", (2,))
    assert smollm2.special_ids == frozenset(range(17))
    assert smollm2.encode("a", add_special_tokens=True) == smollm2.encode("a", add_special_tokens=False)
    assert smollm2.chat_template is not None and "<|im_start|>" in smollm2.chat_template


def test_token_bytes_are_parts_of_characters(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("🎉", add_special_tokens=False)
    assert len(ids) > 1
    assert b"".join(smollm2.token_bytes(item) for item in ids) == "🎉".encode()
    assert [smollm2.token_bytes(item) for item in (-1, 49152, 10**9)] == [b""] * 3


def test_half_a_surrogate_pair_is_the_clients_mistake(tiny: Tokenizer) -> None:
    with pytest.raises(RequestError, match="surrogate"):
        tiny.encode("a\ud800", add_special_tokens=False)


def copied(directory: Path, target: Path, **config: Any) -> Path:
    """A copy of a directory's tokenizer with some fields of tokenizer_config.json set."""
    target.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (target / name).write_bytes((directory / name).read_bytes())
    change(target / "tokenizer_config.json", **config)
    return target


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_first_token_as_the_file_says(tiny_directory: Path, tmp_path: Path) -> None:
    first = {"type": "TemplateProcessing", "pair": [], "special_tokens": {"<|im_start|>": {
        "id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    }  # fmt: skip
    directory = copied(tiny_directory, tmp_path / "copy", add_bos_token=False)
    change(directory / "tokenizer.json", post_processor=first)
    tokenizer, theirs = load_tokenizer(directory), AutoTokenizer.from_pretrained(directory)
    assert tokenizer.encode("a", add_special_tokens=True) == theirs.encode("a")
    assert tokenizer.encode("a", add_special_tokens=True) == [1, *tokenizer.encode("a", add_special_tokens=False)]


def test_roles_make_tokens_special(tiny_directory: Path, tmp_path: Path) -> None:
    listed = {"pad_token": {"content": "Ġthe"}, "extra_special_tokens": ["Ġof"], "unk_token": "no such token"}
    tokenizer = load_tokenizer(copied(tiny_directory, tmp_path / "copy", **listed))
    assert len(tokenizer.special_ids) == 5
    assert tokenizer.decode(tokenizer.special_ids) == ""


def test_truncation_in_the_file_is_ignored(tiny_directory: Path, tmp_path: Path) -> None:
    directory = copied(tiny_directory, tmp_path / "copy")
    truncation = {"max_length": 2, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
    change(directory / "tokenizer.json", truncation=truncation)
    assert len(load_tokenizer(directory).encode("x y z x y z", add_special_tokens=True)) > 2


def test_forms_of_the_chat_template(tiny_directory: Path, tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    directory = copied(tiny_directory, tmp_path / "copy", chat_template=named)
    tokenizer = load_tokenizer(directory)
    assert (tokenizer.chat_template, tokenizer.tool_template) == ("plain", "tools")
    (directory / "chat_template.jinja").write_text("newer")
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "tool_use.jinja").write_text("newer tools")
    tokenizer = load_tokenizer(directory)
    assert (tokenizer.chat_template, tokenizer.tool_template) == ("newer", "newer tools")
    assert load_tokenizer(copied(tiny_directory, tmp_path / "none", chat_template=None)).chat_template is None


def test_sentencepiece_with_bytes(tmp_path: Path) -> None:
    vocabulary = {"<unk>": 0, "<0xF0>": 1, "<0x9F>": 2, "<0x8E>": 3, "<0x89>": 4, "\u2581a": 5, "\u2581": 6, "a": 7}
    content = {
        "version": "1.0",
        "added_tokens": [],
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [["\u2581", "a"]], "byte_fallback": True},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("\u2581a🎉", add_special_tokens=False) == [5, 1, 2, 3, 4]
    assert tokenizer.decode([5, 1, 2, 3, 4]) == " a🎉"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "damaged"),
        ('{"model": {"type": "BPE"}}', "damaged"),
        ('{"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": []}', "decodes by None"),
        ('{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}, "decoder": {"type": "CTC", '
         '"pad_token": "a", "word_delimiter_token": "|", "cleanup": true}, "added_tokens": []}', "decodes by CTC"),
    ],
)  # fmt: skip
def test_a_tokenizer_that_cannot_be_used(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=says):
        load_tokenizer(tmp_path)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="missing"):
        load_tokenizer(tmp_path)
    with pytest.raises(ModelError, match="No such file"):
        load_tokenizer(tmp_path / "none.gguf")
    with pytest.raises(ModelError, match="neither"):
        load_tokenizer(tmp_path / "tokenizer.model")


def test_no_torch() -> None:
    code = "import app, sys, pontil.runtime.tokenizer.tokenizer; sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_pieces_of_words_are_joined(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_tiny_bert(tmp_path))
    ids = tokenizer.encode("The sea, 7 lamps", True)
    assert tokenizer.decode(ids).split() == ["the", "sea", ",", "7", "lamps"] and len(ids) == 8
    assert tokenizer.decode(ids, skip_special_tokens=False).startswith("[CLS]")


@pytest.mark.parametrize(
    "token, spelled",
    [("Ġcaf\u00c3\u00a9", " café".encode()), ("a b", b"a b"), ("\u00ad", "\u00ad".encode()), ("é你", "é你".encode())],
)
def test_a_token_with_a_character_that_is_no_byte_is_plain_text(token: str, spelled: bytes) -> None:
    assert byte_level_decoder()(token) == spelled
