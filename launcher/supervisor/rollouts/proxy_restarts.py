# SPDX-License-Identifier: Apache-2.0
"""The restart of proxies one after the other, as a pure state machine: the table of proxies and the time in, the next
action out."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from pontil.launcher.child.child_state import ChildState
from pontil.launcher.supervisor.rollouts.rollout import RolloutLimits

# Seconds beyond its drain timeout in which a proxy has to end.
MARGIN = 7.0


class ProxyStep(Enum):
    """The state of the proxy whose turn it is: nothing is done yet, it ends, its successor starts."""

    WAITS = "waits"
    ENDS = "ends"
    STARTS = "starts"


class ProxyAction(Enum):
    """An order to the runner about a proxy."""

    DRAIN = "drain"
    KILL = "kill"
    RENEW = "renew"


@dataclass(frozen=True, slots=True)
class ProxyRestarts:
    """The proxies `left` to be restarted, the first of which is at `step` since the time `since`."""

    left: tuple[str, ...]
    limits: RolloutLimits
    step: ProxyStep = ProxyStep.WAITS
    since: float = 0.0
    failure: str | None = None

    @property
    def is_over(self) -> bool:
        return not self.left or self.failure is not None

    def fail(self, reason: str) -> "ProxyRestarts":
        return replace(self, failure=reason)

    def late(self, now: float, limit: float) -> bool:
        return now - self.since > limit

    def turned(self, step: ProxyStep, now: float) -> "ProxyRestarts":
        return replace(self, step=step, since=now)


def advance_proxies(
    change: ProxyRestarts, states: Mapping[str, ChildState], now: float
) -> tuple[ProxyRestarts, ProxyAction | None] | None:
    """Return the next state with what is to be done about the first proxy that is left; None while there is nothing. A
    proxy is drained only while all others serve."""
    if change.is_over:
        return None
    name, state = change.left[0], states.get(change.left[0])
    if change.step is ProxyStep.WAITS:
        return waiting(change, name, states, now)
    if change.step is ProxyStep.ENDS:
        if state is None or not state.alive:
            return change.turned(ProxyStep.STARTS, now), ProxyAction.RENEW
        late = change.late(now, change.limits.drain + MARGIN)
        return (change.turned(ProxyStep.ENDS, now), ProxyAction.KILL) if late else None
    if state is ChildState.READY:
        return replace(change, left=change.left[1:], step=ProxyStep.WAITS, since=now), None
    if change.late(now, change.limits.start):
        return change.fail(f"{name} did not come to serve within {change.limits.start:g} s"), None
    return None


def waiting(
    change: ProxyRestarts, name: str, states: Mapping[str, ChildState], now: float
) -> tuple[ProxyRestarts, ProxyAction | None] | None:
    missing = [peer for peer, state in states.items() if peer != name and state is not ChildState.READY]
    if not missing and states.get(name) is ChildState.READY:
        return change.turned(ProxyStep.ENDS, now), ProxyAction.DRAIN
    if not missing and not states[name].alive:
        return change.turned(ProxyStep.STARTS, now), ProxyAction.RENEW
    if change.late(now, change.limits.start):
        return change.fail(f"{', '.join(missing) or name} did not come to serve within {change.limits.start:g} s"), None
    return None
