# SPDX-License-Identifier: Apache-2.0
"""Reads over NIXL from a process that is killed or stopped in the middle of them. UCX is told to use TCP, as between
hosts, where the peer takes part in every read. Needs the package of the connector."""

import signal
from collections.abc import Iterator

import pytest
import torch
from nixl_process import BLOCKS, NixlProcess
from pools import Pool, need, wait_for

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.transfer.connector import Pull
from pontil.runtime.transfer.nixl.connector import NixlConnector

pytestmark = pytest.mark.long
LAYOUT = KVLayout(16, 30, 3, 64, "bfloat16")


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    need("nixl")
    monkeypatch.setenv("UCX_TLS", "tcp")
    pool = Pool(NixlConnector, BLOCKS, LAYOUT)
    pool.storage.own.zero_()
    yield pool
    pool.connector.close()


@pytest.fixture
def owner(ours: Pool) -> Iterator[NixlProcess]:
    made = NixlProcess("own")
    yield made
    made.end()


def begin(ours: Pool, owner: NixlProcess, name: str) -> Pull:
    """Pull everything, and return the pull once a part of it is here."""
    ours.connector.attach(name, owner.hear())
    first = ours.pull(name, [(1, 1)], 0)
    (done,) = ours.finish(first)
    assert done.error is None
    before = first.received
    pull = ours.pull(name, [(block, block) for block in range(1, BLOCKS)], 0)
    wait_for(lambda: pull.received > before)
    return pull


def test_a_peer_that_is_killed_in_the_middle_fails_the_pull_and_its_successor_is_read(
    ours: Pool, owner: NixlProcess
) -> None:
    pull = begin(ours, owner, "first")
    owner.process.kill()
    owner.process.wait()
    (done,) = ours.finish(pull)
    assert done.error is not None and "ended" in done.error
    assert bool((ours.storage.own[BLOCKS - 1] == 0).all()), "it was killed in the middle"
    wait_for(lambda: ours.connector.lost() == ["first"])
    ours.connector.detach("first")
    ours.storage.own.zero_()
    again = NixlProcess("own")
    try:
        ours.connector.attach("second", again.hear())
        (done,) = ours.finish(ours.pull("second", [(block, block) for block in range(1, 9)], 0))
        assert done.error is None and bool((ours.storage.own[1:9] == 7).all())
        assert torch.count_nonzero(ours.storage.own[9:]) == 0, "nothing of the first pull was written after its end"
    finally:
        again.end()


def test_a_cancelled_pull_from_a_stopped_peer_ends_when_nothing_can_be_written_any_more(
    ours: Pool, owner: NixlProcess
) -> None:  # C14
    """A read cannot be taken back: it ends when the stopped process goes on, or is killed as its supervisor would."""
    pull = begin(ours, owner, "peer")
    owner.process.send_signal(signal.SIGSTOP)
    pull.cancel()
    assert ours.wakeup.wait(2.0) is False and ours.connector.poll() == []
    owner.process.send_signal(signal.SIGCONT)
    (done,) = ours.finish(pull)
    assert done.error == "cancelled"
    written = ours.storage.own.clone()
    (done,) = ours.finish(ours.pull("peer", [], 0))
    assert done.error is None and torch.equal(ours.storage.own, written)
