# SPDX-License-Identifier: Apache-2.0
"""The usage of each API key at each of several proxies: a table in shared memory (docs/decisions/061).

Each proxy writes to its own region and reads those of the others, so that nobody waits for a lock. A number is eight
aligned bytes, written and read at once. A proxy states what it is about to use before it looks at the others: of two
that do so at the same time at least one sees the other.
"""

import hashlib
import mmap
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

from pontil.runtime.errors import PontilError

# Callers of one proxy: more than there can be API keys. Others would be counted by each proxy alone.
RECORDS = 1024
# Numbers in a record: the caller's digest in two, and its usage. The first record of a region is its head.
WIDTH = 10
REQUESTS, TOKENS, TOTAL, TOKENS_TOTAL, SPENT, TOKENS_SPENT, AT = range(2, 9)
GENERATION, COUNT = 0, 1
REGION = (RECORDS + 1) * WIDTH


@dataclass(frozen=True, slots=True)
class StatedUsage:
    """The usage of a caller as one proxy states it: in flight, begun there since it started, and how full the buckets
    of its rates were at the time `at`."""

    requests: int
    tokens: int
    total: float
    tokens_total: float
    spent: float
    tokens_spent: float
    at: float


@dataclass(slots=True)
class KnownRegion:
    """The part of another proxy's region that is known: the place of each caller, as of one start of that proxy."""

    generation: int = 0
    count: int = 0
    places: dict[tuple[int, int], int] = field(default_factory=dict)


class UsageTable:
    """The table of all proxies; `number` is this one's. Raises PontilError where the file cannot be made."""

    def __init__(self, path: Path, number: int, proxies: int, incarnation: str) -> None:
        self.number, self.proxies, self.incarnation = number, proxies, incarnation
        # Generations of proxies that are gone: what they had in flight is no more.
        self.gone: set[int] = set()
        size = proxies * REGION * 8
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                # A page for which there is no room would end the process when it is written.
                os.posix_fallocate(descriptor, 0, size)
                self.memory = mmap.mmap(descriptor, size)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise PontilError(f"the table {path} of this launch cannot be used: {error.strerror}") from None
        whole = memoryview(self.memory)
        self.whole, self.numbers, self.reals = whole, whole.cast("q"), whole.cast("d")
        self.places: dict[str, int] = {}
        self.known = [KnownRegion() for _ in range(proxies)]
        # Releasing a lock and taking it orders what was written before what is read after.
        self.fence = threading.Lock()
        self.begin()

    def begin(self) -> None:
        """Empty this proxy's region, in which a predecessor may have left numbers."""
        region_start = self.number * REGION
        self.numbers[region_start + COUNT] = 0
        self.numbers[region_start + GENERATION] = generation_of(self.incarnation)

    def state(self, caller: str, usage: StatedUsage) -> None:
        """State what a caller uses here."""
        place = self.places.get(caller) or self.add(caller)
        if place is None:
            return
        values = (usage.requests, usage.tokens, usage.total, usage.tokens_total, usage.spent, usage.tokens_spent,
                  usage.at)  # fmt: skip
        for number, value in enumerate(values, REQUESTS):
            self.reals[place + number] = value

    def add(self, caller: str) -> int | None:
        region_start, count = self.number * REGION, len(self.places)
        if count >= RECORDS:
            return None
        place = region_start + (count + 1) * WIDTH
        self.numbers[place], self.numbers[place + 1] = digest_of(caller)
        for number in range(REQUESTS, WIDTH):
            self.reals[place + number] = 0.0
        self.places[caller] = place
        # The record can be found only once it is complete.
        with self.fence:
            self.numbers[region_start + COUNT] = count + 1
        return place

    def others(self, caller: str) -> dict[tuple[int, int], StatedUsage]:
        """Return what the other proxies state of a caller, by their number and generation."""
        with self.fence:
            pass
        digest, usages = digest_of(caller), {}
        for number in range(self.proxies):
            if number == self.number:
                continue
            region = self.look(number)
            place = region.places.get(digest)
            if place is not None and region.generation not in self.gone:
                values = self.reals[place + REQUESTS : place + AT + 1].tolist()
                usages[number, region.generation] = StatedUsage(int(values[0]), int(values[1]), *values[2:])
        return usages

    def look(self, number: int) -> KnownRegion:
        """Return another proxy's region, with the callers that it has added since."""
        region, start = self.known[number], number * REGION
        generation = self.numbers[start + GENERATION]
        if generation != region.generation:
            region = self.known[number] = KnownRegion(generation)
        count = min(max(0, self.numbers[start + COUNT]), RECORDS)
        for record in range(region.count, count):
            place = start + (record + 1) * WIDTH
            region.places[self.numbers[place], self.numbers[place + 1]] = place
        region.count = max(region.count, count)
        return region

    def forget(self, incarnation: str) -> None:
        """Count nothing more of a proxy that is gone."""
        self.gone.add(generation_of(incarnation))

    def close(self) -> None:
        for view in (self.numbers, self.reals, self.whole):
            view.release()
        self.memory.close()


def generation_of(incarnation: str) -> int:
    return digest_of(incarnation)[0] | 1


def digest_of(caller: str) -> tuple[int, int]:
    digest = hashlib.blake2b(caller.encode("utf-8", "surrogateescape"), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little", signed=True), int.from_bytes(digest[8:], "little", signed=True)
