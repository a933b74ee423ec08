# SPDX-License-Identifier: Apache-2.0
"""The scheduler's view of prompts that another worker computes."""

from typing import Protocol


class RemotePrefill(Protocol):
    """One prompt that another worker will compute for a sequence that waits for room here. Unless it `draws_first`
    the other worker draws its first tokens too; else the last position is computed here."""

    @property
    def draws_first(self) -> bool: ...

    @property
    def is_ready(self) -> bool:
        """Return whether the other worker can be asked. While it cannot, only this sequence waits."""

    def begin(self) -> None:
        """Start the computation: the sequence has its seats and blocks. Called in the middle of an admission, so it
        must not call the scheduler."""


class NoHandshake:
    """A remote prefill that needs no message to another worker."""

    is_ready = True
    draws_first = False

    def begin(self) -> None:
        """Do nothing: the caller that parked the sequence knows already."""
