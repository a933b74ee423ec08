# SPDX-License-Identifier: Apache-2.0
"""The driver of a worker of several ranks as its followers hear it (rules H1, H2)."""

import multiprocessing
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from pontil.gpu_ops.collectives.communicator import Communicator
from pontil.gpu_ops.kernels.tile import TileSpan
from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.engine.tiles.plan_tables import PlanWriter
from pontil.runtime.errors import ModelError, TransferError
from pontil.runtime.reporting import Reporter
from pontil.runtime.wire.links.context import Context
from pontil.runtime.wire.links.sockets import PeerClient, Poller, open_context
from pontil.runtime.wire.messages import Message, RankDone, RankHello, RankLoaded, RankPlan, RankPool, RankReady
from pontil.runtime.worker.follower import DriverLink, Follower
from pontil.runtime.worker.links.worker_sockets import WorkerSockets
from pontil.runtime.worker.ranks import parting
from pontil.runtime.worker.ranks.driver import Driver
from pontil.runtime.worker.start.prefault import Prefault

TILE = TilePlan(False, [3], [], [0], [], [0])
QUIET = cast(Reporter, SimpleNamespace(progress=lambda text: None, stepped=lambda number, working: None))


class FakeFollower:
    """The socket of rank 1."""

    def __init__(self, context: Context, endpoint: str, name: str = "f1") -> None:
        self.name, self.socket, self.poller = name, PeerClient(context, name, endpoint), Poller()
        self.poller.register(self.socket)

    def send(self, message: Message) -> None:
        assert self.socket.send(message)

    def receive(self) -> Message:
        while not (messages := self.socket.receive_all(1)):
            assert self.poller.wait(30.0), "the driver says nothing"
        return messages[0]


@pytest.fixture
def config(tmp_path: Path) -> WorkerConfig:
    return WorkerConfig(
        "decode:0", "decode", "cpu", (0,), "m", "m", "ipc:///c", "ipc:///p", ranks=2,
        rank_endpoint=f"ipc://{tmp_path}/ranks",
    )  # fmt: skip


@pytest.fixture
def driver(config: WorkerConfig) -> Iterator[Driver]:
    made = Driver(config, QUIET)
    yield made
    made.close()


@pytest.fixture
def follower(config: WorkerConfig, driver: Driver) -> Iterator[FakeFollower]:
    context = open_context()
    made = FakeFollower(context, str(config.rank_endpoint))
    made.send(RankHello("f1", "", 1, 2, 7))
    driver.followers[1] = driver.collect(RankHello)[1].sender
    yield made
    made.socket.close()
    made.poller.close()
    context.term()


def loaded(**other: str) -> RankLoaded:
    return replace(RankLoaded("f1", "", 1, "m", "k", "avx2", 90), **cast(Any, other))


def test_all_ranks_have_the_smallest_number_of_blocks(driver: Driver, follower: FakeFollower) -> None:
    follower.send(loaded())
    assert driver.agree("m", "k", "avx2", 100) == 90
    told = follower.receive()
    assert isinstance(told, RankPool) and told.num_blocks == 90
    follower.send(RankReady("f1", "", 1, {"kind": "shm"}))
    driver.wait_for_pools()
    assert driver.pools == [{"kind": "shm"}]


@pytest.mark.parametrize("other", [{"model_fingerprint": "n"}, {"kv_fingerprint": "l"}, {"kernels": "avx512"}])
def test_a_rank_with_something_else_is_refused(driver: Driver, follower: FakeFollower, other: dict[str, str]) -> None:
    follower.send(loaded(**other))
    with pytest.raises(ModelError, match="rank 1 has loaded another model"):
        driver.agree("m", "k", "avx2", 100)


def test_plans_are_numbered_in_order_and_take_the_orders_that_wait(driver: Driver, follower: FakeFollower) -> None:
    driver.flush()
    driver.copy([(4, 5)])
    driver.run(TILE)
    driver.orders.add("epochs", [1, 9])
    driver.flush()
    driver.stop()
    plans = [cast(RankPlan, follower.receive()) for _ in range(3)]
    assert [(one.number, len(one.tiles), one.stop) for one in plans] == [(1, 1, False), (2, 0, False), (3, 0, True)]
    assert plans[0].copies == [[4, 5]] and plans[1].epochs == [[1, 9]]


