# SPDX-License-Identifier: Apache-2.0
"""The plan of faults: the same for the same seed, complete, and never more than a launch can bear."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.launcher.tools.chaos.command import ALL_FAULTS
from pontil.launcher.tools.chaos.fault_plan import (
    CALLER,
    CUT,
    DISK,
    FAULTS,
    FILL,
    GREED,
    KILL,
    LONG_STOP,
    OF_PROXIES,
    PLACES,
    PROXY,
    PULLING,
    SHORT_STOP,
    VARIANTS,
    ChaosTarget,
    PlanFacts,
    PlannedFault,
    left_out,
    plan_faults,
)

ROLES = ("prefill", "decode", "mixed")


def workers(drawn: list[tuple[str, int]]) -> tuple[ChaosTarget, ...]:
    return tuple(ChaosTarget(f"{role}:{number}", role, ranks) for number, (role, ranks) in enumerate(drawn))


TARGETS = st.lists(st.tuples(st.sampled_from(ROLES), st.integers(1, 3)), min_size=2, max_size=6).map(workers)
FOLDERS = st.sampled_from([(), ("/small",)])
PROXIES = st.integers(0, 3).map(lambda count: tuple(ChaosTarget(f"proxy:{number}", PROXY) for number in range(count)))
CALLERS = st.sampled_from([(), ("another",)])
FACTS = st.builds(
    PlanFacts, st.floats(1.0, 5.0), st.integers(0, 10), st.floats(10.0, 300.0), TARGETS, FOLDERS, PROXIES, CALLERS
)
SOME = st.lists(st.sampled_from(FAULTS), min_size=1, max_size=5, unique=True)


def spans(plan: Sequence[PlannedFault]) -> list[tuple[float, float, str]]:
    return [(one.at, one.at + one.seconds, one.role) for one in plan]


@given(st.integers(0, 10_000), st.floats(0.01, 8.0), SOME, FACTS)
def test_a_plan_is_repeatable_complete_and_bearable(
    seed: int, minutes: float, faults: list[str], facts: PlanFacts
) -> None:
    plan = plan_faults(seed, minutes, faults, facts)
    assert plan == plan_faults(seed, minutes, faults, facts)
    assert [one.at for one in plan] == sorted(one.at for one in plan)
    impossible = left_out(faults, facts)
    left = [fault for fault in faults if fault not in impossible]
    possible = {(variant, False) for fault in left for variant in VARIANTS[fault]}
    if len(facts.proxies) > 1:
        possible |= {(variant, True) for fault in left if fault in OF_PROXIES for variant in VARIANTS[fault]}
    assert {one.kind for one in plan} <= possible
    if facts.deaths:
        # Two workers and two proxies may die once each, at least.
        assert {one.kind for one in plan} == possible
    names = {target.name: target for target in facts.workers + facts.proxies}
    for one in plan:
        assert (one.role == DISK) == (one.variant == FILL) and (one.role == CALLER) == (one.variant == GREED)
        assert one.variant in PLACES or one.rank < names[one.target].ranks
        assert one.variant != CUT or one.role in PULLING
        assert one.seconds < facts.silence or one.variant != SHORT_STOP
        assert one.seconds > facts.silence or one.variant != LONG_STOP
    for name in names:
        deaths = [one.at for one in plan if one.target == name and one.is_deadly]
        for at in deaths:
            assert sum(at - facts.restart_window <= other <= at for other in deaths) <= max(facts.deaths, 0)


@given(st.integers(0, 10_000), FACTS)
def test_at_most_two_faults_overlap_and_never_of_one_role(seed: int, facts: PlanFacts) -> None:
    found = spans(plan_faults(seed, 5.0, FAULTS, facts))
    for begun, _, _ in found:
        roles = [role for start, end, role in found if start <= begun <= end]
        assert len(roles) <= 2 and len(set(roles)) == len(roles)
        # Where two workers serve, one of them is disturbed only beside a proxy.
        assert len(roles) == 1 or PROXY in roles or len(facts.workers) > 2


def test_one_proxy_is_left_alone_and_changes_no_plan() -> None:
    without = PlanFacts(3.0, 5, 120.0, workers([("prefill", 1), ("decode", 2)]), ("/small",))
    one = replace(without, proxies=(ChaosTarget("proxy", PROXY),))
    assert plan_faults(7, 2.0, FAULTS, one) == plan_faults(7, 2.0, FAULTS, without)
    assert "proxies" not in left_out(FAULTS, without) and "has one, and nobody" in left_out(FAULTS, one)["proxies"]
    assert "proxies" not in left_out([CUT, FILL], one)
    both = replace(without, proxies=(ChaosTarget("proxy:0", PROXY), ChaosTarget("proxy:1", PROXY)))
    assert "proxies" not in left_out(FAULTS, both)
    assert {one.target for one in plan_faults(7, 5.0, FAULTS, both) if one.role == PROXY} == {"proxy:0", "proxy:1"}


def test_another_seed_is_another_plan_and_minutes_make_it_longer() -> None:
    facts = PlanFacts(3.0, 5, 120.0, workers([("prefill", 1), ("decode", 1)] * 2), ("/small",), callers=("another",))
    short, other, long = (plan_faults(*one, FAULTS, facts) for one in ((1, 0.01), (2, 0.01), (1, 5.0)))
    assert len(short) == 8 and short != other and long[:8] == short and len(long) > 30
    assert max(one.at + one.seconds for one in long) <= 300
    assert {one.fault for one in long} == set(FAULTS) == set(ALL_FAULTS)


@pytest.mark.parametrize(
    ("facts", "fault", "reason"),
    [
        (PlanFacts(3.0, 5, 120.0, (ChaosTarget("prefill:0", "prefill"),) * 2), CUT, "no worker here pulls"),
        (PlanFacts(3.0, 5, 120.0, (ChaosTarget("mixed:0", "mixed"),) * 2), CUT, "no prefill worker"),
        (PlanFacts(3.0, 5, 120.0, (ChaosTarget("mixed:0", "mixed"),) * 2), FILL, "no small filesystem"),
        (PlanFacts(3.0, 0, 120.0, (ChaosTarget("mixed:0", "mixed"),) * 2), KILL, "--restart-attempts 0"),
        (PlanFacts(3.0, 5, 120.0, (ChaosTarget("mixed:0", "mixed"),) * 2), GREED, "a second one (--greedy-key)"),
    ],
)
def test_what_is_impossible_is_left_out_with_a_reason(facts: PlanFacts, fault: str, reason: str) -> None:
    assert reason in left_out(FAULTS, facts)[fault]
    assert fault not in {one.fault for one in plan_faults(0, 1.0, FAULTS, facts)}
