# SPDX-License-Identifier: Apache-2.0
"""A worker process around the worker."""

import gc
import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pontil.gpu_ops.collectives.communicator import CollectiveError
from pontil.gpu_ops.device_mark import DeviceLate
from pontil.runtime.errors import RankLost
from pontil.runtime.worker import entry
from pontil.runtime.worker.entry import serve

ROWS, STEPS, PER_ROW = 1000, 20, 10


class MakingProcess:
    """A process whose steps make objects, as many for each row as a token does."""

    def __init__(self) -> None:
        self.collections = self.closed = 0

    def stop(self, number: int = 0, frame: object = None) -> None:
        pass

    def run(self) -> None:
        gc.callbacks.append(self.noted)
        for _ in range(STEPS):
            [[[] for _ in range(PER_ROW)] for _ in range(ROWS)]
        gc.callbacks.remove(self.noted)

    def noted(self, phase: str, about: dict[str, int]) -> None:
        self.collections += phase == "start"

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(
    ("error", "lost"), [(CollectiveError("no"), "a rank: no"), (DeviceLate("no"), "its device: no")]
)
def test_a_worker_says_why_it_cannot_go_on(error: Exception, lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is a fault of its own, which would be logged in full."""

    def fail(*given: object) -> None:
        raise error

    monkeypatch.setattr(entry, "make_process", fail)
    with pytest.raises(RankLost, match=f"decode:0 lost {lost}"):
        entry.run_worker(cast(Any, SimpleNamespace(name="decode:0")), cast(Any, None))


def test_the_collector_looks_seldom_at_the_objects_of_many_rows() -> None:
    process, before = MakingProcess(), gc.get_threshold()
    handlers = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        serve(cast(Any, process))
    finally:
        gc.set_threshold(*before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert process.closed == 1
    # With Python's own threshold there are ten or more in each step.
    assert process.collections <= STEPS
