# SPDX-License-Identifier: Apache-2.0
"""GGUF files with wrong counts, lengths, types, sizes and offsets, or cut off anywhere: one sentence or a whole model,
and no memory for what the file does not hold."""

import random
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
from effort import examples

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.loaders.config import read_config
from pontil.runtime.loaders.gguf.header import Cursor, read_header
from pontil.runtime.tokenizer.tokenizer import load_tokenizer

# More than a whole small model needs, with its names.
MOST_MEMORY = 32 << 20
SMALL = (0, 1, 2, 3, 7, 8, 9, 12, 13, 31, 255, 1023, 1025)
LARGE = ((1 << 31) - 1, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
FLOATS = (float("nan"), float("inf"), -1.0, 0.0, 1e38)


class RecordingCursor(Cursor):
    """A cursor that notes where numbers lie, each with its format."""

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.places: list[tuple[int, str]] = []

    def number(self, kind: struct.Struct) -> int:
        self.places.append((self.at, kind.format))
        return super().number(kind)


def places_in(content: bytes) -> list[tuple[int, str]]:
    """Return the place of every count, length, type, size, offset and value of a header."""
    cursor = RecordingCursor(content)
    cursor.header()
    return cursor.places


def wrong(content: bytes, places: list[tuple[int, str]], chance: random.Random) -> bytes:
    """Return the file with one to three numbers wrong, or cut off."""
    changed = bytearray(content)
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        at, form = chance.choice(places)
        whole = form[-1] in "BbHhIiQq?"
        values = (
            [*SMALL, *LARGE, struct.unpack_from(form, content, at)[0] + chance.choice([-1, 1])] if whole else FLOATS
        )
        size = struct.calcsize(form)
        value = chance.choice(values)
        packed = struct.pack(form, value) if not whole else (int(value) % (1 << 8 * size)).to_bytes(size, "little")
        changed[at : at + size] = packed
    kept = chance.randrange(len(changed)) if chance.random() < 0.1 else len(changed)
    return bytes(changed[:kept])


def add_sentencepiece(writer: gguf.GGUFWriter) -> None:
    add_tokens(writer, "llama", ["<unk>", "<s>", "</s>", *BYTES, "\u2581", "a", "b", "ab", "\u2581a"])
    writer.add_token_scores([float(-number) for number in range(len(BYTES) + 8)])


def add_byte_level(writer: gguf.GGUFWriter) -> None:
    add_tokens(writer, "gpt2", ["<unk>", "<s>", "</s>", *map(chr, range(33, 127)), "ab", "abc"])
    writer.add_token_merges(["a b", "ab c"])


def add_tokens(writer: gguf.GGUFWriter, model: str, tokens: list[str]) -> None:
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types([2, 3, 3, *[1] * (len(tokens) - 3)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{{ messages }}")


BYTES = [f"<0x{number:02X}>" for number in range(256)]
VOCABULARIES = {"llama": add_sentencepiece, "qwen3moe": add_byte_level}


def read_whole(path: Path, cache: Path) -> None:
    """Read everything of a file, as a proxy and a worker do."""
    for read in (read_config, lambda one: list(open_checkpoint(one).tensors()), lambda one: load_tokenizer(one, cache)):
        try:
            read(path)
        except ModelError as error:
            assert "\n" not in str(error) and len(str(error)) < 2000


@pytest.fixture
def counted() -> Iterator[None]:
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MOST_MEMORY, "memory was taken for what the file does not hold"


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("architecture", ["llama", "qwen3moe"])
def test_a_wrong_number_in_a_header(tiny: Path, write_gguf: Any, tmp_path: Path, architecture: str) -> None:
    more: dict[str, Any] = {}
    if architecture == "qwen3moe":
        more = {"expert_count": 2, "expert_used_count": 1, "expert_feed_forward_length": 32}
    facts = {f"{architecture}__{key}": value for key, value in more.items()}
    vocabulary = VOCABULARIES[architecture]
    path = write_gguf(tiny, read_config(tiny), architecture=architecture, vocabulary=vocabulary, **facts)
    assert load_tokenizer(path, tmp_path).encode("ab", False)
    content, chance = path.read_bytes(), random.Random(architecture)
    places = places_in(content)
    assert len(places) > 100 and read_header(path).tensors
    for _ in range(examples(50, 10_000)):
        path.write_bytes(wrong(content, places, chance))
        read_whole(path, tmp_path)
