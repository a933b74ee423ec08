# SPDX-License-Identifier: Apache-2.0
"""Logprobs in the format that OpenAI's clients expect. Pure.

On the wire a token's logprobs are entries [id, logprob, rank]: the token's own first, then the top ones, which may
repeat it. JSON has no infinity, so values below LOWEST, minus infinity too, are shown as LOWEST.
"""

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from pontil.runtime.tokenizer.tokenizer import Tokenizer

LOWEST = -9999.0
REPLACEMENT = "\ufffd"

Entry = Sequence[int | float]
Entries = Sequence[Entry]


def shown(logprob: float) -> float:
    """Return a number that JSON can hold; NaN counts as impossible."""
    return max(float(logprob), LOWEST) if logprob == logprob else LOWEST


def id_name(token_id: int) -> str:
    """Return what stands for a token whose text is not wanted, as in vLLM."""
    return f"token_id:{token_id}"


def chat_logprobs(tokens: Iterable[Entries], tokenizer: Tokenizer, as_ids: bool = False) -> dict[str, Any]:
    """Return a chat choice's `logprobs`, for a whole response or a chunk."""
    return {"content": [chat_token(entries, tokenizer, as_ids) for entries in tokens]}


def chat_token(entries: Entries, tokenizer: Tokenizer, as_ids: bool = False) -> dict[str, Any]:
    token_entry, *alternatives = (chat_entry(entry, tokenizer, as_ids) for entry in entries)
    return token_entry | {"top_logprobs": alternatives}


def chat_entry(entry: Entry, tokenizer: Tokenizer, as_ids: bool = False) -> dict[str, Any]:
    """Return one token's entry. Where its bytes are a part of a character, `token` holds U+FFFD and `bytes` the actual
    bytes."""
    raw = tokenizer.token_bytes(int(entry[0]))
    token = id_name(int(entry[0])) if as_ids else raw.decode("utf-8", "replace")
    return {"token": token, "logprob": shown(entry[1]), "bytes": list(raw)}


def completion_token(token_id: int, tokenizer: Tokenizer, as_ids: bool = False) -> str:
    """Return a token's text; bytes that are not UTF-8 by themselves are written as `bytes:` and hexadecimal."""
    if as_ids:
        return id_name(token_id)
    raw = tokenizer.token_bytes(token_id)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def completion_top(entries: Entries, tokenizer: Tokenizer, as_ids: bool = False) -> dict[str, float]:
    """Return the top tokens, plus the token itself if it is not among them. Of ids with the same text the most likely
    one counts."""
    top: dict[str, float] = {}
    token_entry, *alternatives = entries
    for entry in (*alternatives, token_entry):
        top.setdefault(completion_token(int(entry[0]), tokenizer, as_ids), shown(entry[1]))
    return top


class CompletionLogprobs:
    """One completion choice's `logprobs`, built piece by piece in the order of its tokens.

    `text_offset` counts characters of the delivered text: a token that continues a character has that character's
    offset, and a hidden token has the offset of the next text.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True, as_ids: bool = False) -> None:
        self.tokenizer, self.as_ids = tokenizer, as_ids
        self.skipped: frozenset[int] = tokenizer.special_ids if skip_special_tokens else frozenset()
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.characters = 0

    def echo(self, ids: Sequence[int], prompt: Sequence[Entries | None], hidden: int = 0) -> dict[str, Any]:
        """Return the prompt's piece, for a text that begins with all of its tokens but the first `hidden` ones. The
        first token has no logprob."""
        piece = self.piece(ids, prompt, [index < hidden for index in range(len(ids))])
        self.characters += len(self.decoder.decode(b"", final=True))
        self.decoder.reset()
        return piece

    def take(self, tokens: Sequence[Entries]) -> dict[str, Any]:
        """Return the piece of these output tokens."""
        ids = [int(entries[0][0]) for entries in tokens]
        return self.piece(ids, tokens, [token_id in self.skipped for token_id in ids])

    def piece(self, ids: Sequence[int], tokens: Sequence[Entries | None], hidden: Sequence[bool]) -> dict[str, Any]:
        return {
            "tokens": [completion_token(token_id, self.tokenizer, self.as_ids) for token_id in ids],
            "token_logprobs": [None if entries is None else shown(entries[0][1]) for entries in tokens],
            "top_logprobs": [
                None if entries is None else completion_top(entries, self.tokenizer, self.as_ids) for entries in tokens
            ],
            "text_offset": [self.offset(*pair) for pair in zip(ids, hidden, strict=True)],
        }

    def offset(self, token_id: int, hidden: bool) -> int:
        """Return the offset of this token's text. Constant work per token."""
        raw = b"" if hidden else self.tokenizer.token_bytes(token_id)
        open_bytes = self.decoder.getstate()[0]
        first = self.decoder.decode(raw[:1])
        # A first byte that does not continue the open character replaces that character by U+FFFD.
        broken = bool(open_bytes) and first.startswith(REPLACEMENT) and open_bytes + raw[:1] != REPLACEMENT.encode()
        start = self.characters + broken
        self.characters += len(first) + len(self.decoder.decode(raw[1:]))
        return start


def joined(pieces: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Merge pieces of one completion choice."""
    whole: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for piece in pieces:
        for name, values in whole.items():
            values += piece[name]
    return whole


def prompt_logprobs(tokens: Iterable[Entries | None], tokenizer: Tokenizer) -> list[dict[str, Any] | None]:
    """Return `prompt_logprobs` in vLLM's format: for each prompt token but the first, an object from ids to
    logprobs."""
    return [None if entries is None else prompt_token(entries, tokenizer) for entries in tokens]


def prompt_token(entries: Entries, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        str(token): {
            "logprob": shown(logprob),
            "rank": rank,
            "decoded_token": tokenizer.token_bytes(int(token)).decode("utf-8", "replace"),
        }
        for token, logprob, rank in entries
    }
