# SPDX-License-Identifier: Apache-2.0
"""The gate of a rollout: a record that is replayed at workers which are held, before anything else is sent to them."""

from collections.abc import Mapping
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
    """The record, the server whose proxy reaches the workers with the key to show it, and the seconds for one
    worker."""

    record: "Record"
    url: str
    key: Mapping[str, str]
    seconds: float

    def judge(self, workers: list[str]) -> str:
        """Return the first difference, in words, of the answers of these workers; nothing where all are equal."""
        try:
            outcome = replay(self.record, ReplayTarget(self.url, self.key, workers), self.seconds, AT_ONCE)
        except (LaunchError, OptionError) as error:
            return error.message
        return verdict_on(outcome)


def verdict_on(outcome: ReplayOutcome) -> str:
    """Return the first difference, in words; nothing where there is none."""
    lines = outcome.lines
    more = f"; {outcome.summary}" if len(lines) > 1 else ""
    return f"{lines[0]}{more}" if lines else ""


def open_gate(file: Path, url: str | None, key: Mapping[str, str], seconds: float) -> RolloutGate:
    """Return the gate, once it is known that it can be asked. Raises OptionError."""
    if url is None:
        raise OptionError("This launch joined a proxy elsewhere: say with --url where it serves clients, for --gate.")
    record = load_record(file)
    worker_rows(full_url(url), key)
    return RolloutGate(record, full_url(url), key, seconds)
