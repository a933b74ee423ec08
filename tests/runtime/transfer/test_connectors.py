# SPDX-License-Identifier: Apache-2.0
"""The behaviour that all connectors share, tested over each of them; "far" is auto with a peer whose memory is not on
this host, "cut" one that could be cut, "emulated-nixl" is NIXL without its library, "nixl-staged" with it between pools
of an emulated device, and "hostile" the test's own, which is harmless here."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import KINDS, LAYOUT, Pool, need, wait_for, without_memory

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.storage import EPOCH_SLOTS
from pontil.runtime.errors import TransferError

WAYS = ("cuda", "shm", "tcp", "sealed", "emulated-nixl", "nixl", "nixl-staged", "auto", "far", "cut", "hostile")
ROOT = Path(__file__).resolve().parents[3]


class ConnectorSite:
    """Pools joined by one kind of connector."""

    def __init__(self, way: str) -> None:
        self.way, self.pools = way, list[Pool]()

    def open(self, blocks: int = 40, layout: KVLayout = LAYOUT) -> Pool:
        self.pools.append(Pool(KINDS["auto" if self.way == "far" else self.way], blocks, layout))
        return self.pools[-1]

    def attach(self, pool: Pool, name: str, descriptor: dict[str, Any], heads: range | None = None) -> None:
        pool.connector.attach(name, without_memory(descriptor) if self.way == "far" else descriptor, heads)

    def join(self, *names: str) -> tuple[Pool, ...]:
        """Return a pool that can read others, and those."""
        reader, others = self.open(), [self.open() for _ in names]
        for name, other in zip(names, others, strict=True):
            self.attach(reader, name, other.connector.register())
        return reader, *others


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(params=WAYS)
def site(request: pytest.FixtureRequest) -> Iterator[ConnectorSite]:
    need(request.param)
    threads, descriptors = set(threading.enumerate()), open_descriptors()
    made = ConnectorSite(request.param)
    yield made
    for pool in made.pools:
        pool.connector.close()
    # The memory of a pool and its mapping stay open, and so does that of an emulated device.
    memory = (6 if made.way in ("cuda", "nixl-staged") else 2) * len(made.pools)
    assert not set(threading.enumerate()) - threads  # D5
    # Sockets that an earlier test left to zmq connect again now and then, and are closed at once.
    wait_for(lambda: open_descriptors() <= descriptors + memory)


def test_blocks_arrive_whole_with_the_cell_and_nothing_else_changes(site: ConnectorSite) -> None:
    ours, theirs = site.join("P")
    theirs.storage.epochs[EPOCH_SLOTS - 1] = 1 << 40
    before = ours.storage.own.clone()
    here, there = [5, 6, 7, 39, 2, 1], [10, 11, 12, 1, 39, 38]
    (done,) = ours.finish(ours.pull("P", list(zip(there, here, strict=True)), EPOCH_SLOTS - 1))
    assert (done.error, done.epoch, done.bytes) == (None, 1 << 40, 6 * LAYOUT.block_bytes)
    assert done.digests == theirs.storage.own_digests(there) == ours.storage.own_digests(here)
    assert ours.has(here, theirs, there)
    rest = [block for block in range(40) if block not in here]
    assert torch.equal(ours.storage.own[rest], before[rest])


@settings(max_examples=25, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("way", WAYS)
def test_any_blocks_in_any_order(way: str, data: st.DataObject) -> None:
    need(way)
    site = ConnectorSite(way)
    ours, theirs = site.join("P")
    count = data.draw(st.integers(0, 39))
    there = data.draw(st.permutations(range(1, 40)))[:count]
    here = data.draw(st.permutations(range(1, 40)))[:count]
    (done,) = ours.finish(ours.pull("P", list(zip(there, here, strict=True)), 3))
    for pool in site.pools:
        pool.connector.close()
    assert done.error is None and ours.has(list(here), theirs, list(there))


def rank_of(rank: int, ranks: int) -> KVLayout:
    """Return the layout of one rank's pool, of a model with 6 KV heads."""
    return KVLayout(16, 2, 6, 8, "bfloat16", rank=rank, ranks=ranks)


def heads_in(pool: Pool, blocks: list[int], heads: range) -> torch.Tensor:
    first = pool.storage.layout.kv_heads.start
    return pool.storage.tensor[blocks][:, :, :, heads.start - first : heads.stop - first]


