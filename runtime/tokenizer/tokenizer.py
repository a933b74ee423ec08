# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path

import tokenizers

from pontil.runtime.errors import ModelError, RequestError
from pontil.runtime.tokenizer.gguf_vocabulary import read_gguf_vocabulary
from pontil.runtime.tokenizer.hf_vocabulary import read_hf_vocabulary
from pontil.runtime.tokenizer.merge_cache import MergeCache
from pontil.runtime.tokenizer.vocabulary import Vocabulary

CACHE_FOLDER = "tokenizers"


class Tokenizer:
    """Immutable once loaded, so threads may share it.

    `eos_ids` are the end tokens of the tokenizer's own file; generation ends at ModelConfig.eos_token_ids. Decoding is
    the concatenation of `token_bytes`, so text can be produced token by token. It differs from transformers' in two
    ways: a SentencePiece model's leading space stays, as a continuation needs it, and where byte tokens are no UTF-8
    only the wrong ones become U+FFFD, not all in a row.
    """

    def __init__(self, read: Callable[[], Vocabulary]) -> None:
        """Have `read` return what the tokenizer's file has, when it is first asked for."""
        self.read = read

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return self.read()

    @cached_property
    def bytes_by_id(self) -> tuple[bytes, ...]:
        """The raw bytes of all tokens, for callers that need every one, or check that an id is in range; `token_bytes`
        does so itself."""
        return self.vocabulary.token_bytes

    @cached_property
    def vocab_size(self) -> int:
        return len(self.bytes_by_id)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        return self.vocabulary.special_ids

    @property
    def added_tokens(self) -> Mapping[int, tokenizers.AddedToken]:
        return self.vocabulary.added_tokens

    @property
    def roles(self) -> Mapping[str, str]:
        return self.vocabulary.roles

    @property
    def bos_token(self) -> str | None:
        return self.roles.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self.roles.get("eos_token")

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return self.vocabulary.end_ids

    @property
    def chat_template(self) -> str | None:
        return self.vocabulary.chat_template

    @property
    def tool_template(self) -> str | None:
        return self.vocabulary.tool_template

    @cached_property
    def backend(self) -> tokenizers.Tokenizer:
        """The encoder of texts. Making it takes some tenths of a second for a large vocabulary."""
        return self.vocabulary.make_backend()

    @cached_property
    def added_ids(self) -> dict[str, int]:
        return {token.content: number for number, token in self.added_tokens.items()}

    def encode(self, text: str, add_special_tokens: bool, parse_special: bool = True) -> list[int]:
        """Encode to token ids. `add_special_tokens` adds the tokens that the model's file puts around a text, usually a
        first token; `parse_special` turns special tokens written in the text into their ids, as a rendered chat needs.

        Raises RequestError for text that is not valid Unicode.
        """
        backend = self.backend if parse_special else self.literal_backend
        try:
            return backend.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError as error:
            raise RequestError("the text holds half of a surrogate pair: send valid Unicode") from error

    def encode_unlocked(self, text: str, add_special_tokens: bool) -> list[int]:
        """Encode like `encode` but without Python's lock, so that other threads run meanwhile. It waits in the
        library's own queue: a thread that must not wait for others encodes short texts by `encode`."""
        try:
            return self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        except TypeError as error:
            raise RequestError("the text holds half of a surrogate pair: send valid Unicode") from error

    def token_bytes(self, token_id: int) -> bytes:
        """The raw bytes of one token, maybe a part of a character; none for an id beyond the vocabulary."""
        return self.bytes_by_id[token_id] if 0 <= token_id < self.vocab_size else b""

    def token_name(self, token_id: int) -> str:
        """The entry of one token in the vocabulary, in the notation of its family; empty for an id without one."""
        return self.backend.id_to_token(token_id) or ""

    def token_id(self, text: str) -> int | None:
        """The token that is exactly this text, if there is one."""
        found = self.added_ids.get(text)
        return self.backend.token_to_id(text) if found is None else found

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Decode ids to text. Bytes that are no UTF-8 become U+FFFD."""
        skipped_ids = self.special_ids if skip_special_tokens else frozenset()
        return b"".join(self.token_bytes(item) for item in ids if item not in skipped_ids).decode("utf-8", "replace")

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, over the bytes of each token, special ids, roles and templates: what a text is made
        of and an answer read by. Takes tens of milliseconds."""
        told = hashlib.sha256()
        for token in self.bytes_by_id:
            told.update(len(token).to_bytes(4, "little") + token)
        about = [sorted(self.special_ids), sorted(self.roles.items()), self.chat_template, self.tool_template]
        told.update(json.dumps(about).encode())
        return told.hexdigest()

    @cached_property
    def longest_token(self) -> int:
        """The most bytes of text that one token stands for."""
        return max(map(len, self.bytes_by_id), default=1)

    @cached_property
    def literal_backend(self) -> tokenizers.Tokenizer:
        """A copy of the backend that takes special tokens for plain text."""
        twin = tokenizers.Tokenizer.from_str(self.backend.to_str())
        twin.encode_special_tokens = True
        return twin


def load_tokenizer(path: Path, cache_dir: Path | None = None, encodes: bool = True) -> Tokenizer:
    """Load the tokenizer of a Hugging Face directory or a .gguf file. Data that takes seconds to derive is cached in
    `cache_dir`, if one is given. What seldom `encodes` texts is loaded sooner, and takes longer for the first of them:
    of a .gguf file, which is there since it has the weights too, nothing is read before. Raises ModelError."""
    if path.is_dir():
        vocabulary = read_hf_vocabulary(path)
        return Tokenizer(lambda: vocabulary)
    if path.suffix == ".gguf":
        cache = MergeCache(None if cache_dir is None else cache_dir.expanduser() / CACHE_FOLDER)
        tokenizer = Tokenizer(partial(read_gguf_vocabulary, path, cache, encodes))
        if encodes:
            _ = tokenizer.vocabulary
        return tokenizer
    raise ModelError(f"{path} is neither a directory with tokenizer.json nor a .gguf file")
