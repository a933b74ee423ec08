# SPDX-License-Identifier: Apache-2.0
"""The rules by which a fault may begin, and the pages that tell what it did."""

import pytest

from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.tools.chaos.disturber import may_begin, overlapping
from pontil.launcher.tools.chaos.fault_plan import CUT, KILL, PROXY, STOP, PlannedFault
from pontil.launcher.tools.chaos.launch_facts import ChildFacts, LaunchFacts, read_facts
from pontil.launcher.tools.chaos.launch_rest import effects_of, grown, sums_of

PLANNED = PlannedFault(1.0, KILL, "decode:0", "decode", 0.0)


def child(name: str, ready: bool = True, disturbed: bool = False, given_up: bool = False) -> ChildFacts:
    return ChildFacts(name, name.partition(":")[0], "", 1, ready, (1,), disturbed, given_up, 1)


def facts(*children: ChildFacts) -> LaunchFacts:
    return LaunchFacts(0.0, 3.0, 5, 120.0, None, (), children, ())


@pytest.mark.parametrize(
    ("children", "may"),
    [
        ((child("decode:0"), child("prefill:0")), True),
        ((child("decode:0"), child("decode:1"), child("prefill:0", disturbed=True)), True),
        ((child("decode:0", ready=False), child("prefill:0")), False),
        ((child("decode:0"), child("decode:1", ready=False), child("prefill:0")), False),
        ((child("decode:0"), child("decode:1", disturbed=True), child("prefill:0")), False),
        ((child("decode:0"), child("prefill:0", ready=False)), False),
        ((child("decode:0"),), False),
        ((child("decode:0"), child("proxy:0"), child("proxy:1")), False),
        ((child("decode:0"), child("prefill:0"), child("proxy:0", disturbed=True)), True),
    ],
)
def test_a_fault_begins_where_nobody_else_of_its_role_is_disturbed(children: tuple[ChildFacts, ...], may: bool) -> None:
    assert may_begin(PLANNED, facts(*children)) is may


@pytest.mark.parametrize(
    ("children", "may"),
    [
        ((child("proxy:0"), child("proxy:1"), child("decode:0", disturbed=True)), True),
        ((child("proxy:0"), child("proxy:1", disturbed=True), child("decode:0")), False),
        ((child("proxy:0"), child("proxy:1", ready=False), child("decode:0")), False),
        ((child("proxy:0"), child("decode:0"), child("decode:1")), False),
    ],
)
def test_a_proxy_is_disturbed_while_all_others_serve(children: tuple[ChildFacts, ...], may: bool) -> None:
    assert may_begin(PlannedFault(1.0, KILL, "proxy:0", PROXY, 0.0), facts(*children)) is may


def test_a_worker_that_is_gone_ends_the_trial() -> None:
    for children in ((child("decode:0", given_up=True),), (child("prefill:0"),)):
        with pytest.raises(LaunchError, match="gone from the launch"):
            may_begin(PLANNED, facts(*children))


def test_faults_overlap_where_the_next_begins_before_the_end() -> None:
    first, second = PlannedFault(1.0, STOP, "decode:0", "decode", 3.0), PlannedFault(2.0, CUT, "p", "prefill", 1.0)
    third = PlannedFault(9.0, KILL, "decode:0", "decode", 0.0)
    plan = [first, second, third]
    assert [overlapping(one, plan) for one in plan] == [True, False, False]


def test_series_are_read_and_summed_over_their_labels() -> None:
    page = '# HELP a x\na{b="1"} 2.0\na{b="2 3"} 3\nc 1e3\n\n'
    assert sums_of(page) == {"a": 5.0, 'a{b="1"}': 2.0, 'a{b="2 3"}': 3.0, "c": 1000.0}


def test_a_proxy_that_started_again_counts_from_nothing() -> None:
    """Each of several proxies has its own series; handoffs that succeeded are no effect."""
    done = 'pontil_handoffs_total{proxy="proxy:0",result="done"} 70'
    before = f'pontil_failovers_total{{cause="died",proxy="proxy:0"}} 5\n{done}\npontil_usage_log_failures 2\n'
    after = (
        'pontil_failovers_total{cause="died",proxy="proxy:0"} 1\npontil_failovers_total{proxy="proxy:1"} 3\n'
        'pontil_handoffs_total{proxy="proxy:0",result="failed"} 4\npontil_usage_log_failures 2\n'
    )
    found = grown(effects_of(before), effects_of(after))
    assert found == {"failovers": 4, "failed_handoffs": 4, "failed_writes": 0}


def test_a_supervisor_of_another_version_is_said_to_be_one() -> None:
    with pytest.raises(LaunchError, match="another version"):
        read_facts({"now": 1.0})
