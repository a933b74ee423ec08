# SPDX-License-Identifier: Apache-2.0
"""The tiers below the KV cache of each worker, as a flag or a file names them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pontil.runtime.config.readers import size

MEMORY, DISK = "memory", "disk"
FORMS = "must be tiers like memory:8GiB,disk:/var/cache/pontil:64GiB"


@dataclass(frozen=True, slots=True)
class TierItem:
    """One tier of each worker, of so many bytes. One on a disk has its path, which is absolute."""

    kind: str
    size: int
    path: str | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.kind, self.path, self.size) if part is not None)


def kv_tiers(value: Any) -> tuple[TierItem, ...]:
    """Parse at most one tier in memory and one on a disk, with commas between them. A comma in a path is not possible.
    Raises ValueError with words that follow a flag's name."""
    texts = value if isinstance(value, list) else str(value).split(",")
    tiers = tuple(tier(str(text).strip()) for text in texts)
    if len({item.kind for item in tiers}) < len(tiers):
        raise ValueError("may name one tier in memory and one on a disk")
    return tiers


def tier(text: str) -> TierItem:
    kind, _, path_and_amount = text.partition(":")
    path, _, amount = path_and_amount.rpartition(":")
    if kind == MEMORY and not path:
        return TierItem(MEMORY, amount_of(amount))
    if kind == DISK and path.startswith("/") and path.isprintable():
        return TierItem(DISK, amount_of(amount), path)
    raise ValueError(FORMS)


def amount_of(text: str) -> int:
    try:
        return size(text)
    except ValueError as error:
        raise ValueError(f"{FORMS}, and each size {error}") from None


def bytes_of(tiers: Sequence[TierItem], kind: str) -> int:
    return sum(item.size for item in tiers if item.kind == kind)


def disk_path(tiers: Sequence[TierItem]) -> str | None:
    return next((item.path for item in tiers if item.kind == DISK), None)
