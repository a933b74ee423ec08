# SPDX-License-Identifier: Apache-2.0
"""The adapter with which the positions of a text are computed, and the position from which on they are.

An adapter is in use from a text's first position on, unless it is activated by tokens (aLoRA: Greenewald et al., 2025):
then from the beginning of the last place in the prompt where these stand, and in a prompt without them nowhere, as PEFT
computes it. What a model generates moves no start: that is of the prompt, also where the answer is computed as one.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

ID_BYTES = array("q").itemsize


@dataclass(frozen=True, slots=True)
class Adaptation:
    """The adapter with this digest of its files, in hexadecimal, for all positions from `start` on; empty: none. Those
    before are the model's own."""

    digest: str = ""
    start: int = 0

    @classmethod
    def of(cls, digest: str, invocation: Sequence[int], prompt: Sequence[int]) -> "Adaptation":
        """Return how a prompt is computed with an adapter that these tokens activate; without any: it always is."""
        start = last_place(prompt, invocation) if invocation else 0
        return NOT_ADAPTED if start is None or not digest else cls(digest, start)

    @property
    def told(self) -> bytes:
        """Return what digests are made of that differ between adaptations."""
        return bytes.fromhex(self.digest) + self.start.to_bytes(8, "little") if self.digest else b""

    def begins_in(self, first: int, end: int) -> bool:
        """Return whether the first position with the adapter is one of [first, end)."""
        return bool(self.digest) and first <= self.start < end

    def behind(self, tokens: int) -> "Adaptation":
        """Return that of the text that is left without its first tokens."""
        return Adaptation(self.digest, max(0, self.start - tokens)) if self.digest else self

    def within(self, tokens: int) -> "Adaptation":
        """Return that of the first so many tokens alone."""
        return self if self.start < tokens else NOT_ADAPTED


NOT_ADAPTED = Adaptation()


def last_place(text: Sequence[int], tokens: Sequence[int]) -> int | None:
    """Return where the last occurrence of some tokens in a text begins; None where there is none."""
    data, wanted = array("q", text).tobytes(), array("q", tokens).tobytes()
    found = data.rfind(wanted)
    while found > 0 and found % ID_BYTES:
        # Bytes of two ids that look like those of one.
        found = data.rfind(wanted, 0, found + len(wanted) - 1)
    return found // ID_BYTES if found >= 0 else None
