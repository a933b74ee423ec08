# SPDX-License-Identifier: Apache-2.0
"""Byte-level BPE from the tokens and merges of a GGUF file, with the patterns by which it splits text first."""

from __future__ import annotations

from itertools import chain

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from pontil.runtime.errors import ModelError

# Patterns that split text before merging, as the models' own tokenizer files have them.
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_2 = LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
CAPITAL, SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
WORDS = (rf"[^\r\n\p{{L}}\p{{N}}]?{CAPITAL}*{SMALL}+", rf"[^\r\n\p{{L}}\p{{N}}]?{CAPITAL}+{SMALL}*")
REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = rf"{WORDS[0]}|{WORDS[1]}|\p{{N}}|{REST}"
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT_4O = rf"{WORDS[0]}{SUFFIX}|{WORDS[1]}{SUFFIX}|\p{{N}}{{1,3}}|{REST}"
# Patterns that are applied one after the other.
IDEOGRAPHS = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
DEEPSEEK_3 = (
    r"\p{N}{1,3}",
    IDEOGRAPHS,
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}")

GPT_2_NAMES = ("default", "gpt-2")
DIGIT_NAMES = ("smollm", "starcoder", "refact", "command-r")
LLAMA_3_NAMES = ("llama-bpe", "llama3", "llama-v3", "falcon3", "lfm2", "midm-2.0", "pixtral")
QWEN_2_NAMES = ("qwen2", "deepseek-r1-qwen", "megrez")
TEKKEN_NAMES = ("tekken",)
GPT_4O_NAMES = ("gpt-4o", "llama4")
GLM_4_NAMES = ("glm4", "chatglm-bpe")
DEEPSEEK_3_NAMES, DEEPSEEK_CODER_NAMES = ("deepseek-v3", "hunyuan-dense"), ("deepseek-coder",)
PATTERNS = (
    (LLAMA_3_NAMES, (LLAMA_3,)),
    (QWEN_2_NAMES, (QWEN_2,)),
    (TEKKEN_NAMES, (TEKKEN,)),
    (GPT_4O_NAMES, (GPT_4O,)),
    (GLM_4_NAMES, (LLAMA_3,)),
    (DEEPSEEK_3_NAMES, DEEPSEEK_3),
    (DEEPSEEK_CODER_NAMES, DEEPSEEK_CODER),
)
WHOLE_WORD_NAMES = LLAMA_3_NAMES + TEKKEN_NAMES
"""Splitters for which a word that is a token becomes that token, without regard to merges."""


def byte_pair_tokenizer(tokens: list[str], merges: list[str], pre: str) -> Tokenizer:
    """Build the tokenizer. Raises ModelError if merges do not fit the tokens, and for an unknown splitter."""
    pairs = [merge.partition(" ")[::2] for merge in merges]
    ids = {token: number for number, token in enumerate(tokens)}
    if not all(map(ids.__contains__, chain(chain.from_iterable(pairs), map("".join, pairs)))):
        raise ModelError("the GGUF file's merges do not fit its tokens: fetch it again")
    backend = Tokenizer(models.BPE(vocab=ids, merges=pairs, ignore_merges=pre in WHOLE_WORD_NAMES))
    backend.pre_tokenizer = splitter(pre)
    backend.decoder = decoders.ByteLevel()
    if pre in QWEN_2_NAMES:
        backend.normalizer = normalizers.NFC()
    return backend


def splitter(pre: str) -> pre_tokenizers.PreTokenizer:
    """The splitter that `tokenizer.ggml.pre` names. Byte-level encoding comes last in each."""
    if pre in GPT_2_NAMES:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in DIGIT_NAMES:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    for names, patterns in PATTERNS:
        if pre in names:
            splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
            return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    known_names = GPT_2_NAMES + DIGIT_NAMES + tuple(name for names, _ in PATTERNS for name in names)
    raise ModelError(
        f"the GGUF tokenizer splits text as {pre!r}, which is not known: known are {', '.join(known_names)}"
    )
