# SPDX-License-Identifier: Apache-2.0
"""The content of a tokenizer file in any format, and the bytes of a token in each family."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import tokenizers

from pontil.runtime.errors import ModelError

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Some files call these special. They are part of the answer: parsers of answers must see them, and grammars must be
# able to ask for them.
MARKERS = frozenset({
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "<|python_tag|>", "<|python_start|>", "<|python_end|>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>",
    "<|tool_call_argument_begin|>",
})  # fmt: skip
# Those of the harmony format, in vocabularies that have the first of them: others call the end of a turn so.
MESSAGE_MARKERS = ("<|channel|>", "<|start|>", "<|message|>", "<|constrain|>", "<|end|>")
BYTE_TOKEN_LENGTH = len("<0x00>")
TokenBytes = Callable[[str], bytes]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`make_backend` makes what encodes texts, or returns it. `token_bytes[id]` are the raw bytes of a token; an id
    without a token has none. `added_tokens` are those that are found in a text before it is split. `special_ids` are
    the tokens that are not text. `roles` are the texts of tokens by role ("bos_token", "pad_token", …). `end_ids` are
    the tokens that the tokenizer's own file calls the end of a text or a turn. `tool_template` is the chat template for
    chats with tools, if there is a separate one."""

    make_backend: Callable[[], tokenizers.Tokenizer]
    token_bytes: tuple[bytes, ...]
    added_tokens: Mapping[int, tokenizers.AddedToken]
    special_ids: frozenset[int]
    roles: Mapping[str, str]
    end_ids: tuple[int, ...]
    chat_template: str | None
    tool_template: str | None = None


def bytes_of_all(backend: tokenizers.Tokenizer) -> tuple[bytes, ...]:
    """The bytes of every id from 0 to the highest. Raises ModelError for a decoder that is not known."""
    tokens = backend.get_vocab(with_added_tokens=True)
    return bytes_of(tokens, backend.get_added_tokens_decoder(), token_family(backend))


def bytes_of(
    ids: Mapping[str, int], added_tokens: Mapping[int, tokenizers.AddedToken], to_bytes: TokenBytes
) -> tuple[bytes, ...]:
    """The bytes of every id from 0 to the highest, of a vocabulary that writes them so into tokens."""
    table = [b""] * (max(ids.values(), default=-1) + 1)
    for token, number in ids.items():
        table[number] = to_bytes(token)
    if to_bytes is not byte_fallback_bytes:
        # Tokens that a file adds to a byte-level vocabulary are not written in that alphabet.
        for number, added_token in added_tokens.items():
            table[number] = added_token.content.encode()
    return tuple(table)


def special_ids(backend: tokenizers.Tokenizer) -> frozenset[int]:
    is_harmony = backend.token_to_id(MESSAGE_MARKERS[0]) is not None
    return special_of(backend.get_added_tokens_decoder(), is_harmony)


def special_of(added_tokens: Mapping[int, tokenizers.AddedToken], is_harmony: bool) -> frozenset[int]:
    markers = MARKERS.union(MESSAGE_MARKERS) if is_harmony else MARKERS
    return frozenset(number for number, token in added_tokens.items() if token.special and token.content not in markers)


def ids_of(backend: tokenizers.Tokenizer, tokens: Iterable[str | None]) -> tuple[int, ...]:
    token_ids = (backend.token_to_id(token) for token in tokens if token is not None)
    return tuple(dict.fromkeys(number for number in token_ids if number is not None))


def token_family(backend: tokenizers.Tokenizer) -> TokenBytes:
    """The way this tokenizer writes bytes into tokens, told by the decoder its file declares."""
    decoder = {} if backend.decoder is None else json.loads(backend.decoder.__getstate__())
    steps = decoder.get("decoders", [decoder])
    kinds = [step.get("type") for step in steps]
    if "ByteLevel" in kinds:
        return byte_level_decoder()
    if "ByteFallback" in kinds:
        return byte_fallback_bytes
    if "WordPiece" in kinds:
        return wordpiece_bytes
    known_decoders = "ByteLevel, ByteFallback and WordPiece"
    raise ModelError(f"the tokenizer decodes by {kinds[0]}, which is not known: known are {known_decoders}")


def byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for the characters from U+0100 on, in
    order."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other_bytes = [byte for byte in range(0x100) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + index): byte for index, byte in enumerate(other_bytes)}


class ByteTable(dict[int, int]):
    """A table for `str.translate`. In place of a character outside the alphabet stands one that is no byte."""

    def __missing__(self, character: int) -> int:
        return 0x100


def byte_level_decoder() -> TokenBytes:
    table = ByteTable(str.maketrans(byte_alphabet()))

    def to_bytes(token: str) -> bytes:
        """Decode a token of the byte alphabet. One with any character outside the alphabet is plain text."""
        try:
            return token.translate(table).encode("latin-1")
        except UnicodeEncodeError:
            return token.encode()

    return to_bytes


def byte_fallback_bytes(token: str) -> bytes:
    """Decode a SentencePiece token: one byte in hexadecimal, or text in which U+2581 stands for a space."""
    if len(token) == BYTE_TOKEN_LENGTH and (match := BYTE_TOKEN.fullmatch(token)):
        return bytes([int(match[1], 16)])
    return token.replace("\u2581", " ").encode()


def wordpiece_bytes(token: str) -> bytes:
    """Decode a piece of a word: one that does not continue a word has a space before it."""
    return token[2:].encode() if token.startswith("##") else f" {token}".encode()
