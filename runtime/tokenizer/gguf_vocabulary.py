# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a GGUF file: byte-level BPE or SentencePiece's, with the special tokens by role."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.gguf.header import read_header
from pontil.runtime.tokenizer.byte_level_bpe import LLAMA_3_NAMES, byte_pair_tokenizer
from pontil.runtime.tokenizer.merge_cache import MergeCache
from pontil.runtime.tokenizer.sentencepiece_bpe import sentencepiece_tokenizer
from pontil.runtime.tokenizer.vocabulary import Vocabulary, bytes_of_all, ids_of, special_ids

PREFIX, KEYS = "tokenizer.", "tokenizer.ggml."
BYTE_LEVEL, SENTENCEPIECE = "gpt2", "llama"
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
ROLE_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def read_gguf_vocabulary(path: Path, cache: MergeCache) -> Vocabulary:
    """Read the tokenizer. Raises ModelError for a damaged file, and for a tokenizer of neither family or with an
    unknown splitter."""
    header = read_header(path, whole=PREFIX)
    metadata: dict[str, Any] = {
        key.removeprefix(KEYS): value for key, value in {**header.metadata, **header.arrays}.items()
    }
    tokens = metadata.get("tokens")
    backend = read_backend(path, metadata, cache)
    assert isinstance(tokens, list)
    add_tokens(backend, tokens, metadata.get("token_type", ()))
    roles = {
        role: token for role, key in ROLE_KEYS.items() if (token := token_at(tokens, metadata.get(key))) is not None
    }
    first = roles.get("bos_token") if metadata.get("add_bos_token", begins_by_itself(metadata)) else None
    frame(backend, first, roles.get("eos_token") if metadata.get("add_eos_token") else None)
    return Vocabulary(
        backend=backend,
        token_bytes=bytes_of_all(backend),
        special_ids=special_ids(backend),
        roles=roles,
        end_ids=ids_of(backend, [token_at(tokens, metadata.get(key)) for key in END_KEYS]),
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def read_backend(path: Path, metadata: dict[str, Any], cache: MergeCache) -> Tokenizer:
    kind, tokens, merges, scores = (metadata.get(key) for key in ("model", "tokens", "merges", "scores"))
    if kind == BYTE_LEVEL and isinstance(tokens, list) and isinstance(merges, list):
        return byte_pair_tokenizer(tokens, merges, str(metadata.get("pre", "default")))
    if kind == SENTENCEPIECE and isinstance(tokens, list) and isinstance(scores, tuple):
        return sentencepiece_tokenizer(
            tokens,
            scores,
            architecture=str(metadata.get("general.architecture")),
            unknown=token_at(tokens, metadata.get("unknown_token_id")),
            space_prefix=bool(metadata.get("add_space_prefix", True)),
            cache=cache,
        )
    if kind in (BYTE_LEVEL, SENTENCEPIECE):
        needed_key = "merges" if kind == BYTE_LEVEL else "scores"
        raise ModelError(f"{path} holds no tokens and {needed_key}: its tokenizer cannot be used")
    raise ModelError(
        f"the GGUF tokenizer {kind!r} is not known: this version reads 'gpt2' (byte-level BPE) and 'llama' "
        "(SentencePiece's BPE)"
    )


def begins_by_itself(metadata: dict[str, Any]) -> bool:
    """Return whether texts start with the first token in a file that does not say so itself."""
    return metadata.get("model") == SENTENCEPIECE or metadata.get("pre") in LLAMA_3_NAMES


def add_tokens(backend: Tokenizer, tokens: list[str], types: Sequence[int]) -> None:
    """Add the tokens that merges do not produce, in the order of their ids, so that they are found in text.

    A token that is spelled differently from its piece (Gemma's runs of spaces) is not searched for in text.
    """
    special_by_type = {UNKNOWN: True, CONTROL: True, USER_DEFINED: False}
    added_tokens = [
        AddedToken(token, special=special_by_type[kind], normalized=False)
        for token, kind in zip(tokens, types, strict=False)
        if kind in special_by_type and token and backend.token_to_id(token) is not None
    ]
    backend.add_tokens(added_tokens)


def token_at(tokens: list[str], number: Any) -> str | None:
    return tokens[number] if type(number) is int and 0 <= number < len(tokens) else None


def frame(backend: Tokenizer, first: str | None, last: str | None) -> None:
    """Set the tokens, which are in the vocabulary, that encoding with special tokens puts around a text."""
    before, after = [f"{first}:0"] if first else [], [f"{last}:0"] if last else []
    ends = dict.fromkeys(token for token in (first, last) if token)
    if ends:
        backend.post_processor = processors.TemplateProcessing(
            single=[*before, "$A:0", *after],
            pair=[*before, "$A:0", "$B:1", *after],
            special_tokens=[(token, backend.token_to_id(token)) for token in ends],
        )
