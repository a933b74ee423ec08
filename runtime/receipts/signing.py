# SPDX-License-Identifier: Apache-2.0
"""Signatures of receipts and records: Ed25519 (RFC 8032), by the library that the proxy's links use too."""

from collections.abc import Mapping, Sequence
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from pontil.runtime.receipts import record
from pontil.runtime.receipts.answer_file import AnswerFile
from pontil.runtime.receipts.record import Record, RecordedRequest, RecordError
from pontil.runtime.receipts.statement import DOMAIN, Receipt, ReceiptError, canonical, read_hex


class ReceiptSigner:
    """A key that signs receipts, made of its 32 secret bytes."""

    def __init__(self, seed: bytes) -> None:
        self.key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public_key = self.key.public_key().public_bytes_raw()

    def receipt(self, statement: Mapping[str, Any], tokens: Sequence[int], prompt: Sequence[int] | None) -> Receipt:
        signature = self.key.sign(DOMAIN + canonical(statement))
        shown = None if prompt is None else list(prompt)
        return Receipt(dict(statement), list(tokens), self.public_key, signature, shown)

    def record_line(self, request: RecordedRequest, *, redacted: bool) -> bytes:
        """Return the line of one request. Raises ValueError for a body that JSON cannot represent."""
        told = request.to_json(redacted=redacted) | {"public_key": self.public_key.hex()}
        signature = self.key.sign(record.DOMAIN + record.line_of(told))
        return record.line_of(told | {"signature": signature.hex()})


def check_signature(receipt: Receipt, trusted: bytes | None = None) -> None:
    """Raise ReceiptError for a receipt that its key has not signed, or that is signed by another than the `trusted`
    one."""
    if trusted is not None and receipt.public_key != trusted:
        raise ReceiptError(f"it is signed by {receipt.public_key.hex()}, and not by the key that was given")
    if not is_signed(receipt.signed, receipt.signature, receipt.public_key):
        raise ReceiptError("its signature is not of this statement: one of the two was changed")


def is_signed(signed: bytes, signature: bytes, public_key: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, signed)
    except (InvalidSignature, ValueError):
        return False
    return True


def check(file: AnswerFile, trusted: bytes | None = None) -> None:
    """Check all of a file that needs no model. Raises ReceiptError."""
    for receipt in file.receipts:
        check_signature(receipt, trusted)
    file.check_answer()


def read_record(data: bytes, trusted: bytes | None = None) -> Record:
    """Return the record in a file. Raises RecordError for one that was cut or changed, or that is signed by more than
    one key, or by another than the `trusted` one."""
    requests: list[RecordedRequest] = []
    signer = trusted
    for line in record.lines_of(data):
        try:
            key, signature = read_hex(line, "public_key", 32), read_hex(line, "signature", 64)
        except ReceiptError as error:
            raise RecordError(str(error)) from None
        if signer is not None and key != signer:
            raise RecordError(f"a request of it is signed by {key.hex()}, and not by {signer.hex()}")
        signer = key
        if not is_signed(record.signed_part(line), signature, key):
            raise RecordError("the signature of a request is not of it: one of the two was changed")
        requests.append(RecordedRequest.from_json(line))
    if len({request.number for request in requests}) != len(requests):
        raise RecordError("it has a request twice: it was changed")
    return Record(requests, signer)