def test_no_rank_waits_long_for_others_at_its_end(config: WorkerConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library for devices may wait in `close` for a rank that has hung."""
    monkeypatch.setattr(parting, "PART_WITHIN", 0.01)
    came, closed = threading.Event(), threading.Event()

    def close() -> None:
        came.wait()
        closed.set()

    driver = Driver(config, QUIET)
    driver.communicator = cast(Communicator, SimpleNamespace(close=close))
    driver.close()
    assert not closed.is_set()
    came.set()
    assert closed.wait(30.0)


def test_only_the_followers_of_this_worker_are_heard(driver: Driver, follower: FakeFollower) -> None:
    follower.send(RankDone("f1", "", 2, 1))
    follower.send(RankDone("f1", "", 1, 5))
    found: list[RankDone] = []
    while not found:
        driver.poller.wait(30.0)
        found = driver.take()
    assert [(one.rank, one.number) for one in found] == [(1, 5)]


def test_a_follower_refuses_a_plan_out_of_order(config: WorkerConfig) -> None:
    sockets = WorkerSockets(replace(config, rank=1))
    one = Follower(DriverLink(sockets), *cast(Any, (None, None, None, None)))
    try:
        with pytest.raises(TransferError, match="plan 2 came after plan 0"):
            one.follow(RankPlan("d", "f", 2))
    finally:
        sockets.closing.close()


def test_a_follower_maps_ahead_as_much_as_the_driver_uses(config: WorkerConfig) -> None:
    sockets, prefault = WorkerSockets(replace(config, rank=1)), ready_prefault()
    tiles = SimpleNamespace(copy=lambda copies: None, follow=lambda plan: None)
    transfers = SimpleNamespace(obey=lambda plan: None)
    adapters = SimpleNamespace(obey=lambda orders: None)
    one = Follower(DriverLink(sockets), *cast(Any, (tiles, transfers, adapters, prefault)))
    try:
        assert not one.idle_work.is_mapping
        spans = [TileSpan(0, 1, [3, 60, 7])]
        one.follow(RankPlan("d", "f", 1, tiles=[PlanWriter().write(TilePlan(False, [3], spans, [0], [], [0]))]))
        assert prefault.pool.highest == 60 and one.idle_work.is_mapping
    finally:
        sockets.closing.close()


def ready_prefault() -> Prefault:
    """Return one that has mapped all that it may before there is any work."""
    layout = KVLayout(16, 2, 1, 16, "float32")
    storage = KVStorage(layout, 200, torch.device("cpu"))
    made = Prefault(storage, BlockPool(200), 1 << 20, lambda: 1 << 40)
    while made.is_due:
        made.advance()
    return made


def test_answers_that_the_socket_refuses_are_sent_later_and_in_order(
    config: WorkerConfig, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:  # B12
    """A driver that computes reads nothing, and the end of a pull is told once."""
    sockets, taken, has_room = WorkerSockets(replace(config, rank=1)), list[RankDone](), False

    def send(socket: PeerClient, message: RankDone) -> bool:
        taken.extend([message] if has_room else [])
        return has_room

    monkeypatch.setattr(PeerClient, "send", send)
    transfers = SimpleNamespace(report=lambda: {})
    one = Follower(DriverLink(sockets), *cast(Any, (None, transfers, SimpleNamespace(report=dict), None)))
    try:
        one.driver.answer(1, {"pulls": [{"ticket": 1}]})
        one.driver.answer(2, {})
        assert not taken and one.outlook().patience < 0.1
        has_room = True
        one.poll(0.0)
        assert [(message.number, message.pulls) for message in taken] == [(1, [{"ticket": 1}]), (2, [])]
        assert one.outlook().patience > 0.1
    finally:
        sockets.closing.close()


def test_a_signal_ends_a_follower_that_waits_for_its_driver(config: WorkerConfig, driver: Driver) -> None:
    """A follower that loads ends as any worker that loads."""
    process = multiprocessing.get_context("fork").Process(target=wait_for_the_driver, args=(replace(config, rank=1),))
    process.start()
    assert driver.collect(RankHello)[1].pid == process.pid
    process.terminate()
    process.join(30.0)
    assert process.exitcode == -signal.SIGTERM


def wait_for_the_driver(config: WorkerConfig) -> None:
    """Be a follower whose driver never answers."""
    DriverLink(WorkerSockets(config)).join(cast(Any, None), None, torch.device("cpu"))
