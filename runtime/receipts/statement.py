# SPDX-License-Identifier: Apache-2.0
"""The statement of a receipt, and its encodings.

What is signed is the statement as JSON in one form: keys in order, no spaces, ASCII alone. Fractions, and numbers that
need more than 53 bits, are strings, so that whatever JSON library a receipt passes through it stays the same. Lists of
ids stand beside the statement, which has their digests: what is signed is short however long they are.

Every field is known and checked. A receipt with another one, or with the same value written otherwise, is none.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pontil.runtime.errors import MalformedFrame, PontilError
from pontil.runtime.receipts.chain import TOP_LOGITS
from pontil.runtime.sampling_params import STATED, SamplingParams

VERSION = 1
# In front of what is signed, so that no signature of something else is one of a receipt.
DOMAIN = b"pontil receipt 1\n"
MOST_TEXT = 1 << 20
MOST_IDS = 1 << 24
MOST_ID = 1 << 31
# Parameters of which no token depends.
UNSTATED = frozenset({"logprobs", "prompt_logprobs", "logprob_token_ids", "hide_end_token", "top_logits"})
# Fields of a statement, with the type of each; a `str | None` may be null.
TEXTS = (
    "id",
    "request",
    "model",
    "model_fingerprint",
    "tokenizer",
    "kernels",
    "dtype",
    "kv_cache_dtype",
    "version",
    "finish_reason",
    "prompt_sha256",
    "tokens_sha256",
    "chain",
)
COUNTS = ("choice", "top_logits", "prompt_tokens", "completion_tokens", "cached_tokens")
FIELDS = frozenset({"receipt", "revision", "parameters", *TEXTS, *COUNTS})
# The digest of the adapter, in a statement about an answer that was made with one.
ADAPTER = "adapter"
# The recordings and images that stand in the prompt, and what encoded them, in a statement about an answer to any.
MEDIA, ENCODER = "media", "encoder"
MEDIUM_COUNTS = ("rows", "bytes", "lines", "columns", "place")
MEDIUM_FIELDS = frozenset({"kind", "digest", *MEDIUM_COUNTS})
ENCODER_FIELDS = frozenset({"fingerprint", "dtype", "kernels"})
DIGESTS = ("prompt_sha256", "tokens_sha256", "chain", "tokenizer")
BESIDE = frozenset({"statement", "prompt", "tokens", "public_key", "signature"})


class ReceiptError(PontilError):
    """The reason why something is no receipt, or one that does not hold."""


class NoReceipt(ReceiptError):
    """The lack of a receipt, or of what is needed to check one."""


def canonical(statement: Mapping[str, Any]) -> bytes:
    """Return the bytes of a statement that are signed, but for DOMAIN."""
    return json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def ids_digest(ids: Sequence[int]) -> str:
    """Return SHA-256 over ids, each of four bytes, little-endian."""
    numbers = array("I", ids)
    assert numbers.itemsize == 4, "C's unsigned int has four bytes wherever Python runs"
    return hashlib.sha256(numbers.tobytes()).hexdigest()


def stated_parameters(params: SamplingParams) -> dict[str, Any]:
    """Return the parameters of which tokens depend, as a statement has them: those that are not as by default."""
    return {
        name: written(name, getattr(params, name))
        for name, field in STATED.items()
        if name not in UNSTATED and (name in ("max_tokens", "seed") or getattr(params, name) != field.default)
    }


def written(name: str, value: Any) -> Any:
    if name == "seed":
        return str(value)
    if name == "logit_bias":
        return [[token, repr(float(bias))] for token, bias in value]
    return repr(float(value)) if STATED[name].type == "float" else list(value) if isinstance(value, tuple) else value


def read_parameters(stated: Mapping[str, Any], top_logits: int) -> SamplingParams:
    """Return the parameters that a statement has. Raises ReceiptError for one that is written otherwise."""
    values: dict[str, Any] = {}
    try:
        for name, value in stated.items():
            kind = STATED[name].type
            if name == "seed" or kind == "float":
                values[name] = int(value) if name == "seed" else float(value)
            elif name == "logit_bias":
                values[name] = [(token, float(bias)) for token, bias in value]
            else:
                values[name] = value
        params = SamplingParams.from_wire(values | {"top_logits": top_logits})
    except (KeyError, TypeError, ValueError, OverflowError, MalformedFrame):
        raise ReceiptError(
            "the receipt's parameters cannot be read: it was changed, or is of another version"
        ) from None
    if stated_parameters(params) != stated:
        raise ReceiptError("the receipt's parameters are not written as a receipt writes them: it was changed")
    return params


@dataclass(frozen=True, slots=True)
class Receipt:
    """A statement with its signature by `public_key`, and the ids of prompt and answer; the `prompt` may be left out,
    where its digest is to be enough."""

    statement: dict[str, Any]
    tokens: list[int]
    public_key: bytes
    signature: bytes
    prompt: list[int] | None = None

    @property
    def signed(self) -> bytes:
        """The bytes that the signature is of."""
        return DOMAIN + canonical(self.statement)

    @property
    def adapter(self) -> str:
        """The digest of the adapter that the answer was made with; empty: with none."""
        return str(self.statement.get(ADAPTER, ""))

    @property
    def media(self) -> Sequence[Mapping[str, Any]]:
        """The recordings and images in the prompt, in its order."""
        media: Sequence[Mapping[str, Any]] = self.statement.get(MEDIA, ())
        return media

    @property
    def params(self) -> SamplingParams:
        return read_parameters(self.statement["parameters"], self.statement["top_logits"])

    def to_json(self) -> dict[str, Any]:
        prompt = {} if self.prompt is None else {"prompt": self.prompt}
        keys = {"public_key": self.public_key.hex(), "signature": self.signature.hex()}
        return {"statement": self.statement} | prompt | {"tokens": self.tokens} | keys

    @classmethod
    def from_json(cls, data: Any) -> Receipt:
        """Return a receipt whose parts fit together; its signature is still to be checked. Raises ReceiptError."""
        if not isinstance(data, dict) or not isinstance(data.get("statement"), dict):
            raise NoReceipt("it has no receipt: ask for one with the header `pontil-receipt: 1`")
        if data["statement"].get("receipt") != VERSION:
            raise NoReceipt(f"its receipt is not of version {VERSION}, the one known here: use a newer pontil")
        check_fields(data, BESIDE - {"prompt"}, BESIDE, "the receipt")
        check_statement(data["statement"])
        receipt = cls(
            data["statement"],
            read_ids(data, "tokens"),
            read_hex(data, "public_key", 32),
            read_hex(data, "signature", 64),
            read_ids(data, "prompt") if "prompt" in data else None,
        )
        receipt.check_ids("tokens", receipt.tokens, "completion_tokens")
        if receipt.prompt is not None:
            receipt.check_ids("prompt", receipt.prompt, "prompt_tokens")
        receipt.params  # noqa: B018  # Raises for what cannot be read.
        return receipt

    def check_ids(self, name: str, ids: Sequence[int], count: str) -> None:
        """Raise ReceiptError for ids that the statement is not about."""
        if len(ids) != self.statement[count] or ids_digest(ids) != self.statement[f"{name}_sha256"]:
            raise ReceiptError(f"the ids of `{name}` are not those that the receipt states: they were changed")


def check_fields(data: Mapping[str, Any], needed: frozenset[str], known: frozenset[str], what: str) -> None:
    for name in sorted(needed - data.keys()):
        raise ReceiptError(f"{what} lacks `{name}`: it was changed, or cut")
    for name in sorted(data.keys() - known):
        raise ReceiptError(f"{what} has a field `{name[:60]}` that nobody signs: it was changed")


def check_statement(statement: Mapping[str, Any]) -> None:
    needed = FIELDS | ({MEDIA, ENCODER} if {MEDIA, ENCODER} & statement.keys() else set())
    check_fields(statement, needed, needed | {ADAPTER}, "the statement")
    texts = all(type(statement[name]) is str and len(statement[name]) <= MOST_TEXT for name in TEXTS)
    counts = all(type(statement[name]) is int and 0 <= statement[name] < MOST_ID for name in COUNTS)
    digests = texts and all(is_hex(statement[name], 32) for name in (*DIGESTS, *({ADAPTER} & statement.keys())))
    revision = statement["revision"] is None or type(statement["revision"]) is str
    if not (digests and counts and revision and type(statement["receipt"]) is int):
        raise ReceiptError("a field of the statement has a value that no receipt has: it was changed")
    if statement["top_logits"] not in (0, TOP_LOGITS) or not isinstance(statement["parameters"], dict):
        raise ReceiptError("a field of the statement has a value that no receipt has: it was changed")
    if MEDIA in statement and not (is_encoder(statement[ENCODER]) and are_media(statement[MEDIA])):
        raise ReceiptError("a recording or image of the statement is none: it was changed")


def is_encoder(value: Any) -> bool:
    named = isinstance(value, dict) and value.keys() == ENCODER_FIELDS
    return named and all(type(text) is str and len(text) <= MOST_TEXT for text in value.values())


def are_media(value: Any) -> bool:
    """Return whether these can be the media of a prompt, which has at least one."""
    return type(value) is list and bool(value) and all(map(is_medium, value))


def is_medium(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != MEDIUM_FIELDS:
        return False
    counts = all(type(value[name]) is int and 0 <= value[name] < MOST_ID for name in MEDIUM_COUNTS)
    return counts and type(value["kind"]) is str and is_hex(value["digest"], 32)


def read_ids(data: Mapping[str, Any], name: str) -> list[int]:
    ids = data[name]
    if type(ids) is not list or len(ids) > MOST_IDS or not all(type(one) is int and 0 <= one < MOST_ID for one in ids):
        raise ReceiptError(f"`{name}` is no list of token ids: it was changed")
    return ids


def read_hex(data: Mapping[str, Any], name: str, size: int) -> bytes:
    if not is_hex(data[name], size):
        raise ReceiptError(f"`{name}` has no {size} bytes in hexadecimal: it was changed")
    return bytes.fromhex(data[name])


def is_hex(value: Any, size: int) -> bool:
    """Return whether this is so many bytes in hexadecimal, written in the one way in which receipts do."""
    return type(value) is str and len(value) == 2 * size and all(letter in "0123456789abcdef" for letter in value)
