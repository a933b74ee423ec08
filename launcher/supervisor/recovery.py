# SPDX-License-Identifier: Apache-2.0
"""The reaction to a child's exit: a restart after a pause, giving the child up, or the end of the whole launch."""

from collections.abc import Sequence

from pontil.launcher.child.child import Child
from pontil.launcher.child.child_state import ChildState
from pontil.launcher.child.exit_cause import ExitCause
from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.logs.console import Console
from pontil.launcher.supervisor.model_memory import ModelMemory
from pontil.launcher.supervisor.restart_policy import RestartPolicy


class Recovery:
    """Decides by the restart policy and logs it on the console; the child then waits or is given up. One that is
    refused is given up at once, unless its keys have changed: the proxy may not have these yet. One whose model is not
    needed in memory rests until `models` has it woken."""

    def __init__(self, policy: RestartPolicy, console: Console, models: ModelMemory) -> None:
        self.policy, self.console, self.models = policy, console, models

    def answer(self, child: Child, children: Sequence[Child], is_announced: bool, now: float) -> LaunchError | None:
        """Handle the child's last exit; return the error that ends the launch, if it must end. A launch that was not
        announced yet ends at the first failure that a child reports itself and not because of a rank on another host: a
        restart would fail in the same way."""
        if child.sleeps:
            child.rest()
            return None
        exit_cause = child.exits[-1]
        if (
            exit_cause.failure is not None
            and not exit_cause.is_consequence
            and not child.ever_ready
            and not is_announced
        ):
            name = exit_cause.follower or child.name
            return exit_cause.error(f"{name} could not start: {exit_cause.failure}")
        delay = self.delay(child, exit_cause, now)
        child.wait_or_give_up(delay, now)
        what_follows = " and is given up" if delay is None else f"; starting it again in {delay:.1f} s"
        self.console.line(f"{child.name} {exit_cause.describe()}{what_follows}")
        if exit_cause.violent or delay is None:
            self.show_last_words(exit_cause.follower or child.name, exit_cause)
        return None if delay is not None else nobody_serves(child, children)

    def delay(self, child: Child, exit_cause: ExitCause, now: float) -> float | None:
        if exit_cause.refused:
            return self.policy.max_delay if child.has_new_keys else None
        return self.policy.delay([cause.at for cause in child.exits], now)

    def show_last_words(self, name: str, exit_cause: ExitCause) -> None:
        self.console.line(f"the last lines of {name} were:" if exit_cause.lines else f"{name} had said nothing")
        for text in exit_cause.lines:
            self.console.child_line(name, text)


def nobody_serves(lost: Child, children: Sequence[Child]) -> LaunchError | None:
    """Return the error that ends a launch that can serve no request. One child's exit alone never ends another
    child."""
    if lost.plan.is_proxy:
        if any(child.plan.is_proxy and child.state is not ChildState.GIVEN_UP for child in children):
            return None
        return LaunchError("The proxy keeps dying: nobody can be served (see its last lines above).")
    if any(child.state is not ChildState.GIVEN_UP for child in children if child.plan.role != "proxy"):
        return None
    return lost.exits[-1].error("Every worker is given up: nobody can be served (see the last lines above).")
