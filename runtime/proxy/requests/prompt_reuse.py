# SPDX-License-Identifier: Apache-2.0
"""The reuse of prompts by API key: how many of their tokens were cached, and where one first differed from those before
it. Of prompts only token ids and fingerprints are kept, for a while, and no text is shown."""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# Keys whose sums are kept, the latest.
MOST_CALLERS = 1024
# Earlier prompts that are kept: of one key and salt, of all, and bytes of their ids. Of each prompt so many tokens are
# compared and kept, which takes the event loop a millisecond at most.
MOST_OF_SESSION, MOST_PROMPTS, MOST_BYTES, MOST_TOKENS = 4, 256, 16 << 20, 32_768
MOST_PARTS = 1024
# Bytes of an id, and those that are compared at once.
ID_BYTES, PIECE = 4, 4096
# The places of a first difference: no earlier prompt is known; all of one comes again; of a chat its tools, a message
# of this role, or what the template writes; of a completion its text.
UNKNOWN, GOES_ON, TOOLS, TEMPLATE, TEXT, OTHER = "unknown", "goes_on", "tools", "template", "text", "other"
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
PLACES = (UNKNOWN, GOES_ON, TOOLS, *dict.fromkeys(ROLES.values()), TEMPLATE, TEXT, OTHER)


@dataclass(frozen=True, slots=True)
class PromptParts:
    """The parts of a chat's prompt: fingerprints of its tools and of its first messages, with their roles."""

    tools: int
    roles: tuple[str, ...]
    messages: "array[int]"

    @classmethod
    def of(cls, tools: object, messages: Sequence[dict[str, Any]]) -> "PromptParts":
        """Return the parts of these JSON values. Takes time in proportion to their size."""
        first = messages[:MOST_PARTS]
        roles = tuple(ROLES.get(message["role"], OTHER) for message in first)
        return cls(fingerprint(tools), roles, array("q", [fingerprint(message) for message in first]))

    def differs_in(self, earlier: "PromptParts") -> tuple[str, int | None]:
        """Return the first part that is not as it was, and the number of the message. The template's is named where
        all parts of the earlier prompt are here."""
        if self.tools != earlier.tools:
            return TOOLS, None
        pairs = zip(self.messages, earlier.messages, strict=False)
        at = next((at for at, (mine, other) in enumerate(pairs) if mine != other), len(self.messages))
        if at >= len(earlier.messages):
            return TEMPLATE, None
        # An earlier prompt of more messages goes on where this one ends.
        return (self.roles if at < len(self.roles) else earlier.roles)[at], at


def fingerprint(value: object) -> int:
    """Return a number of 64 bits that only this process gives to the value. Values too deep to be written out
    have the same one."""
    try:
        return hash(repr(value))
    except RecursionError:
        return 0


@dataclass(frozen=True, slots=True)
class PromptDifference:
    """The first token of a prompt of `length` tokens that differs from the earlier prompt which is most like it, the
    part in which it lies, and the number of the message where it lies in one."""

    token: int
    length: int
    part: str
    message: int | None

    @property
    def shown(self) -> dict[str, Any]:
        return {"token": self.token, "of": self.length, "part": self.part, "message": self.message}


@dataclass(frozen=True, slots=True, eq=False)
class EarlierPrompt:
    """An earlier prompt of a key and a salt."""

    session: tuple[str, str]
    ids: bytes
    parts: PromptParts | None


@dataclass(slots=True)
class CallerReuse:
    """The prompts of one key: their number, tokens, and cached tokens by the workers' counts. `difference` is the last
    one, None where the last prompt went on from another or was the first."""

    prompts: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    difference: PromptDifference | None = None


@dataclass(slots=True)
class PromptReuse:
    """The reuse of prompts by all keys. `kept` are earlier prompts, the latest last; `places` counts prompts by the
    place of their first difference."""

    callers: dict[str, CallerReuse] = field(default_factory=dict)
    kept: list[EarlierPrompt] = field(default_factory=list)
    places: Counter[str] = field(default_factory=Counter)

    def begin(self, caller: str, salt: str, prompt: Sequence[int], parts: PromptParts | None) -> None:
        """Compare a prompt with those before it, as far as they are kept."""
        session, ids = (caller, salt), array("i", prompt[:MOST_TOKENS]).tobytes()
        earlier = [kept for kept in self.kept if kept.session == session]
        found = max(((common_tokens(kept.ids, ids), at) for at, kept in enumerate(earlier)), default=None)
        replaced = earlier[0] if len(earlier) >= MOST_OF_SESSION else None
        place, difference = UNKNOWN, None
        if found is not None:
            token, nearest = found[0], earlier[found[1]]
            place, difference = first_difference(token, len(prompt), nearest, parts)
            replaced = nearest if place in (GOES_ON, TEMPLATE) else replaced
        self.places[place] += 1
        self.caller(caller).difference = difference
        if replaced is not None:
            self.kept.remove(replaced)
        self.kept.append(EarlierPrompt(session, ids, parts))
        while len(self.kept) > MOST_PROMPTS or sum(len(kept.ids) for kept in self.kept) > MOST_BYTES:
            del self.kept[0]

    def end(self, caller: str, prompt_tokens: int, cached_tokens: int) -> None:
        """Add a prompt that was answered, with what workers state of it."""
        reuse = self.caller(caller)
        reuse.prompts += 1
        reuse.prompt_tokens += prompt_tokens
        reuse.cached_tokens += cached_tokens

    def caller(self, name: str) -> CallerReuse:
        """Return what is known of a key, which is the latest now."""
        reuse = self.callers[name] = self.callers.pop(name, CallerReuse())
        while len(self.callers) > MOST_CALLERS:
            del self.callers[next(iter(self.callers))]
        return reuse

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each key, the latest first."""
        return [
            {
                "key": name,
                "prompts": reuse.prompts,
                "prompt_tokens": reuse.prompt_tokens,
                "cached_tokens": reuse.cached_tokens,
                "difference": None if reuse.difference is None else reuse.difference.shown,
            }
            for name, reuse in reversed(self.callers.items())
        ]


def first_difference(
    token: int, length: int, nearest: EarlierPrompt, parts: PromptParts | None
) -> tuple[str, PromptDifference | None]:
    """Return the place in which a prompt of this length differs, from this token on, from the one that is nearest."""
    if token * ID_BYTES >= len(nearest.ids):
        return GOES_ON, None
    part, message = TEXT, None
    if parts is not None and nearest.parts is not None:
        part, message = parts.differs_in(nearest.parts)
    return part, PromptDifference(token, length, part, message)


def common_tokens(one: bytes, other: bytes) -> int:
    """Return how many ids two prompts have in common at their beginning."""
    most, at = min(len(one), len(other)), 0
    while at < most and one[at : min(at + PIECE, most)] == other[at : min(at + PIECE, most)]:
        at += PIECE
    low, high = min(at, most), min(at + PIECE, most)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[at:middle] == other[at:middle] else (low, middle - 1)
    return low // ID_BYTES
