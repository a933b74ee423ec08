# SPDX-License-Identifier: Apache-2.0
"""Signatures of receipts: Ed25519 (RFC 8032), by the library that the proxy's links use too."""

from collections.abc import Mapping, Sequence
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from pontil.runtime.receipts.answer_file import AnswerFile
from pontil.runtime.receipts.statement import DOMAIN, Receipt, ReceiptError, canonical


class ReceiptSigner:
    """A key that signs receipts, made of its 32 secret bytes."""

    def __init__(self, seed: bytes) -> None:
        self.key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public_key = self.key.public_key().public_bytes_raw()

    def receipt(self, statement: Mapping[str, Any], tokens: Sequence[int], prompt: Sequence[int] | None) -> Receipt:
        signature = self.key.sign(DOMAIN + canonical(statement))
        shown = None if prompt is None else list(prompt)
        return Receipt(dict(statement), list(tokens), self.public_key, signature, shown)


def check_signature(receipt: Receipt, trusted: bytes | None = None) -> None:
    """Raise ReceiptError for a receipt that its key has not signed, or that is signed by another than the `trusted`
    one."""
    if trusted is not None and receipt.public_key != trusted:
        raise ReceiptError(f"it is signed by {receipt.public_key.hex()}, and not by the key that was given")
    try:
        Ed25519PublicKey.from_public_bytes(receipt.public_key).verify(receipt.signature, receipt.signed)
    except (InvalidSignature, ValueError):
        raise ReceiptError("its signature is not of this statement: one of the two was changed") from None


def check(file: AnswerFile, trusted: bytes | None = None) -> None:
    """Check all of a file that needs no model. Raises ReceiptError."""
    for receipt in file.receipts:
        check_signature(receipt, trusted)
    file.check_answer()
