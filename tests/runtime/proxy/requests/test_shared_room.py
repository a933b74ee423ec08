# SPDX-License-Identifier: Apache-2.0
"""No caller takes all of the room."""

import random

from pontil.runtime.proxy.requests.shared_room import SharedRoom
from pontil.runtime.proxy.requests.ticket import NO_KEY


def filled(room: SharedRoom, caller: str, size: int = 1) -> int:
    while room.take(caller, size):
        pass
    return room.held[caller]


def test_a_caller_may_hold_as_much_as_it_leaves() -> None:
    room = SharedRoom(1200)
    assert filled(room, "greedy") == 600
    assert filled(room, "second") == 300
    assert room.take("third", 150) and not room.take("greedy", 1)
    room.give_back("greedy", 600)
    assert filled(room, "second") > 300, "what is given back is there for others"


def test_without_keys_all_of_it_is_used() -> None:
    room = SharedRoom(100)
    assert filled(room, NO_KEY, 10) == 100


def test_one_thing_that_is_too_large_fits_into_an_empty_room() -> None:
    room = SharedRoom(100)
    assert room.take("ann", 1000) and not room.take("ann", 1) and not room.take("bob", 1)
    room.give_back("ann", 1000)
    assert not room.total and not room.held


def test_any_callers_leave_room_for_one_more() -> None:
    for seed in range(50):
        source, room = random.Random(seed), SharedRoom(10_000)
        callers = [f"caller-{number}" for number in range(source.randrange(1, 8))]
        held: list[tuple[str, int]] = []
        for _ in range(500):
            caller, size = source.choice(callers), source.randrange(1, 100)
            if source.random() < 0.7 and room.take(caller, size):
                held.append((caller, size))
            elif held:
                room.give_back(*held.pop(source.randrange(len(held))))
            assert room.total == sum(size for _, size in held) == sum(room.held.values()) <= room.most
        assert room.take("another", (room.most - room.total) // 2)
