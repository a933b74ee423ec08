# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a GGUF file: byte-level BPE or SentencePiece's, with the special tokens by role."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.gguf.header import read_header
from pontil.runtime.tokenizer.byte_level_bpe import LLAMA_3_NAMES, byte_pair_tokenizer
from pontil.runtime.tokenizer.merge_cache import MergeCache
from pontil.runtime.tokenizer.sentencepiece_bpe import sentencepiece_tokenizer, spelled
from pontil.runtime.tokenizer.vocabulary import (
    MESSAGE_MARKERS,
    Vocabulary,
    byte_fallback_bytes,
    byte_level_decoder,
    bytes_of,
    special_of,
)

PREFIX, KEYS = "tokenizer.", "tokenizer.ggml."
# The arrays of which the table of tokens is made.
TABLES = (f"{KEYS}tokens", f"{KEYS}token_type")
BYTE_LEVEL, SENTENCEPIECE = "gpt2", "llama"
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
ROLE_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def read_gguf_vocabulary(path: Path, cache: MergeCache, encodes: bool) -> Vocabulary:
    """Read the tokenizer, with what encodes texts if it `encodes`; else that is made of the file when it is first
    asked for. Raises ModelError for a damaged file, and for a tokenizer of neither family or with an unknown
    splitter."""
    metadata = read_metadata(path, (PREFIX,) if encodes else TABLES)
    tokens, is_byte_level = tokens_of(path, metadata), metadata.get("model") == BYTE_LEVEL
    ids = {piece: number for number, piece in enumerate(tokens if is_byte_level else spelled(tokens))}
    added_tokens = {ids[token.content]: token for token in added(metadata, ids)}
    backend = read_backend(path, metadata, cache) if encodes else None
    return Vocabulary(
        make_backend=partial(backend_of, path, cache) if backend is None else lambda: backend,
        token_bytes=bytes_of(ids, added_tokens, byte_level_decoder() if is_byte_level else byte_fallback_bytes),
        added_tokens=added_tokens,
        special_ids=special_of(added_tokens, MESSAGE_MARKERS[0] in ids),
        roles=roles_of(metadata),
        end_ids=tuple(dict.fromkeys(ids[token] for key in END_KEYS if (token := token_at(metadata, key)) in ids)),
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def read_metadata(path: Path, whole: tuple[str, ...]) -> dict[str, Any]:
    header = read_header(path, whole=whole)
    return {key.removeprefix(KEYS): value for key, value in {**header.metadata, **header.arrays}.items()}


def tokens_of(path: Path, metadata: dict[str, Any]) -> list[str]:
    """Return the tokens. Raises ModelError for a tokenizer that is not known, or lacks them."""
    kind, tokens = metadata.get("model"), metadata.get("tokens")
    if kind not in (BYTE_LEVEL, SENTENCEPIECE):
        raise ModelError(
            f"the GGUF tokenizer {kind!r} is not known: this version reads 'gpt2' (byte-level BPE) and 'llama' "
            "(SentencePiece's BPE)"
        )
    if not isinstance(tokens, list):
        raise lacking(path, kind)
    return tokens


def lacking(path: Path, kind: str) -> ModelError:
    needed_key = "merges" if kind == BYTE_LEVEL else "scores"
    return ModelError(f"{path} holds no tokens and {needed_key}: its tokenizer cannot be used")


def backend_of(path: Path, cache: MergeCache) -> Tokenizer:
    return read_backend(path, read_metadata(path, (PREFIX,)), cache)


def read_backend(path: Path, metadata: dict[str, Any], cache: MergeCache) -> Tokenizer:
    backend = bare_backend(path, metadata, cache)
    backend.add_tokens(added(metadata, backend.get_vocab(with_added_tokens=False)))
    roles = roles_of(metadata)
    first = roles.get("bos_token") if metadata.get("add_bos_token", begins_by_itself(metadata)) else None
    frame(backend, first, roles.get("eos_token") if metadata.get("add_eos_token") else None)
    return backend


def bare_backend(path: Path, metadata: dict[str, Any], cache: MergeCache) -> Tokenizer:
    """Build what encodes texts, without added tokens."""
    tokens, merges, scores = tokens_of(path, metadata), metadata.get("merges"), metadata.get("scores")
    if metadata["model"] == BYTE_LEVEL and isinstance(merges, list):
        return byte_pair_tokenizer(tokens, merges, str(metadata.get("pre", "default")))
    if metadata["model"] == SENTENCEPIECE and isinstance(scores, tuple):
        return sentencepiece_tokenizer(
            tokens,
            scores,
            architecture=str(metadata.get("general.architecture")),
            unknown=token_at(metadata, "unknown_token_id"),
            space_prefix=bool(metadata.get("add_space_prefix", True)),
            cache=cache,
        )
    raise lacking(path, metadata["model"])


def begins_by_itself(metadata: dict[str, Any]) -> bool:
    """Return whether texts start with the first token in a file that does not say so itself."""
    return metadata.get("model") == SENTENCEPIECE or metadata.get("pre") in LLAMA_3_NAMES


def added(metadata: dict[str, Any], ids: Mapping[str, int]) -> list[AddedToken]:
    """Return the tokens that merges do not produce, in the order of their ids, so that they are found in text.

    A token that is spelled differently from its piece (Gemma's runs of spaces) is not searched for in text.
    """
    special_by_type = {UNKNOWN: True, CONTROL: True, USER_DEFINED: False}
    return [
        AddedToken(token, special=special_by_type[kind], normalized=False)
        for token, kind in zip(metadata["tokens"], metadata.get("token_type") or (), strict=False)
        if kind in special_by_type and token and token in ids
    ]


def roles_of(metadata: dict[str, Any]) -> dict[str, str]:
    return {role: token for role, key in ROLE_KEYS.items() if (token := token_at(metadata, key)) is not None}


def token_at(metadata: dict[str, Any], key: str) -> str | None:
    """Return the token whose id the file states under a key, if it does."""
    tokens, number = metadata["tokens"], metadata.get(key)
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
