# SPDX-License-Identifier: Apache-2.0
"""The memory of a state in which nothing that waits has room: messages that change nothing ask no worker's room, and
whatever may give one is asked at once."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from effort import examples
from engine_site import EngineSite, as_alone

from pontil.runtime.proxy.admission.seat_rooms import RoomMemory
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Heartbeat, PrefixDelta

SEATS = 4


def full_site(tokenizer: Tokenizer) -> EngineSite:
    """Return a site whose workers have no seat for any of the requests that wait."""
    site = EngineSite(tokenizer)
    for name in ("w", "v"):
        site.worker(name, SEATS)
    for _ in range(8 * SEATS):
        site.ask("-", tokens=100)
    site.run(1.0)
    assert len(site.queue) and not site.admissions.generating.next_with_room()
    return site


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[EngineSite], list[Any]]:
    def watch(site: EngineSite) -> list[Any]:
        found: list[Any] = []
        real = site.dispatcher.room_for

        def room_for(*given: Any) -> Any:
            found.append(given)
            return real(*given)

        monkeypatch.setattr(site.dispatcher, "room_for", room_for)
        return found

    return watch


def test_tokens_of_a_full_site_ask_for_no_room(tokenizer: Tokenizer, asked: Callable[[EngineSite], list[Any]]) -> None:
    site = full_site(tokenizer)
    found, before = asked(site), site.metrics.delivered
    site.run(0.3)
    assert not found and site.metrics.delivered > before


def test_whatever_may_give_room_is_asked(tokenizer: Tokenizer, asked: Callable[[EngineSite], list[Any]]) -> None:
    site = full_site(tokenizer)
    memory, worker = site.admissions.generating.memory, site.registry.workers["w"]

    def stands() -> bool:
        return memory.lasts(memory.now())

    def change_seats() -> None:
        worker.seat(next(iter(site.requests.values())).share, 0)

    changes: list[Callable[[], object]] = [
        lambda: site.registry.heartbeat(Heartbeat("w", site.incarnation, 0, 0, 1, 0)),
        lambda: worker.prefixes.take(PrefixDelta("w", site.incarnation, 0, b"", b"")),
        lambda: worker.prefixes.lease([1]),
        lambda: worker.prefixes.end_lease([1]),
        lambda: site.registry.unreachable("w"),
        lambda: site.registry.hello(replace(site.made["w"].hello, sender="u", name="u"), site.clock()),
        lambda: site.queue.drop(next(iter(site.queue)), site.clock()),
        change_seats,
    ]
    for change in changes:
        site.admissions.dispatch()
        assert stands()
        change()
        assert not stands(), changes.index(change)
    found = asked(site)
    site.run(3.0)
    assert found, "answers have ended"


@pytest.mark.parametrize("seed", range(examples(4, 40)))
def test_what_is_remembered_is_what_would_be_found(
    tokenizer: Tokenizer, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of several callers, lengths and priorities, whose answers end at all times."""
    site, chance, remembered = EngineSite(tokenizer), Random(seed), [0]
    real = RoomMemory.lasts

    def lasts(memory: RoomMemory, state: Any) -> bool:
        if not real(memory, state):
            return False
        remembered[0] += 1
        memory.full = None
        assert site.admissions.generating.next_with_room() is None
        return True

    monkeypatch.setattr(RoomMemory, "lasts", lasts)
    for name in ("w", "v"):
        site.worker(name, SEATS)
    streams = []
    for _ in range(40):
        streams.append(
            site.ask(
                chance.choice("abc"), chance.randint(1, SEATS), chance.randint(1, 30), length=chance.randint(5, 300)
            )
        )
        site.run(chance.random() / 4)
    site.run(60.0)
    assert remembered[0] and all(as_alone(stream.request) for stream in streams)
