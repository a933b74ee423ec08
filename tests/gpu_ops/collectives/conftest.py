# SPDX-License-Identifier: Apache-2.0
"""Four processes, started once, that are the ranks of one group after the other."""

from collections.abc import Iterator

import kernels
import pytest
from rank_processes import RankProcesses


@pytest.fixture(scope="session")
def started_processes() -> Iterator[RankProcesses]:
    kernels.opened().close()
    processes = RankProcesses(4)
    yield processes
    processes.close()


@pytest.fixture
def processes(started_processes: RankProcesses) -> RankProcesses:
    started_processes.revive()
    return started_processes
