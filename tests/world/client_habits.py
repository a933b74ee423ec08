# SPDX-License-Identifier: Apache-2.0
"""Habits of clients: some read or send slowly, end their own way early, or share a connection."""

import random
from dataclasses import replace

from clients import ClientWish
from connection_buffers import Pace

# Shares of seeds whose clients have habits, and of their clients that have each.
HABITUAL = 0.5
READS, SENDS, SHARES, SHUTS = 0.06, 0.06, 0.3, 0.03
# Answers to slow readers are longer than what buffers hold.
SLOW_TOKENS = (50, 130)
# Bytes and pauses of those who are always slow, and rests of those who are not, which begin within so many bytes.
READ_PIECES, READ_PAUSES = (256, 700, 2000), (0.03, 0.1)
SEND_PIECES, SEND_PAUSES = (1, 30, 200), (0.001, 0.01, 0.03)
RESTS = (0.2, 1.0, 3.5, 6.0)
# A rest beyond the proxy's patience, in which an idle minute goes by, and its share.
LONG_REST, LONG = 65.0, 0.02
REST_WITHIN = {"reads": 12_000, "sends": 1_000}
ALWAYS_SLOW = 0.5


def with_habits(wishes: list[tuple[float, ClientWish]], chance: random.Random) -> list[tuple[float, ClientWish]]:
    """Return the requests of a seed as clients with habits make them."""
    if chance.random() >= HABITUAL:
        return wishes
    return [(at, with_habit(wish, chance)) for at, wish in wishes]


def with_habit(wish: ClientWish, chance: random.Random) -> ClientWish:
    if wish.leaves is None and chance.random() < READS:
        pace = pace_of(chance, "reads", READ_PIECES, READ_PAUSES)
        return replace(wish, reads=pace, max_tokens=chance.randrange(*SLOW_TOKENS))
    if chance.random() < SENDS:
        return replace(wish, sends=pace_of(chance, "sends", SEND_PIECES, SEND_PAUSES))
    if chance.random() < SHUTS:
        return replace(wish, shuts=True)
    return replace(wish, shares=wish.leaves is None and chance.random() < SHARES)


def pace_of(chance: random.Random, way: str, pieces: tuple[int, ...], pauses: tuple[float, ...]) -> Pace:
    if chance.random() < ALWAYS_SLOW:
        return Pace(chance.choice(pieces), chance.choice(pauses))
    first = chance.randrange(REST_WITHIN[way])
    rest = LONG_REST if chance.random() < LONG else chance.choice(RESTS)
    return Pace(max(1, first), 0.001, first, rest)
