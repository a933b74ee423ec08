# SPDX-License-Identifier: Apache-2.0
"""Routing knows of leased prefixes as long as they are held, and prefers who holds them."""

from typing import Any

from pontil.runtime.cache.prefix import full_keys
from pontil.runtime.proxy.dispatch.dispatcher import leased_route
from pontil.runtime.proxy.routing.held_prefixes import HeldPrefixes, MovingPrefixes, short_key, short_keys_of
from pontil.runtime.proxy.routing.policy import WorkerLoad
from pontil.runtime.wire.messages import PrefixDelta

PROMPT = list(range(3, 83))
KEYS = list(full_keys(PROMPT, "", 16))
SHORT = [short_key(key) for key in KEYS]


def load_of(name: str, in_flight: int = 0, **fields: Any) -> WorkerLoad:
    return WorkerLoad(name, name, name.split(":")[0], "e", in_flight, 100, 8, 1000, **fields)


def delta(number: int, added: list[bytes], removed: list[bytes] | None = None) -> PrefixDelta:
    return PrefixDelta("w", "p", number, b"".join(added), b"".join(removed or []))


def test_whole_keys_are_known_by_their_beginnings() -> None:
    assert list(short_keys_of(b"".join(KEYS))) == SHORT and short_keys_of(b"") == ()


def test_what_is_leased_is_not_forgotten_for_what_was_told_later() -> None:
    held = HeldPrefixes(most=6)
    held.lease(SHORT[:3])
    held.take(delta(0, [bytes([number]) * 8 for number in range(20)]))
    assert len(held) == 6 and held.count(SHORT) == held.count_leased(SHORT) == 3
    held.take(delta(7, []))
    assert held.count(SHORT) == 3, "a gap makes nothing unknown that is leased"
    held.take(delta(0, [key[:8] for key in KEYS[3:]]))
    assert held.count(SHORT) == 5 and held.count_leased(SHORT) == 3


def test_a_block_is_leased_as_long_as_any_lease_has_it() -> None:
    held = HeldPrefixes()
    held.lease(SHORT[:3])
    held.lease(SHORT[:2])
    held.end_lease(SHORT[:3])
    assert held.count_leased(SHORT) == 2
    held.end_lease(SHORT[:2])
    assert held.count_leased(SHORT) == 0 and held.count(SHORT) == 3, "it is there until it is told to be gone"


def test_nothing_is_known_of_what_moves_but_leases_as_long_as_they_do() -> None:
    moving = MovingPrefixes()
    moving.lease(SHORT[:3])
    moving.lease(SHORT[:2])
    moving.end_lease(SHORT[:3])
    assert moving.count_leased(SHORT) == moving.count(SHORT) == len(moving) == 2
    moving.end_lease(SHORT[:2])
    assert not len(moving) and not moving.leased


def test_the_holder_is_preferred_where_it_has_room() -> None:
    """Without that, a request in flight there would outweigh two blocks."""
    holder, other = load_of("mixed:0", in_flight=3, taken=3, found=32), load_of("mixed:1")
    route = leased_route(["mixed:0"], [holder, other], "auto", 100)
    assert route is not None and route.name == "mixed:0"
    full = load_of("mixed:0", in_flight=40, taken=40, found=32)
    assert leased_route(["mixed:0"], [full, other], "auto", 100) is None
    assert leased_route([], [holder, other], "auto", 100) is None


def test_the_holder_computes_for_any_decode_worker() -> None:
    loads = [
        load_of("prefill:0"),
        load_of("prefill:1", in_flight=3, found=32),
        load_of("decode:0"),
        load_of("decode:1"),
    ]
    route = leased_route(["prefill:1"], loads, "auto", 200)
    assert route is not None and route.prefill.name == "prefill:1" and route.is_pair
    alone = leased_route(["prefill:1"], loads, "never", 200)
    assert alone is not None and alone.name == "prefill:1", "a request that gives way is computed whole by one worker"
