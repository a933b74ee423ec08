# SPDX-License-Identifier: Apache-2.0
"""The requests of a seed. Prompts are made of a small alphabet of blocks, so that prefixes meet, also behind other
beginnings."""

import random

from clients import ClientWish
from site_plan import CALLERS, SitePlan

BLOCK = 16
ALPHABET = [[3 + (7 * place + 31 * letter) % 200 for place in range(BLOCK)] for letter in range(3)]
MOST_BLOCKS, MOST_REST, MOST_TOKENS = 9, 60, 70
# Shares of requests that are of a kind.
WHOLE, RESUMABLE, SEVERAL, STOPS, LEAVES = 0.2, 0.25, 0.12, 0.1, 0.1
# Clients that leave ask for so many tokens that their requests would go on for seconds, and leave within so many.
LONG_ANSWER, LEAVES_WITHIN = 600, 0.7
STOP_STRINGS = ("e", "Ġt", "a", " th")


def wishes(plan: SitePlan, chance: random.Random) -> list[tuple[float, ClientWish]]:
    """Return the requests, each with the seconds from the first at which it is made."""
    at, made = 0.0, list[tuple[float, ClientWish]]()
    for number in range(plan.requests):
        at += chance.expovariate(plan.rate)
        made.append((at, wish(number, chance)))
    return made


def wish(number: int, chance: random.Random) -> ClientWish:
    letters = chance.choices(range(len(ALPHABET)), k=chance.randrange(1, MOST_BLOCKS))
    prompt = [token for letter in letters for token in ALPHABET[letter]]
    prompt += [chance.randrange(3, 200) for _ in range(chance.randrange(1, MOST_REST))]
    stream = chance.random() >= WHOLE
    leaves = chance.random() * LEAVES_WITHIN if chance.random() < LEAVES else None
    return ClientWish(
        number,
        chance.choice(list(CALLERS.values())),
        prompt,
        seed=chance.getrandbits(31),
        max_tokens=chance.randrange(1, MOST_TOKENS) if leaves is None else LONG_ANSWER,
        choices=chance.randrange(2, 4) if chance.random() < SEVERAL else 1,
        stream=stream,
        # A stream that can be continued goes on for a while without its client.
        resumable=stream and leaves is None and chance.random() < RESUMABLE,
        stop=chance.choice(STOP_STRINGS) if chance.random() < STOPS else None,
        priority=chance.choice((0, 0, 0, 1, 2)),
        leaves=leaves,
    )
