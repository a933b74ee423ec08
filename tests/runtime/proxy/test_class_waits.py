# SPDX-License-Identifier: Apache-2.0
"""Refusals by class, classes without shares, and idle capacity that is held against nobody
(docs/guide/contracts.md), with the real admission and real schedulers, in virtual time."""

from random import Random

import pytest
from engine_site import EngineSite, as_alone

from pontil.runtime.errors import Unavailable
from pontil.runtime.foundation.fair_share import GUARANTEED, ServiceClass
from pontil.runtime.proxy.requests.stream import Stream
from pontil.runtime.tokenizer.tokenizer import Tokenizer

INTERACTIVE, STANDARD, BATCH = ServiceClass
SEATS, TOKENS, LENGTH = 2, 100, 60


def asked(
    site: EngineSite, each: ServiceClass, caller: str = "a", share: float = 1.0, tokens: int = TOKENS,
    length: int = LENGTH,
) -> Stream:  # fmt: skip
    return site.ask(caller, 1, tokens, share, each.place(), length)


def retry_after(site: EngineSite, each: ServiceClass, length: int = LENGTH) -> float | None:
    """Return after how many seconds one more request of this class is to come again; None if it is let in."""
    try:
        asked(site, each, length=length).cancel()
    except Unavailable as error:
        assert "the wait for a first token is about" in str(error)
        return error.retry_after
    return None


def crowded(tokenizer: Tokenizer, crowd: ServiceClass) -> EngineSite:
    """Return a site where so many requests of this class wait that one more of it is refused."""
    site = EngineSite(tokenizer)
    site.worker("w", SEATS)
    site.measure()
    for _ in range(2 * SEATS):
        asked(site, crowd)
    site.run(10.0)
    with pytest.raises(Unavailable):
        while True:
            asked(site, crowd)
            site.run(0.01)
    return site


def test_who_waits_for_too_long_is_refused_at_once_with_the_time_of_its_class(tokenizer: Tokenizer) -> None:
    site = crowded(tokenizer, STANDARD)
    assert retry_after(site, INTERACTIVE) is None, "nothing is ahead of it"
    assert retry_after(site, STANDARD) is not None
    assert retry_after(site, BATCH) is None, "a twentieth is its own"
    site = crowded(tokenizer, INTERACTIVE)
    assert retry_after(site, INTERACTIVE) is not None
    assert retry_after(site, STANDARD) is None, "a quarter is its own"


def test_the_first_batch_request_that_would_wait_for_too_long_is_refused_at_once(tokenizer: Tokenizer) -> None:
    """Those of other classes that wait are before it, though nothing else of its own class waits."""
    site = crowded(tokenizer, STANDARD)
    assert not len(site.admissions.generating.background)
    assert retry_after(site, BATCH, length=600) is not None and retry_after(site, INTERACTIVE, length=600) is None


@pytest.mark.parametrize("each", [STANDARD, BATCH])
def test_who_comes_again_as_often_as_it_was_told_to_is_let_in_and_served_in_time(
    tokenizer: Tokenizer, each: ServiceClass
) -> None:
    site = crowded(tokenizer, STANDARD)
    tries = 0
    while (seconds := retry_after(site, each, length=600)) is not None:
        tries += 1
        site.run(seconds)
    stream = asked(site, each, tokens=2, length=600)
    site.run(site.queue.deadline)
    assert 0 < tries <= 5 and stream.request.complete and as_alone(stream.request)


def test_a_batch_request_is_let_in_where_nothing_waits_whatever_was_measured(tokenizer: Tokenizer) -> None:
    site = EngineSite(tokenizer)
    site.worker("w", SEATS)
    site.measure()
    site.queue.rate.stay.value = 1e6
    assert retry_after(site, BATCH) is None


def test_without_fairness_classes_stay_and_shares_do_not_count(tokenizer: Tokenizer) -> None:
    site = EngineSite(tokenizer, fair=False)
    worker = site.worker("w", SEATS)
    site.measure()
    batch = [asked(site, BATCH) for _ in range(SEATS)]
    site.run(0.2)
    assert worker.world.queues.seats.lent == SEATS
    modest = [asked(site, STANDARD, "modest", 1.0) for _ in range(8)]
    rich = [asked(site, STANDARD, "rich", 100.0) for _ in range(8)]
    site.run(0.1)
    assert worker.world.queues.seats.lent == 0, "who gives way gives its seats"
    first = [asked(site, INTERACTIVE, "last") for _ in range(2)]
    site.run(120.0)
    streams = [*batch, *modest, *rich, *first]
    assert all(stream.request.complete and as_alone(stream.request) for stream in streams)
    begun = sorted([*modest, *rich, *first], key=lambda stream: stream.request.times.first_token or 0.0)
    seated = [stream for stream in begun if stream in modest][: SEATS + 2]
    others = [stream for stream in begun if stream not in seated]
    assert others == [*first, *modest[len(seated) :], *rich], "the interactive ones next, then all as they came"


def served(streams: list[Stream]) -> int:
    return sum(len(stream.request.prompt) + len(answer.ids) for stream in streams for answer in stream.request.answers)


def test_what_a_key_or_class_had_alone_is_held_against_it_no_later(tokenizer: Tokenizer) -> None:
    """The class batch, and then one key, has everything for a while. Then all come, and each has its part from then."""
    site, random = EngineSite(tokenizer), Random(3)
    site.worker("w", SEATS)
    site.measure()
    classes = {"night": BATCH, "early": STANDARD, "late": STANDARD}
    streams: dict[str, list[Stream]] = {name: [] for name in classes}

    def go_on(steps: int, *names: str) -> dict[str, int]:
        for _ in range(steps):
            for name in names:
                waiting = sum(not stream.request.attempts.phases for stream in streams[name])
                for _ in range(SEATS + 3 - waiting):
                    streams[name].append(
                        asked(site, classes[name], name, tokens=random.randint(8, 10), length=random.randint(2, 4))
                    )
            site.run(0.1)
        return {name: served(made) for name, made in streams.items()}

    assert go_on(60, "night")["night"] > 300
    before = go_on(60, "early")
    assert before["early"] > 300
    after = go_on(120, *classes)
    had = {name: after[name] - before[name] for name in classes}
    assert abs(had["early"] - had["late"]) <= 0.1 * sum(had.values()), had
    assert had["night"] >= 0.8 * GUARANTEED[BATCH] * sum(had.values()), had
