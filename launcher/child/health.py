# SPDX-License-Identifier: Apache-2.0
"""Health of a child, judged from its reports and its CPU activity alone."""

from dataclasses import dataclass

from pontil.launcher.child.child_state import ChildState


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """Upper limits on each kind of silence, in seconds."""

    # Limit for what a child itself does to start. A worker then waits for its proxy for as long as that takes.
    start: float = 600.0
    # Loading holds Python's lock for long at a time, and heartbeats need it.
    start_silence: float = 60.0
    silence: float = 3.0
    # Limit for a process that computes meanwhile: one long call that holds Python's lock delays heartbeats.
    busy: float = 30.0
    stuck_step: float = 30.0
    closed_pipe: float = 1.0


@dataclass(frozen=True, slots=True)
class HealthSigns:
    """The observations of one process, in monotonic seconds. `step_age` and `working` are as old as the last heartbeat.

    `waits` is true once a starting process only waits for a proxy, or for other ranks.
    `busy_at` is when it was last seen to compute (activity.py); None until its silence made a sample necessary.
    `closed_at` is when the report pipe ended, which only the end of the process should cause.
    """

    started_at: float
    last_beat: float
    step_age: float = 0.0
    working: bool = False
    waits: bool = False
    closed_at: float | None = None
    busy_at: float | None = None


def judge(state: ChildState, signs: HealthSigns, limits: HealthLimits, now: float) -> str | None:
    """Return why a child in this state must be killed, in words that follow its name; None while it is healthy.

    Progress while starting does not move the start deadline: a download that never ends is a fault too.
    """
    if not state.alive or state is ChildState.KILLED:
        return None
    if signs.closed_at is not None and now - signs.closed_at > limits.closed_pipe:
        return "closed its report pipe but did not exit"
    if state is ChildState.STARTING:
        return judge_start(signs, limits, now)
    return judge_ready(signs, limits, now) if state is ChildState.READY else None


def judge_start(signs: HealthSigns, limits: HealthLimits, now: float) -> str | None:
    silence = now - signs.last_beat
    if now - signs.started_at > limits.start and not signs.waits:
        return f"was not ready after {limits.start:.0f} s (--start-timeout)"
    if silence > limits.start_silence:
        return f"sent no heartbeat for {silence:.0f} s while it started"
    return None


def judge_ready(signs: HealthSigns, limits: HealthLimits, now: float) -> str | None:
    silence = now - signs.last_beat
    if silence > limits.busy:
        return f"computed for {silence:.0f} s without a heartbeat (--busy-timeout)"
    if now - max(signs.last_beat, signs.busy_at or 0.0) > limits.silence:
        return f"sent no heartbeat for {silence:.1f} s"
    if signs.working and signs.step_age + silence > limits.stuck_step:
        return f"made no step for {signs.step_age + silence:.0f} s while work waited"
    return None
