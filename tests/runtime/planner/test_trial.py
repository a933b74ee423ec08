# SPDX-License-Identifier: Apache-2.0
"""Loads on planned sites, in virtual time: the product's own proxy, scheduler, cache and handoff."""

import random
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import pytest
from recorded_profile import small_profile
from virtual_fork import in_virtual_time

from pontil.runtime.planner.device_profile import DiskTimes, DraftTimes, HostTimes
from pontil.runtime.planner.planned_clients import PlannedClients
from pontil.runtime.planner.planned_site import PlannedSite, PlannedTopology, planned_model
from pontil.runtime.planner.planned_tiers import TierBlocks
from pontil.runtime.planner.planned_worker import PlannedModel
from pontil.runtime.planner.shared_cores import OwnCores
from pontil.runtime.planner.trial import Asked, PlannedLoad, PlannedTrial

MIXED, MIXED_TWO = PlannedTopology(0, 0, 1, "auto"), PlannedTopology(0, 0, 2, "auto")
PAIR = PlannedTopology(1, 1, 0, "always")
PROMPT, ANSWER = 64, 6


@pytest.fixture(scope="module")
def model() -> PlannedModel:
    return planned_model(small_profile())


def questions(shared: int = 0) -> Iterator[Asked]:
    chance, number = random.Random(1), 0
    first = [chance.randrange(100, 1000) for _ in range(shared)]
    while number < 1000:
        number += 1
        yield [*first, *(chance.randrange(100, 1000) for _ in range(PROMPT - shared))], ANSWER


def again_and_again() -> Iterator[Asked]:
    """Yield prompts that come back after others of several times the tokens of a small pool."""
    prompts = [[100 * number + place for place in range(1, PROMPT + 1)] for number in range(1, 9)]
    while True:
        yield from ((prompt, ANSWER) for prompt in prompts)


def cached(model: PlannedModel) -> int:
    """Return how many tokens of such prompts were not computed again."""
    site = PlannedSite(MIXED, model, 1)
    report = PlannedTrial(site, PlannedLoad(24, 1), again_and_again()).run()
    site.close()
    assert not site.world.failures and all(one.failure is None for one in report.requests)
    return sum(one.cached_tokens for one in report.requests)


def disks(model: PlannedModel, milliseconds: float) -> PlannedModel:
    """Return the model with a tier on a disk, from which a block is read first in so many milliseconds."""
    profile = replace(model.profile, disk=DiskTimes(0.5, 0.2, milliseconds))
    return replace(model, profile=profile, tier_blocks=TierBlocks(disk=64))


def run_drafts(model: PlannedModel, accepted: float | None) -> dict[str, Any]:
    """Put longer answers on a worker whose draft model guesses right with this chance, or that has none."""
    drafts = replace(
        model.profile,
        draft=DraftTimes("small", 1024, 1 << 18, 0.1, ((1.0, 0.0, 0.5), (64.0, 0.0, 4.0)), ((1.0, 0.5), (64.0, 2.0))),
    )
    made = model if accepted is None else replace(model, profile=drafts, drafts=True, guesses=6, accepted=accepted)
    site = PlannedSite(MIXED, made, 1)
    asked = ((prompt, 96) for prompt, _ in questions())
    report = PlannedTrial(site, PlannedLoad(4, 2), asked).run()
    (worker,) = site.workers
    drafted, pool = worker.worker.machine.engine.drafted, worker.worker.machine.pool.capacity
    assert not site.world.failures and all(one.tokens == 96 for one in report.requests)
    site.close()
    return {"seconds": report.seconds, "drafted": drafted, "pool": pool}


def run(model: PlannedModel, topology: PlannedTopology, load: PlannedLoad, shared: int = 0) -> dict[str, Any]:
    site = PlannedSite(topology, model, load.seed)
    report = PlannedTrial(site, load, questions(shared)).run()
    assert not site.world.failures
    site.close()
    return asdict(report)


def test_a_turn_of_the_proxy_is_paid_once_for_all_events_that_come_in_it(model: PlannedModel) -> None:
    """Four streams whose tokens come in one message each have them later by one turn, and not by four."""
    host = replace(model.profile.host, proxy_turn=5.0)
    slow = replace(model, profile=replace(model.profile, host=host))
    load = PlannedLoad(4, 4)
    quick, late = in_virtual_time(lambda: [run(one, MIXED, load)["requests"] for one in (model, slow)])
    delays = [
        later - sooner
        for one, other in zip(quick, late, strict=True)
        for sooner, later in zip(one["arrivals"], other["arrivals"], strict=True)
    ]
    assert len(delays) == 4 * ANSWER and min(delays) == pytest.approx(0.005, abs=1e-3)
    assert max(delays) < 0.010


def test_clients_pay_a_turn_for_events_that_come_while_they_read_none() -> None:
    clients = PlannedClients(OwnCores(), HostTimes(0.0, 0.0, 0.0, 0.0, 0.0, client_event=2.0, client_turn=10.0))
    assert [clients.hear(at) for at in (1.0, 1.001, 2.0)] == pytest.approx([1.012, 1.014, 2.012])
    assert [PlannedClients(OwnCores(), None).hear(at) for at in (1.0, 1.0)] == [1.0, 1.0]


def test_steps_vary_about_their_means_as_the_seed_decides(model: PlannedModel) -> None:
    """Streams of two workers that began together part in time, and none takes longer on the average."""
    times = replace(model.profile.times, decode_variation=0.1, prompt_variation=0.2)
    varied = replace(model, profile=replace(model.profile, times=times))

    def work() -> list[dict[str, Any]]:
        return [run(one, MIXED_TWO, PlannedLoad(64, 8)) for one in (model, varied, varied)]

    even, uneven, again = in_virtual_time(work)
    assert uneven == again and uneven["seconds"] == pytest.approx(even["seconds"], rel=0.05)
    waits = [sorted(one["arrivals"][0] - one["sent"] for one in some["requests"][-16:]) for some in (even, uneven)]
    alike, unlike = (some[11] - some[4] for some in waits)
    assert unlike > 3 * alike


