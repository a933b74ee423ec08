# SPDX-License-Identifier: Apache-2.0
"""Ranks of one worker on several hosts: they meet within a deadline, with the system's keys, and notice each other's
ends without a supervisor that sees both."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from pontil.runtime.config.worker_config import Deadlines, WorkerConfig
from pontil.runtime.errors import ModelError, PontilError, RankLost
from pontil.runtime.reporting import Reporter
from pontil.runtime.wire.links.sockets import PeerServer, Poller, open_context
from pontil.runtime.wire.messages import RankHello, RankLoaded, RankPlan
from pontil.runtime.worker.follower import DriverLink
from pontil.runtime.worker.links.worker_sockets import WorkerSockets
from pontil.runtime.worker.ranks.driver import Driver, meeting_place

QUIET = cast(Reporter, SimpleNamespace(progress=lambda text: None))
CPU = torch.device("cpu")
SECRET, OTHER_SECRET = "11" * 32, "22" * 32


def config(rank: int, endpoint: str = "tcp://127.0.0.1:0", **other: Any) -> WorkerConfig:
    return WorkerConfig(
        "decode:0", "decode", "cpu", (0,), "m", "m", "ipc:///c", "ipc:///p", rank=rank, ranks=2, nnodes=2,
        rank_endpoint=endpoint, deadlines=Deadlines(rendezvous_timeout=30.0), **other,
    )  # fmt: skip


@contextmanager
def open_driver(**other: Any) -> Iterator[Driver]:
    made = Driver(config(0, **other), QUIET)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def open_link(driver: Driver, **other: Any) -> Iterator[DriverLink]:
    assert driver.socket is not None
    sockets = WorkerSockets(config(1, driver.socket.endpoint, **other))
    try:
        yield DriverLink(sockets)
    finally:
        sockets.closing.close()


def until(poller: Poller, look: Callable[[], Any]) -> Any:
    """Return the first true value, within half a minute, however often something else wakes the poller."""
    deadline = time.monotonic() + 30.0
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen"
        poller.wait(0.1)
    return found


def joined(driver: Driver, link: DriverLink) -> None:
    """Make each known to the other."""
    link.greet()
    driver.followers[1] = driver.collect(RankHello)[1].sender
    link.driver = driver.incarnation


def brief(deadline: float, rank: int, endpoint: str) -> WorkerConfig:
    return replace(config(rank, endpoint), deadlines=Deadlines(rendezvous_timeout=deadline))


def test_a_host_that_does_not_come_is_named() -> None:
    driver = Driver(brief(0.05, 0, "tcp://127.0.0.1:0"), QUIET)
    try:
        with pytest.raises(ModelError, match=r"host 1 of 2, with rank 1 .*\(--node-rank 1\), did not come to tcp://"):
            driver.collect(RankHello, 0.05)
    finally:
        driver.close()


def test_a_follower_does_not_wait_for_ever_for_the_first_host() -> None:
    sockets = WorkerSockets(brief(0.05, 1, "tcp://127.0.0.1:9"))
    try:
        with pytest.raises(ModelError, match=r"rank 0 of this worker did not come to tcp://127.0.0.1:9 within"):
            DriverLink(sockets).join(cast(Any, None), None, CPU)
    finally:
        sockets.closing.close()


@pytest.mark.parametrize(("secret", "is_heard"), [(SECRET, True), (OTHER_SECRET, False), (None, False)])
def test_only_ranks_with_the_keys_are_heard(secret: str | None, is_heard: bool) -> None:
    with open_driver(keys=SECRET) as driver, open_link(driver, keys=secret) as link:
        link.greet()
        if is_heard:
            assert driver.collect(RankHello)[1].sender == link.incarnation
        else:
            with pytest.raises(ModelError):
                driver.collect(RankHello, 0.3)


def test_a_rank_that_began_anew_ends_the_driver() -> None:
    """Its predecessor's end was on another host, which no supervisor here sees."""
    with open_driver() as driver:
        with open_link(driver) as link:
            joined(driver, link)
        with open_link(driver) as link:
            link.greet()
            with pytest.raises(RankLost, match="rank 1 of this worker has ended, and was started anew"):
                until(driver.poller, driver.take)


def test_what_a_predecessor_says_is_not_counted() -> None:
    with open_driver() as driver, open_link(driver) as link:
        joined(driver, link)
        driver.followers[1] = "successor"
        link.socket.send(RankLoaded(link.incarnation, "", 1, "m", "k", "torch", 9))
        with pytest.raises(ModelError):
            driver.collect(RankLoaded, 0.3)


def test_a_quiet_driver_still_speaks_and_notices_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_driver() as driver:
        with open_link(driver) as link:
            joined(driver, link)
            driver.flush()
            (plan,) = until(link.poller, link.plans)
            assert isinstance(plan, RankPlan) and not (plan.tiles or plan.stop)
            driver.flush()
            assert driver.orders.sent == 1, "not in each turn"

        def look() -> bool:
            driver.sent_at = 0.0
            driver.flush()
            return False

        with pytest.raises(RankLost, match="rank 1 of this worker takes no plans"):
            until(driver.poller, look)


def test_a_follower_notices_that_its_driver_has_ended() -> None:
    with open_driver() as driver, open_link(driver) as link:
        joined(driver, link)
        driver.close()
        with pytest.raises(RankLost, match="the connection to rank 0 of this worker has ended"):
            until(link.poller, link.receive)
        # Closed once more at the end.
        driver.socket, driver.context, driver.poller = None, open_context(), Poller()


def test_a_follower_that_nobody_has_answered_greets_the_next_driver() -> None:
    context = open_context()
    first = PeerServer(context, "tcp://127.0.0.1:0")
    sockets = WorkerSockets(config(1, first.endpoint))
    link = DriverLink(sockets)
    try:
        link.greet()
        until(link.poller, first.receive_all)
        first.close()
        second = until(link.poller, lambda: opened(context, first.endpoint))
        (hello,) = until(link.poller, lambda: link.receive() or second.receive_all())
        assert isinstance(hello, RankHello) and hello.sender == link.incarnation
    finally:
        sockets.closing.close()
        context.destroy(0)


def opened(context: Any, endpoint: str) -> PeerServer | None:
    try:
        return PeerServer(context, endpoint)
    except PontilError:
        return None


def test_collectives_meet_at_the_address_of_the_first_host() -> None:
    assert meeting_place(config(0, "tcp://10.0.0.1:7000")) == "tcp://10.0.0.1:0"
    assert meeting_place(config(0, "ipc:///run/ranks")) == "file:///run/ranks.store"
