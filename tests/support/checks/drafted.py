# SPDX-License-Identifier: Apache-2.0
"""Requests of several kinds, and their answers from an engine, to compare those with drafts to those without."""

import random
from collections import abc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from tiny import VOCAB, Rig, check_free, name_of, rig, sequence

from pontil.runtime.engine.drafts.drafter import Draft, LookupDrafter
from pontil.runtime.engine.sequences.sequence import FinishReason, Sequence
from pontil.runtime.engine.sequences.token_logprobs import TokenLogprobs
from pontil.runtime.engine.sequences.token_rules import StopCheck
from pontil.runtime.models.model import Model

REPEATING = [5, 6, 7, 8, 9] * 6
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"logprobs": 3, "top_logits": 8},
    {"temperature": 0.4, "top_logits": 8},
    {"temperature": 0.7, "top_k": 5, "logprobs": 0},
    {"min_tokens": 9, "logit_bias": ((11, 2.0),)},
    {"allowed_token_ids": (5, 6, 7, 8, 9, 40)},
    {"frequency_penalty": 0.5},
    {"temperature": 0.5, "n": 3, "logprobs": 2},
)


def requests(budget: int = 40, **more: Any) -> list[Sequence]:
    return [
        sequence(f"n{number}", REPEATING[: 12 + number], budget, seed=number, **(kind | more))
        for number, kind in enumerate(KINDS)
    ]


@dataclass(frozen=True)
class Made:
    ids: list[int]
    logprobs: list[TokenLogprobs]
    finish: FinishReason | None
    generated: int


def run(one: Rig, sequences: Iterable[Sequence]) -> dict[str, Made]:
    """Run to the end; check that every output extends the last one, and that its count is the number of its ids."""
    made: dict[str, Made] = {}
    before = one.engine.generated
    for each in sequences:
        one.engine.add(each)
    while one.engine.has_work:
        for output in one.engine.step():
            known, own = made.get(name_of(output.sequence)), output.sequence
            assert output.index == (0 if known is None else len(known.ids)) and 1 <= output.count == len(output.ids)
            assert 0 <= output.accepted <= min(output.drafted, output.count)
            assert output.accepted >= output.count - 1
            ids = [*(() if known is None else known.ids), *output.ids]
            logprobs = [*(() if known is None else known.logprobs), *output.logprobs]
            made[name_of(own)] = Made(ids, logprobs, output.finish, own.record.generated)
            assert own.computed == own.length - 1 and ids == own.output and logprobs == own.record.logprobs
    assert one.engine.generated - before == sum(len(each.ids) for each in made.values())
    assert all(each.generated == len(each.ids) for each in made.values())
    check_free(one)
    return made


Plain = Callable[[int], dict[str, Made]]


def plain_of(model: Model) -> Plain:
    """Return the answers to these requests without drafts, by budget. Each is computed once: nothing that drafts are
    compared with depends on them."""
    return cache(lambda budget: run(rig(model), requests(budget)))


class Stops(StopCheck):
    """A stop check that ends at the second 40, for example: its state is the tokens it has seen."""

    def __init__(self, ids: tuple[int, ...]) -> None:
        self.ids, self.seen = ids, list[int]()

    def feed(self, token_id: int) -> str | None:
        self.seen.append(token_id)
        return "stop" if tuple(self.seen[-len(self.ids) :]) == self.ids else None


class Oracle(LookupDrafter):
    """Guesses of which a chosen number are right: `answer` tells what a sequence will say."""

    def __init__(self, chance: random.Random, answer: Callable[[Sequence], list[int]]) -> None:
        self.chance, self.answer = chance, answer

    def propose(self, sequences: abc.Sequence[Sequence], most: int, room: int) -> list[Draft]:
        drafts = list[Draft]()
        for one in sequences:
            draft = self.draft(self.answer(one)[len(one.output) :], one.guessable(min(most, room)))
            room -= len(draft)
            drafts.append(draft)
        return drafts

    def draft(self, rest: list[int], most: int) -> Draft:
        count = self.chance.randint(0, most)
        right = self.chance.randint(0, count)
        wrong = [(token + 1) % VOCAB for token in rest[right:]]
        return (*rest[:right], *wrong, *[0] * count)[:count]


class Always(Oracle):
    """Guesses that are all right."""

    def __init__(self, answer: Callable[[Sequence], list[int]]) -> None:
        super().__init__(random.Random(0), answer)

    def draft(self, rest: list[int], most: int) -> Draft:
        return tuple(rest[:most])
