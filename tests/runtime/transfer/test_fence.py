# SPDX-License-Identifier: Apache-2.0
"""The places of memory fences. No test on x86 can show that they are needed."""

import pytest
import torch
from pair1p1d import DEADLINE, Pair1P1D

from pontil.runtime.cache import storage
from pontil.runtime.disaggregation.states import SendEvent
from pontil.runtime.transfer.connector import Pull


def test_a_fence_stands_between_the_cell_and_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:  # C2
    """There is one on either side, whatever order a processor keeps by itself."""
    both = Pair1P1D("host")
    sent = both.kv_sender.begin("t", "D", 0.0)
    assert sent is not None
    seen: list[tuple[int, list[str], bool]] = []

    def noting() -> None:
        arrived = torch.equal(both.ours.shared[6], both.theirs.shared[5])
        seen.append((int(both.theirs.epochs[sent.slot]), list(both.letting_go.notes), arrived))

    both.theirs.shared[5] = 7
    monkeypatch.setattr(storage, "fence", noting)
    both.kv_sender.release("t", SendEvent.DROPPED, 0.0)
    bumped = int(both.theirs.epochs[sent.slot])
    assert seen == [(bumped, [], False)] and bumped > sent.epoch and both.letting_go.notes

    def late() -> None:
        noting()
        both.theirs.epochs[sent.slot] += 1

    monkeypatch.setattr(storage, "fence", late)
    both.connector.pull(Pull("P", [(5, 6)], sent.slot))
    assert both.wakeup.wait(DEADLINE)
    assert [pull.end.epoch for pull in both.connector.poll()] == [bumped + 1] and seen[1][2]
    both.close()