def test_a_worker_that_died_is_back_after_the_time_of_a_restart(model: PlannedModel) -> None:
    quick = replace(model, profile=replace(model.profile, host=replace(model.profile.host, restart_seconds=0.1)))
    load = PlannedLoad(4, 1, kills="mixed")

    def work() -> list[dict[str, Any]]:
        return [run(one, MIXED, load) for one in (model, quick)]

    slow, fast = in_virtual_time(work)
    assert slow["seconds"] - fast["seconds"] == pytest.approx(model.profile.host.start_seconds - 0.1, rel=0.01)


def test_loads_have_the_times_of_their_steps(model: PlannedModel) -> None:
    """One fork tries what each test of its own would pay for."""

    def work() -> dict[str, Any]:
        one = run(model, MIXED, PlannedLoad(4, 1))
        host = replace(model.profile.host, client_request=1.0, client_event=2.0)
        with_clients = replace(model, cores=2, has_clients=True, profile=replace(model.profile, host=host))
        return {
            "one": one,
            "again": run(model, MIXED, PlannedLoad(4, 1)),
            "many": run(model, MIXED, PlannedLoad(12, 6)),
            "pair": run(model, PAIR, PlannedLoad(6, 2)),
            "cached": run(model, MIXED, PlannedLoad(4, 1), shared=48),
            "killed": [run(model, MIXED_TWO, PlannedLoad(24, 4, kills=role)) for role in (None, "mixed")],
            "killed pair": run(model, PAIR, PlannedLoad(12, 3, kills="prefill")),
            "two": run(model, MIXED_TWO, PlannedLoad(8, 4)),
            "two on one core": run(replace(model, cores=1), MIXED_TWO, PlannedLoad(8, 4)),
            "clients": run(with_clients, MIXED, PlannedLoad(4, 1)),
            "open": run(model, MIXED, PlannedLoad(20, 1, 100.0, 3)),
        }

    told = in_virtual_time(work)
    assert told["one"] == told["again"]
    # A prompt of 64 tokens takes 10 + 32 + 2 ms, a step of one row about 11.1 ms, each turn 0.1 ms.
    for one in told["one"]["requests"]:
        assert one["failure"] is None and one["tokens"] == ANSWER and one["cached_tokens"] == 0
        assert one["arrivals"][0] - one["sent"] == pytest.approx(0.046, rel=0.05)
        per_token = (one["arrivals"][-1] - one["arrivals"][0]) / (ANSWER - 1)
        assert per_token == pytest.approx(0.0112, rel=0.05)
    assert told["many"]["seconds"] < 3 * told["one"]["seconds"] * 12 / 4
    assert told["pair"]["busy"].keys() == {"prefill", "decode"}
    assert all(one["tokens"] == ANSWER for name in ("many", "pair", "open") for one in told[name]["requests"])
    assert [one["cached_tokens"] for one in told["cached"]["requests"]] == [0, 48, 48, 48]
    # A request of the worker that dies is answered by another one, or when it is back.
    for load in (*told["killed"], told["killed pair"]):
        assert all(one["failure"] is None and one["tokens"] == ANSWER for one in load["requests"])
    whole, killed = told["killed"]
    assert killed["seconds"] > whole["seconds"]
    # Workers that share a core have half of it each, or a little more where one of them waits.
    assert 1.5 < told["two on one core"]["seconds"] / told["two"]["seconds"] < 2.2
    # A client takes 1 ms to send a request and 2 ms to read each event: that of one stream is busy for none of a step.
    for one, other in zip(told["one"]["requests"], told["clients"]["requests"], strict=True):
        assert other["arrivals"][0] - other["sent"] == pytest.approx(one["arrivals"][0] - one["sent"] + 0.003, abs=1e-3)
    # More is asked for than a worker can do: it is busy all the time, and nothing is answered faster than that.
    assert told["open"]["busy"]["mixed"] > 0.9
    assert len(told["open"]["requests"]) / told["open"]["seconds"] < 100.0


def test_tiers_and_models_that_draft_have_their_times(model: PlannedModel) -> None:
    def work() -> dict[str, Any]:
        small = planned_model(small_profile(blocks=17))
        return {
            "small": [cached(small), cached(replace(small, tier_blocks=TierBlocks(memory=64)))],
            "disks": [cached(disks(small, milliseconds)) for milliseconds in (1.0, 20.0)],
            "both": cached(replace(disks(small, 1.0), tier_blocks=TierBlocks(8, 64))),
            "drafts": [run_drafts(model, accepted) for accepted in (None, 0.9, 0.0)],
        }

    told = in_virtual_time(work)
    # Eight prompts of four blocks in turn do not fit into 16 of them; those that are evicted are in the tier.
    assert told["small"] == [0, 16 * (PROMPT - 1)]
    # A disk does as well, if it is not slower than computing.
    assert told["disks"] == [told["small"][1], 0] and told["both"] == told["small"][1]
    # A draft model that is often right saves steps; one that never is costs a small part of them. Both models have
    # their KV in the memory of the one.
    plain, often, never = told["drafts"]
    assert often["seconds"] < 0.7 * plain["seconds"] < plain["seconds"] < never["seconds"] < 1.1 * plain["seconds"]
    assert often["drafted"] > 10 * never["drafted"] > 0 == plain["drafted"]
    assert (often["pool"], plain["pool"]) == (1024 * 4096 // 5120 - 1, 1023)