@pytest.mark.parametrize(
    ("ours", "theirs", "heads"),
    [
        ((0, 1), (1, 2), range(3, 6)),
        ((1, 2), (0, 1), range(3, 6)),
        ((1, 2), (2, 3), range(4, 6)),
        ((1, 2), (1, 3), range(3, 4)),
        ((1, 3), (1, 3), range(2, 4)),
        ((0, 1), (0, 1), range(5, 6)),
    ],
)
def test_heads_arrive_and_nothing_else_changes(
    site: ConnectorSite, ours: tuple[int, int], theirs: tuple[int, int], heads: range
) -> None:  # H5
    reader, other = site.open(layout=rank_of(*ours)), site.open(layout=rank_of(*theirs))
    site.attach(reader, "P", other.connector.register(), other.storage.layout.kv_heads)
    other.storage.epochs[3] = 1 << 40
    here, there = [5, 6, 7, 39, 2], [10, 11, 12, 1, 39]
    expected = reader.storage.own.clone()
    slices = reader.storage.slices(expected.numpy(), reader.storage.layout.kv_heads, heads)
    given = other.storage.slices(other.storage.own.numpy(), other.storage.layout.kv_heads, heads)
    slices[here] = given[there]
    (done,) = reader.finish(reader.pull("P", list(zip(there, here, strict=True)), 3, heads=heads))
    assert (done.error, done.epoch, done.bytes) == (None, 1 << 40, 5 * reader.storage.slice_bytes(heads))
    assert done.digests == other.storage.own_digests(there, heads) == reader.storage.own_digests(here, heads)
    assert torch.equal(reader.storage.own, expected)
    mine, given_heads = heads_in(reader, here, heads), heads_in(other, there, heads)
    assert torch.equal(mine.view(torch.int16), given_heads.view(torch.int16))


@pytest.mark.parametrize("heads", [range(2, 4), range(0, 6), range(5, 7), range(0, 3), range(-1, 2)])
def test_heads_that_one_of_the_pools_does_not_have_are_not_read(site: ConnectorSite, heads: range) -> None:
    reader, other = site.open(layout=rank_of(0, 1)), site.open(layout=rank_of(1, 2))
    site.attach(reader, "P", other.connector.register(), range(3, 6))
    (done,) = reader.finish(reader.pull("P", [(1, 1)], 0, heads=heads))
    assert "heads" in str(done.error)


def test_a_pool_of_other_heads_than_it_was_said_to_have_is_refused(site: ConnectorSite) -> None:
    reader, other = site.open(layout=rank_of(0, 1)), site.open(layout=rank_of(1, 2))
    for heads in (None, range(6), range(2)):
        with pytest.raises(TransferError, match="another size"):
            site.attach(reader, "P", other.connector.register(), heads)


def test_pulls_from_two_peers_do_not_mix(site: ConnectorSite) -> None:
    ours, one, two = site.join("one", "two")
    pulls = []
    for number in range(1, 20):
        pulls.append(ours.pull("one", [(40 - number, number)], number))
        pulls.append(ours.pull("two", [(number, 20 + number)], number))
    assert len(set(pulls)) == 38
    assert all(done.error is None for done in ours.finish(*pulls))
    assert ours.has(list(range(1, 20)), one, list(range(39, 20, -1)))
    assert ours.has(list(range(21, 40)), two, list(range(1, 20)))
    assert ours.connector.lost() == []


def test_two_pools_read_each_other(site: ConnectorSite) -> None:
    one, two = site.join("two")
    site.attach(two, "one", one.connector.register())
    kept = two.storage.own[5].clone()
    one.finish(one.pull("two", [(5, 6)], 0))
    two.finish(two.pull("one", [(6, 7)], 0))
    assert torch.equal(two.storage.own[7], kept)


@pytest.mark.parametrize(("block", "slot"), [(0, 0), (40, 0), (-1, 0), (1 << 40, 0), (3, -1), (3, EPOCH_SLOTS)])
def test_what_is_outside_the_pool_is_not_read(site: ConnectorSite, block: int, slot: int) -> None:
    ours, _ = site.join("P")
    (done,) = ours.finish(ours.pull("P", [(3, 3), (block, 4)], slot))
    assert "does not have" in str(done.error) and done.epoch is None and done.bytes == 0
    (done,) = ours.finish(ours.pull("P", [(3, 3)], 0))
    assert done.error is None


def test_a_pull_from_a_stranger_fails(site: ConnectorSite) -> None:
    ours, _ = site.join("P")
    (done,) = ours.finish(ours.pull("Q", [(3, 3)], 0))
    assert "gone" in str(done.error)
    ours.connector.detach("Q")


def test_a_cancelled_pull_ends_once_and_others_go_on(site: ConnectorSite) -> None:
    ours, theirs = site.join("P")
    pairs = [(block, block) for block in range(1, 40, 2)]
    pulls = [ours.pull("P", pairs, 0) for _ in range(20)]
    for pull in pulls[::2]:
        pull.cancel()
    ends = ours.finish(*pulls)
    assert all(done.error in (None, "cancelled") for done in ends[::2])
    assert all(done.error is None for done in ends[1::2])
    pulls[0].cancel()  # has ended already: no error
    (last,) = ours.finish(ours.pull("P", [(2, 2)], 0))
    assert last.error is None and ours.has([2], theirs, [2])


def test_what_has_come_is_counted_for_as_long_as_the_peer_is_known(site: ConnectorSite) -> None:
    ours, _ = site.join("P")
    seen = [0]
    for _ in range(3):
        pull = ours.pull("P", [(1, 2), (5, 6)], 0)
        ours.finish(pull)
        seen.append(pull.received)
    assert seen == sorted(set(seen))


