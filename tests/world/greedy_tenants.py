# SPDX-License-Identifier: Apache-2.0
"""Tenants who share a launch: one asks for many choices and long prompts, one for little, and one has limits.

A step takes 4 ms and more (engine_process.py), so that what takes minutes of a real server takes a second here."""

import random
from dataclasses import dataclass, replace

from clients import ClientWish
from load import LoadShape
from site_plan import CALLERS, LIMITED, MODEST, SitePlan

# Share of seeds with such tenants.
GREEDY_SEEDS = 0.12
# Faults come first: the check of a wait looks at the time after them.
SHAPE = LoadShape(blocks=320, seats=8, rate=4.0, batched_tokens=64, faults_within=0.15)
# Parts of the load at which all that the greedy tenant asks for comes, and the share of what others ask for that comes
# within some seconds from then.
BURSTS, BESIDE, BESIDE_WITHIN = (0.5, 0.8), 0.7, 1.5
# In flight at once and in a minute, of the tenant that has limits.
MOST_AT_ONCE, IN_A_MINUTE = 2, 12


@dataclass(frozen=True, slots=True)
class TenantKind:
    """One kind of requests: its share, the key, the tokens of a prompt and of an answer, at most, and its choices."""

    share: float
    key: str
    prompt: int
    answer: int
    choices: int = 1

    def wish(self, number: int, chance: random.Random) -> ClientWish:
        count = self.prompt - chance.randrange(self.prompt // 4)
        prompt = [chance.randrange(3, 200) for _ in range(count)]
        answer = self.answer if self.choices > 1 else chance.randrange(1, self.answer + 1)
        return ClientWish(
            number, self.key, prompt, chance.getrandbits(31), answer, self.choices, stream=chance.random() < 0.8
        )


GREEDY, SHORT = CALLERS["ann"], 30
KINDS = (
    TenantKind(0.12, GREEDY, 60, 120, SHAPE.seats),
    TenantKind(0.15, GREEDY, 800, 2),
    TenantKind(0.4, MODEST[1], SHORT, 1),
    TenantKind(0.33, LIMITED[1], SHORT, 60),
)


def tenanted(plan: SitePlan, shape: LoadShape, chance: random.Random) -> tuple[SitePlan, LoadShape]:
    """Draw whether a seed has tenants; return its site and its shape. A stage whose states must find room has fewer
    seats than they ask for."""
    if chance.random() >= GREEDY_SEEDS or plan.staged is not None:
        return plan, shape
    limits = ("requests", MOST_AT_ONCE), ("rate", IN_A_MINUTE)
    site = replace(
        plan, tenants=True, blocks=SHAPE.blocks, seats=SHAPE.seats, batched_tokens=SHAPE.batched_tokens,
        resume_window=SHAPE.resume_window, worker_start=SHAPE.worker_start, likely=SHAPE.likely,
        allowances=((LIMITED[0], limits),),
    )  # fmt: skip
    return site, SHAPE


def tenants_wishes(plan: SitePlan, chance: random.Random) -> list[tuple[float, ClientWish]]:
    """Return the requests of such a seed, with the seconds from the first."""
    at, made = 0.0, list[tuple[float, ClientWish]]()
    for number in range(plan.requests):
        at += chance.expovariate(SHAPE.rate)
        (kind,) = chance.choices(KINDS, [one.share for one in KINDS])
        made.append((at, kind.wish(number, chance)))
    placed = [(time_of(one, then, at, chance), one) for then, one in made]
    return sorted(placed, key=lambda pair: pair[0])


def time_of(wish: ClientWish, then: float, last: float, chance: random.Random) -> float:
    """Return when a wish comes: in or behind a burst, or else as it was drawn."""
    burst, beside, draw = last * chance.choice(BURSTS), chance.random() * BESIDE_WITHIN, chance.random()
    if wish.key == GREEDY:
        return burst
    return burst + beside if draw < BESIDE else then
