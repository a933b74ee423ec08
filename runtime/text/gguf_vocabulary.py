# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a GGUF file, made of its tokens and merges: byte-level BPE."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from pontil.runtime.errors import ModelError
from pontil.runtime.text.gguf_metadata import tokenizer_metadata
from pontil.runtime.text.vocabulary import Vocabulary, bytes_of_all, ids_of, special_ids

KEYS = "tokenizer.ggml."
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")

# How text is split before merging: patterns as the models' own tokenizer files have them.
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_2 = LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT_2_NAMES = ("default", "gpt-2")
DIGIT_NAMES = ("smollm", "starcoder", "refact", "command-r")
LLAMA_3_NAMES = ("llama-bpe", "llama3", "llama-v3")
QWEN_2_NAMES = ("qwen2", "deepseek-r1-qwen")


def read_gguf_vocabulary(path: Path) -> Vocabulary:
    """Raises ModelError for a damaged file, and for a tokenizer that is not byte-level BPE or splits text in a way
    that is not known."""
    metadata = {key.removeprefix(KEYS): value for key, value in tokenizer_metadata(path).items()}
    kind, tokens, merges = (metadata.get(key) for key in ("model", "tokens", "merges"))
    if kind != "gpt2":
        raise ModelError(f"the GGUF tokenizer {kind!r} is not known: this version reads 'gpt2' (byte-level BPE) only")
    if not isinstance(tokens, list) or not isinstance(merges, list):
        raise ModelError(f"{path} holds no tokens and merges: its tokenizer cannot be used")
    backend = byte_pair_tokenizer(tokens, merges, str(metadata.get("pre", "default")))
    add_tokens(backend, tokens, metadata.get("token_type", ()))
    bos, eos = (token_at(tokens, metadata.get(key)) for key in ("bos_token_id", "eos_token_id"))
    if bos is not None and metadata.get("add_bos_token", metadata.get("pre") in LLAMA_3_NAMES):
        start_with(backend, bos)
    return Vocabulary(
        backend=backend,
        token_bytes=bytes_of_all(backend),
        special_ids=special_ids(backend),
        bos_token=bos,
        eos_token=eos,
        end_ids=ids_of(backend, [token_at(tokens, metadata.get(key)) for key in END_KEYS]),
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def byte_pair_tokenizer(tokens: list[str], merges: list[str], pre: str) -> Tokenizer:
    pairs = [(first, second) for first, _, second in (merge.partition(" ") for merge in merges)]
    ids = {token: number for number, token in enumerate(tokens)}
    if not all(part in ids for first, second in pairs for part in (first, second, first + second)):
        raise ModelError("the GGUF file's merges do not fit its tokens: fetch it again")
    backend = Tokenizer(models.BPE(vocab=ids, merges=pairs, ignore_merges=pre in LLAMA_3_NAMES))
    backend.pre_tokenizer = splitter(pre)
    backend.decoder = decoders.ByteLevel()
    if pre in QWEN_2_NAMES:
        backend.normalizer = normalizers.NFC()
    return backend


def splitter(pre: str) -> pre_tokenizers.PreTokenizer:
    """What `tokenizer.ggml.pre` names. Byte-level encoding comes last in each."""
    if pre in GPT_2_NAMES:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in DIGIT_NAMES:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    for names, pattern in ((LLAMA_3_NAMES, LLAMA_3), (QWEN_2_NAMES, QWEN_2)):
        if pre in names:
            split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
            return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    known = GPT_2_NAMES + DIGIT_NAMES + LLAMA_3_NAMES + QWEN_2_NAMES
    raise ModelError(f"the GGUF tokenizer splits text as {pre!r}, which is not known: known are {', '.join(known)}")


def add_tokens(backend: Tokenizer, tokens: list[str], types: Sequence[int]) -> None:
    """Make the tokens that are not made by merges findable in text, in the order of their ids."""
    wanted = {UNKNOWN: True, CONTROL: True, USER_DEFINED: False}
    added = [(token, wanted[kind]) for token, kind in zip(tokens, types, strict=False) if kind in wanted and token]
    backend.add_tokens([AddedToken(token, special=special, normalized=False) for token, special in added])


def token_at(tokens: list[str], number: Any) -> str | None:
    return tokens[number] if type(number) is int and 0 <= number < len(tokens) else None


def start_with(backend: Tokenizer, bos: str) -> None:
    """Encoding with special tokens puts `bos`, which is in the vocabulary, first."""
    first, number = f"{bos}:0", backend.token_to_id(bos)
    backend.post_processor = processors.TemplateProcessing(
        single=[first, "$A:0"], pair=[first, "$A:0", "$B:1"], special_tokens=[(bos, number)]
    )
