# SPDX-License-Identifier: Apache-2.0
"""Proxies are restarted one after the other, each only while all others serve."""

from hypothesis import given
from hypothesis import strategies as st

from pontil.launcher.child.child_state import ChildState
from pontil.launcher.supervisor.rollouts.proxy_restarts import (
    MARGIN,
    ProxyAction,
    ProxyRestarts,
    ProxyStep,
    advance_proxies,
)
from pontil.launcher.supervisor.rollouts.rollout import RolloutLimits

READY, EXITED, STARTING = ChildState.READY, ChildState.EXITED, ChildState.STARTING
LIMITS = RolloutLimits(5.0, 60.0)


def test_each_is_drained_ends_and_is_renewed_before_the_next() -> None:
    change, states, done = ProxyRestarts(("a", "b"), LIMITS), {"a": READY, "b": READY}, list[tuple[str, ProxyAction]]()
    while not change.is_over:
        name = change.left[0]
        move = advance_proxies(change, states, 1.0)
        if move is None:
            states[name] = {ProxyStep.ENDS: EXITED, ProxyStep.STARTS: READY}[change.step]
            continue
        change, action = move
        done += [(name, action)] if action is not None else []
    assert done == [(name, action) for name in "ab" for action in (ProxyAction.DRAIN, ProxyAction.RENEW)]
    assert change.failure is None


def test_one_that_does_not_end_is_killed_and_one_that_does_not_come_ends_the_change() -> None:
    change, states = ProxyRestarts(("a", "b"), LIMITS), {"a": READY, "b": READY}
    drained = advance_proxies(change, states, 0.0)
    assert drained is not None and drained[1] is ProxyAction.DRAIN
    assert advance_proxies(drained[0], states, 5.0) is None
    killed = advance_proxies(drained[0], states, 5.1 + MARGIN)
    assert killed is not None and killed[1] is ProxyAction.KILL
    renewed = advance_proxies(killed[0], states | {"a": EXITED}, 13.0)
    assert renewed is not None and renewed[1] is ProxyAction.RENEW
    assert advance_proxies(renewed[0], states | {"a": STARTING}, 14.0) is None
    failed = advance_proxies(renewed[0], states | {"a": STARTING}, 74.0)
    assert failed is not None and failed[0].failure == "a did not come to serve within 60 s" and failed[0].is_over
    waits = advance_proxies(ProxyRestarts(("a", "b"), LIMITS), states | {"b": EXITED}, 61.0)
    assert waits is not None and "b did not come" in str(waits[0].failure)


@given(st.dictionaries(st.sampled_from("abc"), st.sampled_from(ChildState), min_size=3), st.floats(0, 100))
def test_nobody_is_drained_while_another_does_not_serve(states: dict[str, ChildState], now: float) -> None:
    move = advance_proxies(ProxyRestarts(("a", "b", "c"), LIMITS), states, now)
    if move is not None and move[1] is ProxyAction.DRAIN:
        assert all(state is READY for state in states.values())