def test_a_pull_of_nothing_ends_with_the_cell(site: ConnectorSite) -> None:
    ours, theirs = site.join("P")
    (done,) = ours.finish(ours.pull("P", [], 3))
    assert (done.error, done.epoch, done.bytes, done.digests) == (None, int(theirs.storage.epochs[3]), 0, [])


def test_cancelled_pulls_end_once_and_hold_up_nobody(site: ConnectorSite) -> None:
    ours, theirs = site.join("P")
    pairs = [(block, block) for block in range(1, 40)]
    pulls = [ours.pull("P", pairs, 0) for _ in range(30)]
    for pull in pulls[1:]:
        pull.cancel()
        pull.cancel()
    last = ours.pull("P", [(3, 3)], 0)
    first, *others, end = ours.finish(*pulls, last)
    assert first.error is None and end.error is None and ours.has([3], theirs, [3])
    assert {done.error for done in others} <= {None, "cancelled"}


def test_pulls_of_a_peer_that_is_detached_end(site: ConnectorSite) -> None:
    ours, theirs = site.join("P")
    pulls = [ours.pull("P", [(block, block)], 0) for block in range(1, 40)]
    ours.connector.detach("P")
    (refused,) = ours.finish(ours.pull("P", [(1, 1)], 0))
    assert "gone" in str(refused.error)
    ends = ours.finish(*pulls)
    assert all(done.error is None for done in ends) and ours.has([7, 39], theirs, [7, 39])
    site.attach(ours, "P", theirs.connector.register())
    (again,) = ours.finish(ours.pull("P", [(1, 1)], 0))
    assert again.error is None


def test_closing_ends_every_pull(site: ConnectorSite) -> None:
    ours, _ = site.join("P")
    pulls = [ours.pull("P", [(block, block)], 0) for block in range(1, 40)]
    ours.connector.close()
    ours.wakeup.set()
    ours.finish(*pulls)


def test_descriptors_travel_and_those_that_say_nothing_are_refused(site: ConnectorSite) -> None:
    ours, theirs = site.join("P")
    descriptor = theirs.connector.register()
    assert json.loads(json.dumps(descriptor)) == descriptor
    site.attach(ours, "P", {})  # attaching again changes nothing
    for bad in ({}, {"kind": "other"}, {"kind": "auto"}, {"kind": "auto", "shm": 1, "tcp": []}):
        with pytest.raises(TransferError):
            site.attach(ours, "Q", bad)
    for name in descriptor if site.way in ("shm", "tcp", "nixl") else ():
        with pytest.raises(TransferError):
            site.attach(ours, "Q", descriptor | {name: None})
        with pytest.raises(TransferError):
            site.attach(ours, "Q", {key: value for key, value in descriptor.items() if key != name})


# Importing torch takes a second, so one process imports it and forks an owner for each kind that it is told.
OWNERS = """
import json, os, signal, sys
import app
from pools import KINDS, Pool
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    if os.fork() == 0:
        pool = Pool(KINDS[line.strip()])
        pool.storage.own[:] = 7
        print(json.dumps([os.getpid(), pool.connector.register()]), flush=True)
        signal.pause()
"""


@pytest.fixture(scope="module")
def owners() -> Iterator["subprocess.Popen[str]"]:
    path = os.pathsep.join([str(ROOT), *map(str, sorted((ROOT / "tests" / "support").iterdir()))])
    with subprocess.Popen(
        [sys.executable, "-c", OWNERS], env={**os.environ, "PYTHONPATH": path}, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as started:  # fmt: skip
        yield started


def test_a_peer_that_is_killed_is_lost_and_nothing_hangs(site: ConnectorSite, owners: "subprocess.Popen[str]") -> None:
    assert owners.stdin is not None and owners.stdout is not None
    print("auto" if site.way == "far" else site.way, file=owners.stdin, flush=True)
    pid, descriptor = json.loads(owners.stdout.readline())
    owner = psutil.Process(pid)
    try:
        ours = site.open()
        site.attach(ours, "child", descriptor)
        (done,) = ours.finish(ours.pull("child", [(1, 1)], 0))
        assert done.error is None and ours.connector.lost() == []
        pulls = [ours.pull("child", [(block, block) for block in range(1, 40)], 0) for _ in range(50)]
        owner.kill()
        pulls += [ours.pull("child", [(block, block) for block in range(1, 40)], 0) for _ in range(50)]
        ends = ours.finish(*pulls)
        assert all(end.error or end.bytes == 39 * LAYOUT.block_bytes for end in ends)
        if not any(end.error for end in ends):
            assert bool((ours.storage.own[1:] == 7).all())
        wait_for(lambda: ours.connector.lost() == ["child"])
        ours.connector.detach("child")
        assert ours.connector.lost() == []
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            owner.kill()
