# SPDX-License-Identifier: Apache-2.0
"""The requests of a seed, and the shape of its site and load, which it draws first: so each part of the product is
pressed in some seeds. Prompts are made of a small alphabet of blocks, so that prefixes meet, also behind other
beginnings."""

import random
from dataclasses import dataclass, replace

from clients import ClientWish
from site_plan import CALLERS, SHORT_WINDOW, SitePlan

BLOCK = 16
ALPHABET = [[3 + (7 * place + 31 * letter) % 200 for place in range(BLOCK)] for letter in range(3)]
STOP_STRINGS = ("e", "Ġt", "a", " th")


@dataclass(frozen=True, slots=True)
class LoadShape:
    """The kind of a seed. Each worker has so many KV `blocks` and `seats`. A prompt has fewer than `most_blocks` blocks
    of the first `letters` of the alphabet and fewer than `most_rest` other tokens, an answer fewer than `most_tokens`.
    Then come the shares of requests that are of a kind. Clients that leave do so within `leaves_within` seconds, and
    ask for `long_answer` tokens, so that their requests would go on for longer; those of streams that break off hang up
    and go on elsewhere. `faults_within` is the part of the load during which faults happen."""

    blocks: int = 192
    seats: int = 8
    rate: float = 12.0
    letters: int = 3
    most_blocks: int = 9
    most_rest: int = 60
    most_tokens: int = 70
    whole: float = 0.2
    resumable: float = 0.25
    several: float = 0.12
    stops: float = 0.1
    leaves: float = 0.1
    breaks: float = 0.2
    long_answer: int = 600
    leaves_within: float = 0.7
    faults_within: float = 1.0
    # Seconds in which a stream can be continued, and those of a worker's start.
    resume_window: float = 60.0
    worker_start: tuple[float, float] = (1.0, 3.0)
    batched_tokens: int = 256
    # Seconds by which a late message is late, on average.
    jitter: float = 0.5e-3
    # Kinds of faults that are likely.
    likely: tuple[str, ...] = ()


SHAPES = {
    "plain": LoadShape(),
    # Sequences are preempted, and prompts wait for room.
    "tight": LoadShape(
        blocks=30,
        seats=6,
        most_blocks=5,
        most_rest=40,
        most_tokens=130,
        several=0.3,
        leaves=0.15,
        long_answer=200,
        likely=("cut", "stop"),
    ),
    # Streams break off and are continued, mostly over the other proxy.
    "broken off": LoadShape(
        whole=0.05,
        resumable=0.8,
        leaves=0.12,
        breaks=0.7,
        stops=0.05,
        most_blocks=4,
        resume_window=3.0,
        leaves_within=1.2,
        likely=("kill twice", "full", "tear"),
    ),
    # Seats are taken by several choices of one request, and end one by one.
    "several": LoadShape(
        seats=4,
        whole=0.4,
        several=0.6,
        stops=0.4,
        most_blocks=4,
        most_rest=30,
        most_tokens=60,
        faults_within=0.6,
        letters=1,
        batched_tokens=64,
        likely=("cut", "slow disk"),
    ),
    # Prompts wait for a prefix that another one computes, and are handed over soon after each other.
    "shared": LoadShape(
        rate=25.0, letters=1, most_blocks=14, most_rest=12, most_tokens=24, leaves=0.2, batched_tokens=64
    ),
    # Clients leave at each stage of a request, and workers are soon there again.
    "leaving": LoadShape(
        most_blocks=13,
        most_rest=90,
        leaves=0.5,
        leaves_within=0.25,
        resumable=0.1,
        worker_start=(0.05, 0.4),
        batched_tokens=64,
        likely=("kill", "kill twice"),
    ),
    # Hosts that are far apart: messages that belong together come late, and out of step.
    "far": LoadShape(jitter=20e-3, leaves=0.25, most_tokens=40, worker_start=(0.1, 1.0), likely=("cut", "silence")),
}


# Of half of the sites whose workers all decode what they computed: callers take seats from each other in the middle of
# long prompts.
CROWDED = LoadShape(
    seats=4,
    rate=40.0,
    most_blocks=14,
    most_rest=90,
    most_tokens=12,
    whole=0.4,
    several=0.3,
    batched_tokens=32,
    likely=("slow", "no memory"),
)


# A request for sound takes as long as four others.
STAGED_RATE = 0.25


def shaped(plan: SitePlan, chance: random.Random) -> tuple[SitePlan, LoadShape]:
    """Draw the shape of a seed; return its site of that shape too."""
    shape = SHAPES[chance.choice(list(SHAPES))]
    if not plan.prefill + plan.decode:
        shape = chance.choice((CROWDED, shape))
    if plan.staged is not None:
        shape = replace(shape, rate=shape.rate * STAGED_RATE)
    site = replace(
        plan, blocks=shape.blocks, seats=shape.seats, resume_window=shape.resume_window,
        worker_start=shape.worker_start, batched_tokens=shape.batched_tokens, likely=shape.likely,
    )  # fmt: skip
    return site, shape


def wishes(plan: SitePlan, shape: LoadShape, chance: random.Random) -> list[tuple[float, ClientWish]]:
    """Return the requests, each with the seconds from the first at which it is made."""
    at, made = 0.0, list[tuple[float, ClientWish]]()
    for number in range(plan.requests):
        at += chance.expovariate(shape.rate)
        made.append((at, wish(number, shape, chance)))
    return made


def wish(number: int, shape: LoadShape, chance: random.Random) -> ClientWish:
    letters = chance.choices(range(shape.letters), k=chance.randrange(1, shape.most_blocks))
    prompt = [token for letter in letters for token in ALPHABET[letter]]
    prompt += [chance.randrange(3, 200) for _ in range(chance.randrange(1, shape.most_rest))]
    stream = chance.random() >= shape.whole
    leaves = chance.random() * shape.leaves_within if chance.random() < shape.leaves else None
    # A stream that can be continued goes on for its window without its client.
    stays = leaves is None or shape.resume_window <= SHORT_WINDOW
    resumable = stream and stays and chance.random() < shape.resumable
    return ClientWish(
        number,
        chance.choice(list(CALLERS.values())),
        prompt,
        seed=chance.getrandbits(31),
        max_tokens=chance.randrange(1, shape.most_tokens) if leaves is None else shape.long_answer,
        choices=chance.randrange(2, 4) if chance.random() < shape.several else 1,
        stream=stream,
        resumable=resumable,
        stop=chance.choice(STOP_STRINGS) if chance.random() < shape.stops else None,
        priority=chance.choice((0, 0, 0, 1, 2)),
        leaves=leaves,
        breaks=resumable and chance.random() < shape.breaks,
    )
