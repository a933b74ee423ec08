# SPDX-License-Identifier: Apache-2.0
"""Checked reading of a peer's pool descriptor. It came in a message: any field may be missing or of another type."""

from typing import Any

from pontil.runtime.errors import TransferError
from pontil.runtime.foundation.connectors import AUTO


def part(descriptor: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the description of one way to read the peer's pool: the descriptor itself, or its part of a composite one.
    Raise TransferError when the peer does not offer this way."""
    if descriptor.get("kind") == kind:
        return descriptor
    offer = descriptor.get(kind) if descriptor.get("kind") == AUTO else None
    if not isinstance(offer, dict):
        raise TransferError(f"the peer offers no {kind} transfer: start both workers with the same --kv-connector")
    return offer


def whole(descriptor: dict[str, Any], name: str) -> int:
    """Return a field that is a whole number, not negative, that fits a C int."""
    value = descriptor.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 31:
        raise TransferError(f"the peer's descriptor has no usable {name!r}")
    return value


def secret(descriptor: dict[str, Any], name: str, length: int) -> bytes:
    """Return a field that is `length` bytes in hexadecimal."""
    value = descriptor.get(name)
    try:
        field_bytes = bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        field_bytes = b""
    if len(field_bytes) != length:
        raise TransferError(f"the peer's descriptor has no usable {name!r}")
    return field_bytes


def num_blocks(descriptor: dict[str, Any], block_bytes: int) -> int:
    """Return how many blocks the peer's pool has. Raise TransferError when their size differs from ours."""
    if descriptor.get("block_bytes") != block_bytes:
        raise TransferError("the peer's blocks have another size than ours")
    return whole(descriptor, "blocks")
