# SPDX-License-Identifier: Apache-2.0
"""The gate of a rollout: a record that is replayed at workers which are held, before anything else is sent to them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pontil.launcher.foundation.errors import LaunchError, OptionError
from pontil.launcher.foundation.server_url import full_url
from pontil.launcher.receipts.replay import ReplayOutcome, ReplayTarget, load_record, replay, worker_rows

if TYPE_CHECKING:
    from pontil.runtime.receipts.record import Record

AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class RolloutGate:
    """The record, the server whose proxy reaches the workers with the key to show it, the seconds for one worker, and
    where it is told how many answers were compared."""

    record: "Record"
    url: str
    key: Mapping[str, str]
    seconds: float
    tell: Callable[[str], None]

    def judge(self, workers: list[str]) -> str:
        """Return why these workers are not to serve, in words; nothing where all of their answers that can be compared
        are equal, and each has such."""
        try:
            outcome = replay(self.record, ReplayTarget(self.url, self.key, workers), self.seconds, AT_ONCE)
        except (LaunchError, OptionError) as error:
            return error.message
        verdict = verdict_on(outcome, workers)
        if not verdict:
            self.tell(f"{', '.join(workers)}: {outcome.summary}")
        return verdict


def verdict_on(outcome: ReplayOutcome, workers: Sequence[str]) -> str:
    """Return the first difference, in words, or that a worker was not tried at all; nothing where there is neither. A
    request that was recorded with another adapter tells nothing of a worker."""
    lines = [line for one in outcome.different if one.is_comparable for line in one.lines]
    if lines:
        return f"{lines[0]}; {outcome.summary}" if len(outcome.different) > 1 else lines[0]
    if untried := outcome.untried(workers):
        return f"nothing in the record tries {', '.join(untried)}{outcome.left_out}: record what is answered now"
    return ""


def open_gate(
    file: Path, url: str | None, key: Mapping[str, str], seconds: float, tell: Callable[[str], None]
) -> RolloutGate:
    """Return the gate, once it is known that it can be asked. Raises OptionError."""
    if url is None:
        raise OptionError("This launch joined a proxy elsewhere: say with --url where it serves clients, for --gate.")
    record = load_record(file)
    worker_rows(full_url(url), key)
    return RolloutGate(record, full_url(url), key, seconds, tell)
