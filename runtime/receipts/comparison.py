# SPDX-License-Identifier: Apache-2.0
"""The first difference between an answer and the one that was recorded for the same request, in the order in which an
answer is made: the prompt, its parameters, then the logits of each token and what was drawn from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pontil.runtime.receipts.chain import MARK_BYTES
from pontil.runtime.receipts.record import RecordedAnswer


class DifferenceKind(Enum):
    """The part that differs first. ADAPTER is another one for the name, and MODEL another one than the worker has, so
    that nothing else can be compared; TOKENIZER another vocabulary or chat template; PROMPT other ids by the same
    ones; SAMPLING other parameters, or another draw from equal logits; TOKENS others where no logits are stated."""

    UNANSWERED = "unanswered"
    ADAPTER = "adapter"
    MODEL = "model"
    TOKENIZER = "tokenizer"
    PROMPT = "prompt"
    SAMPLING = "sampling"
    LOGITS = "logits"
    TOKENS = "tokens"
    END = "end"


INCOMPARABLE = (DifferenceKind.ADAPTER, DifferenceKind.MODEL)


@dataclass(frozen=True, slots=True)
class AnswerDifference:
    """The first difference, in words; `position` counts tokens of the prompt or of the answer from 0."""

    kind: DifferenceKind
    text: str
    position: int | None = None
    expected: Any = None
    got: Any = None

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind.value,
            "position": self.position,
            "expected": self.expected,
            "got": self.got,
            "text": self.text,
        }


def first_difference(expected: RecordedAnswer, got: RecordedAnswer) -> AnswerDifference | None:
    """Return the first difference, or None where both are equal to the last bit that is stated."""
    return (
        adapter_difference(expected, got)
        or prompt_difference(expected, got)
        or parameter_difference(expected, got)
        or token_difference(expected, got)
        or end_difference(expected, got)
    )


def tokenizer_difference(expected: RecordedAnswer, tokenizer: str) -> AnswerDifference | None:
    """Return in words whether the files of a release have another tokenizer or chat template, by its digest."""
    recorded = expected.receipt.statement["tokenizer"]
    if recorded == tokenizer:
        return None
    text = "its model's files have another tokenizer or chat template, which its proxy does not use"
    return AnswerDifference(DifferenceKind.TOKENIZER, text, None, recorded, tokenizer)


def adapter_difference(expected: RecordedAnswer, got: RecordedAnswer) -> AnswerDifference | None:
    ours, theirs = expected.receipt.adapter, got.receipt.adapter
    if ours == theirs:
        return None
    return AnswerDifference(DifferenceKind.ADAPTER, "it is of another adapter than was recorded", None, ours, theirs)


def prompt_difference(expected: RecordedAnswer, got: RecordedAnswer) -> AnswerDifference | None:
    ours, theirs = expected.receipt, got.receipt
    is_other = ours.statement["tokenizer"] != theirs.statement["tokenizer"]
    kind = DifferenceKind.TOKENIZER if is_other else DifferenceKind.PROMPT
    cause = "the tokenizer or chat template is another one" if is_other else "the prompt's ids differ"
    place = first_place(ours.prompt or (), theirs.prompt or ())
    if place is None:
        return AnswerDifference(kind, f"{cause}, though the prompt's ids are equal") if is_other else None
    (mine, other), of = pair_at(place, ours.prompt or (), theirs.prompt or ()), f"of {len(ours.prompt or ())}"
    text = f"{cause}: prompt token {place} {of} is {shown(other)}, and {shown(mine)} was recorded"
    return AnswerDifference(kind, text, place, mine, other)


def parameter_difference(expected: RecordedAnswer, got: RecordedAnswer) -> AnswerDifference | None:
    ours, theirs = (one.receipt.statement["parameters"] for one in (expected, got))
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            text = f"the parameter {name} is {theirs.get(name)!r:.60}, and {ours.get(name)!r:.60} was recorded"
            return AnswerDifference(DifferenceKind.SAMPLING, text, None, ours.get(name), theirs.get(name))
    return None


def token_difference(expected: RecordedAnswer, got: RecordedAnswer) -> AnswerDifference | None:
    ours, theirs = expected.receipt.tokens, got.receipt.tokens
    place, logits_place = first_place(ours, theirs), first_mark(expected.marks, got.marks)
    if logits_place is not None and (place is None or logits_place <= place):
        mine, other = pair_at(logits_place, ours, theirs)
        drawn = f"both drew {mine}" if mine == other else f"which drew {shown(other)}, and {shown(mine)} was recorded"
        return AnswerDifference(
            DifferenceKind.LOGITS, f"the logits of token {logits_place} differ, {drawn}", logits_place, mine, other
        )
    if place is not None:
        mine, other = pair_at(place, ours, theirs)
        is_drawn = bool(expected.marks and got.marks) and mine is not None and other is not None
        kind = DifferenceKind.SAMPLING if is_drawn else DifferenceKind.TOKENS
        ending = " from equal logits" if is_drawn else ""
        return AnswerDifference(
            kind, f"token {place} is {shown(other)}{ending}, and {shown(mine)} was recorded", place, mine, other
        )
    if expected.receipt.statement["chain"] != got.receipt.statement["chain"]:
        return AnswerDifference(
            DifferenceKind.LOGITS, "all tokens are equal, but not the logits that they were drawn from"
        )
    return None


def end_difference(expected: RecordedAnswer, got: RecordedAnswer) -> AnswerDifference | None:
    mine, other = (one.receipt.statement["finish_reason"] for one in (expected, got))
    if mine == other:
        return None
    return AnswerDifference(
        DifferenceKind.END, f"it ends by {other!r}, and by {mine!r} was recorded", None, mine, other
    )


def first_place(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """Return the first place at which two lists differ, where one ends too."""
    for place, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        if mine != other:
            return place
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def first_mark(ours: bytes, theirs: bytes) -> int | None:
    """Return the first token whose marks differ, of those that both have."""
    for place in range(min(len(ours), len(theirs)) // MARK_BYTES):
        part = slice(place * MARK_BYTES, (place + 1) * MARK_BYTES)
        if ours[part] != theirs[part]:
            return place
    return None


def pair_at(place: int, ours: Sequence[int], theirs: Sequence[int]) -> tuple[int | None, int | None]:
    """Return what two lists have at a place; None behind the end of one."""
    mine, other = (ids[place] if place < len(ids) else None for ids in (ours, theirs))
    return mine, other


def shown(token: int | None) -> str:
    return "the end" if token is None else str(token)
