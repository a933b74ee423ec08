# SPDX-License-Identifier: Apache-2.0
"""Fairness while another caller is greedy, judged by small requests that are sent all the time; pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from pontil.launcher.tools.chaos.disturber import FaultRecord
from pontil.launcher.tools.chaos.fault_plan import GREED

# Seconds that a small request may wait for its first token beside greed, or so many times the slowest calm one's: the
# verdict shall not depend on the machine's speed.
MOST_WAIT, TIMES_CALM = 2.0, 4.0
Window = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ProbeRecord:
    """A small request, in seconds of the monotonic clock: `answered` is when its token came, and `problem` why none
    did."""

    sent: float
    ended: float
    answered: float | None = None
    problem: str = ""

    def meets(self, windows: Sequence[Window]) -> bool:
        return any(self.sent <= end and self.ended >= start for start, end in windows)

    def wait(self, excused_windows: Sequence[Window] = ()) -> float:
        """Return the wait for the token, without the seconds in the windows."""
        at = self.ended if self.answered is None else self.answered
        pieces, since = 0.0, self.sent
        for start, end in sorted(excused_windows):
            pieces += max(0.0, min(start, at) - since)
            since = max(since, end)
        return pieces + max(0.0, at - since)


@dataclass(frozen=True, slots=True)
class FairnessVerdict:
    """The probes while greed lasted: how many were sent, how many had no token and none of another fault's making, and
    the slowest wait; `calm` is the slowest wait without any fault, and `problems` are those of the first that broke
    it."""

    sent: int
    refused: int
    late: int
    slowest: float
    calm: float | None
    most: float
    problems: tuple[str, ...] = ()

    @property
    def held(self) -> bool:
        return self.sent > 0 and not self.refused and not self.late

    def describe(self) -> str:
        calm = "" if self.calm is None else f", {self.calm:.2f} s at other times"
        counts = f"{self.sent} small requests beside greed, {self.refused} refused or lost, {self.late} late"
        return f"{counts}, the slowest token after {self.slowest:.2f} s (limit {self.most:.2f} s{calm})"


def fairness(probes: Sequence[ProbeRecord], faults: Sequence[FaultRecord]) -> FairnessVerdict | None:
    """Judge the probes that met greed; None if there was none. Seconds of another fault are taken off a wait, and one
    that failed beside such a fault is excused."""
    actual_faults = [fault for fault in faults if fault.took_place]
    greedy = [window_of(fault) for fault in actual_faults if fault.planned.variant == GREED]
    other_windows = [window_of(fault) for fault in actual_faults if fault.planned.variant != GREED]
    if not greedy:
        return None
    calm = [
        probe.wait() for probe in probes if probe.answered is not None and not probe.meets([*greedy, *other_windows])
    ]
    most = max(MOST_WAIT, TIMES_CALM * max(calm, default=0.0))
    judged_probes = [probe for probe in probes if probe.meets(greedy)]
    refused_probes = [probe for probe in judged_probes if probe.answered is None and not probe.meets(other_windows)]
    waits = [probe.wait(other_windows) for probe in judged_probes if probe.answered is not None]
    return FairnessVerdict(
        len(judged_probes),
        len(refused_probes),
        sum(wait > most for wait in waits),
        max(waits, default=0.0),
        max(calm, default=None),
        most,
        tuple(dict.fromkeys(probe.problem for probe in refused_probes)),
    )


def window_of(fault: FaultRecord) -> Window:
    return fault.begun, max(fault.ended, fault.recovered)
