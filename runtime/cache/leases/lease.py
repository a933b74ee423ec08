# SPDX-License-Identifier: Apache-2.0
"""A lease on a prefix, and what of its byte-seconds was kept. Pure: no clock, no I/O."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from pontil.runtime.cache.adaptation import NOT_ADAPTED, Adaptation
from pontil.runtime.cache.prefix import Key

# The states of a lease. One that is HELD may be at another worker a moment later; the others are its end.
HELD, EXPIRED, RELEASED, REFUNDED = "held", "expired", "released", "refunded"


@dataclass(frozen=True, slots=True)
class ByteSeconds:
    """Amounts that were `granted`, and what became of them: `held` for so long, `released` by their client, `refunded`
    since they could not be kept. Whole seconds count: one that has begun is held when it is over. Of what is over,
    granted = held + released + refunded."""

    granted: int = 0
    held: int = 0
    released: int = 0
    refunded: int = 0

    @property
    def ahead(self) -> int:
        """The part that is still to be kept."""
        return self.granted - self.held - self.released - self.refunded

    def __add__(self, other: "ByteSeconds") -> "ByteSeconds":
        return ByteSeconds(
            self.granted + other.granted,
            self.held + other.held,
            self.released + other.released,
            self.refunded + other.refunded,
        )


@dataclass(slots=True)
class LeaseTerm:
    """The time of a lease of so many bytes: `seconds` from `began` on, in readings of a monotonic clock. It is HELD
    until it `ended`, at its own time or before, for a `reason` where that is not its client's wish."""

    size: int
    began: float
    seconds: int
    state: str = HELD
    ended: float | None = None
    reason: str | None = None

    @property
    def end(self) -> float:
        """The time until which it is promised."""
        return self.began + self.seconds

    def kept(self, now: float) -> int:
        """Return the whole seconds for which it was kept by then."""
        if self.state == EXPIRED:
            # The difference of two readings may be less than what was added to one.
            return self.seconds
        until = now if self.ended is None else self.ended
        return int(max(0.0, min(until - self.began, self.seconds)))

    def lasting(self, seconds: int, now: float) -> int:
        """Return for how many seconds in all it is to be granted to last so many from now on, at least."""
        kept = self.kept(now)
        return max(self.seconds, kept + seconds + (now - self.began > kept))

    def close(self, state: str, now: float, reason: str | None = None) -> None:
        """End it: what is left of it is released or refunded. One whose time is over has EXPIRED, however late that is
        seen."""
        if state == EXPIRED or now >= self.end:
            state, reason, now = EXPIRED, None, self.end
        self.state, self.ended, self.reason = state, now, reason

    def amounts(self, now: float) -> ByteSeconds:
        granted, held = self.size * self.seconds, self.size * self.kept(now)
        return ByteSeconds(
            granted,
            held,
            granted - held if self.state == RELEASED else 0,
            granted - held if self.state == REFUNDED else 0,
        )


# The bytes of a token id.
ID_BYTES = array("I").itemsize


@dataclass(frozen=True, slots=True)
class LeasedPrompt:
    """The prompt behind the keys of a lease, from which another worker can compute its blocks: token `ids`, one behind
    the other, the salt, and how it is computed with an adapter, with the directory of its files where it came while
    the launch runs. Without ids it is not known."""

    ids: bytes = field(default=b"", repr=False)
    salt: str = ""
    adapted: Adaptation = NOT_ADAPTED
    directory: str = ""

    @classmethod
    def of(cls, tokens: Sequence[int], salt: str, adapted: Adaptation, directory: str) -> "LeasedPrompt":
        """Return the prompt of these tokens, the first ones of one that is so computed."""
        own = adapted.within(len(tokens))
        return cls(array("I", tokens).tobytes(), salt, own, directory if own.digest else "")

    @property
    def fields(self) -> tuple[bytes, str, str]:
        """The ids, the salt and the digest, as messages have them behind each other."""
        return self.ids, self.salt, self.adapted.digest

    @property
    def tokens(self) -> list[int]:
        return array("I", self.ids).tolist()

    def has(self, tokens: int) -> bool:
        return len(self.ids) == tokens * ID_BYTES


UNKNOWN_PROMPT = LeasedPrompt()


@dataclass(slots=True)
class PrefixLease:
    """A lease of its `owner`, a name of an API key: the blocks with these `keys`, which hold so many `tokens`. What is
    said of it is billed by the `proxy`. Proxies have the `prompt` once it was `told`. It came here by so many
    `moves`."""

    id: str
    owner: str
    keys: tuple[Key, ...]
    tokens: int
    proxy: str
    term: LeaseTerm
    prompt: LeasedPrompt = UNKNOWN_PROMPT
    told: bool = False
    moves: int = 0
