# SPDX-License-Identifier: Apache-2.0
"""Shares and classes as they are promised (docs/guide/contracts.md), with the real admission and real schedulers, in
virtual time. Faults that are planted here are found."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from effort import examples
from engine_site import EngineSite

from pontil.runtime.foundation.fair_share import GUARANTEED, ServiceClass
from pontil.runtime.proxy.admission.class_turns import ClassTurns
from pontil.runtime.proxy.admission.fair_queue import FairQueue
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.proxy.routing.policy import SPARE_SEATS
from pontil.runtime.tokenizer.tokenizer import Tokenizer

STANDARD = ServiceClass.STANDARD
SEATS, STEP = 2, 0.02
# Requests of all keys that a worker holds at once.
HELD = SEATS + SPARE_SEATS
MOST_PROMPT, MOST_TOKENS = 4, 10
LONGEST = MOST_PROMPT + MOST_TOKENS
# Times the longest request for each unit of the smallest share: docs/decisions/116.
# More than can be sent between two looks, so that each key always has some waiting.
MOST_WAITING = HELD + 1
BOUND = 4 * (HELD + 1)


@dataclass
class Key:
    """A key that always has some requests waiting. Its clients leave after so many tokens."""

    name: str
    share: float
    place: int
    leaves_after: int
    streams: list[Stream] = field(default_factory=list)
    ended: int = 0

    def ask(self, site: EngineSite, random: Random) -> None:
        """Have requests waiting, and go away with the answers of which there is enough."""
        for stream in list(self.streams):
            request = stream.request
            if not request.complete and self.used(stream) >= len(request.prompt) + self.leaves_after:
                stream.cancel()
            if request.id not in site.requests:
                self.ended += self.used(stream)
                self.streams.remove(stream)
        waiting = sum(not stream.request.attempts.phases for stream in self.streams)
        for _ in range(MOST_WAITING - waiting):
            length = random.randint(2, MOST_PROMPT)
            tokens = random.randint(MOST_TOKENS - 2, MOST_TOKENS)
            self.streams.append(site.ask(self.name, 1, tokens, self.share, self.place, length))

    @staticmethod
    def used(stream: Stream) -> int:
        request = stream.request
        said = sum(len(answer.ids) for answer in request.answers)
        return len(request.prompt) + said if said else 0

    @property
    def service(self) -> float:
        """The tokens that it has been served."""
        return self.ended + sum(map(self.used, self.streams))


def services(tokenizer: Tokenizer, keys: list[Key], seed: int, steps: int) -> list[list[float]]:
    """Return the service of each key at each step, while all of them have something waiting."""
    site, random = EngineSite(tokenizer), Random(seed)
    site.worker("w", SEATS)
    site.measure()
    rows = []
    for _ in range(steps):
        for key in keys:
            key.ask(site, random)
        site.run(STEP)
        rows.append([key.service for key in keys])
    return rows


def unfairness(tokenizer: Tokenizer, seed: int, steps: int) -> float:
    """Return the most by which two keys of a class differ in any interval, in longest requests for each unit of the
    smaller share."""
    random = Random(seed)
    shares = random.choice([(1.0, 8.0), (1.0, 1.0), (4.0, 1.0), (2.5, 1.0)])
    leaves = random.choice([(2, MOST_TOKENS), (MOST_TOKENS, 2), (MOST_TOKENS, MOST_TOKENS)])
    one, other = (
        Key(name, share, STANDARD.place(), after) for name, share, after in zip("ab", shares, leaves, strict=True)
    )
    rows = services(tokenizer, [one, other], seed, steps)
    differences = [row[0] / one.share - row[1] / other.share for row in rows]
    return (max(differences) - min(differences)) * min(shares) / LONGEST


@pytest.mark.parametrize("seed", range(examples(3, 100)))
def test_two_keys_of_a_class_are_served_by_their_shares_in_any_interval(tokenizer: Tokenizer, seed: int) -> None:
    assert unfairness(tokenizer, seed, examples(300, 3000)) <= BOUND


def forget_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    push: Any = FairQueue.push

    def unweighted(self: Any, item: Any, caller: str, weight: float = 1.0, *rest: Any) -> None:
        push(self, item, caller, 1.0, *rest)

    monkeypatch.setattr(FairQueue, "push", unweighted)


def drop_corrections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FairQueue, "correct", lambda *_: None)


def claim_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FairQueue, "may_claim", lambda *_: True)


FAULTS = [(forget_shares, 2), (drop_corrections, 4), (claim_always, 4)]


@pytest.mark.parametrize(("plant", "seed"), FAULTS, ids=[plant.__name__ for plant, _ in FAULTS])
def test_a_fault_of_shares_is_found(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], seed: int
) -> None:
    plant(monkeypatch)
    assert unfairness(tokenizer, seed, 350) > BOUND


def parts(tokenizer: Tokenizer, seed: int, steps: int) -> tuple[dict[ServiceClass, float], float]:
    """Return how short of its part each class came at most, in longest requests, of an interval at whose beginning it
    was not; and the part of the first class in all."""
    shares = [1.0, 2.0, 0.5]
    Random(seed).shuffle(shares)
    keys = [Key(each.word, share, each.place(), MOST_TOKENS) for each, share in zip(ServiceClass, shares, strict=True)]
    rows = services(tokenizer, keys, seed, steps)
    short = {}
    for place, each in enumerate(ServiceClass):
        if each in GUARANTEED:
            lacks = [GUARANTEED[each] * sum(row) - row[place] for row in rows]
            least = [min(lacks[: number + 1]) for number in range(len(lacks))]
            short[each] = max(lack - low for lack, low in zip(lacks, least, strict=True)) / LONGEST
    return short, rows[-1][0] / sum(rows[-1])


@pytest.mark.parametrize("seed", range(examples(1, 40)))
def test_each_class_has_its_part_and_the_first_one_the_rest(tokenizer: Tokenizer, seed: int) -> None:
    short, first = parts(tokenizer, seed, examples(400, 3000))
    assert all(lack <= BOUND for lack in short.values())
    assert first >= 1 - sum(GUARANTEED.values()) - 0.1


def test_a_class_without_its_part_is_found(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClassTurns, "next", lambda self, heads: min(heads))
    short, first = parts(tokenizer, 0, 500)
    assert short[STANDARD] > BOUND and first > 0.95
