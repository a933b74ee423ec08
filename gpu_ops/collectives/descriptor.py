# SPDX-License-Identifier: Apache-2.0
"""Checked reading of the descriptor by which a rank joins the collectives. It came in a message: any field may be
missing or of another type."""

from typing import Any

from pontil.gpu_ops.collectives.communicator import CollectiveError


def whole(descriptor: dict[str, Any], name: str, most: int) -> int:
    """Return a field that is a whole number from 0 to `most`."""
    value = descriptor.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise unusable(name)
    return value


def positive(descriptor: dict[str, Any], name: str) -> float:
    """Return a field that is a number above 0, at most a day's seconds."""
    value = descriptor.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 86400:
        raise unusable(name)
    return float(value)


def text(descriptor: dict[str, Any], name: str) -> str:
    value = descriptor.get(name)
    if not isinstance(value, str) or not value or len(value) > 4096:
        raise unusable(name)
    return value


def secret(descriptor: dict[str, Any], name: str, length: int) -> bytes:
    """Return a field that is `length` bytes in hexadecimal."""
    try:
        field_bytes = bytes.fromhex(text(descriptor, name))
    except ValueError:
        field_bytes = b""
    if len(field_bytes) != length:
        raise unusable(name)
    return field_bytes


def unusable(name: str) -> CollectiveError:
    return CollectiveError(f"the driver's descriptor of the collectives has no usable {name!r}")
