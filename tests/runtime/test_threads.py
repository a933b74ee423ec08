# SPDX-License-Identifier: Apache-2.0
"""Each thread of proxy and workers raises once: the process reports it, and the thread goes on."""

import asyncio
import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import zmq
from pools import DEADLINE, Pool, wait_for
from usage_rows import REQUEST

from pontil.runtime.accounting.usage_log import UsageLog
from pontil.runtime.accounting.usage_tables import Posted
from pontil.runtime.engine.sequences.token_rules import DrawRules
from pontil.runtime.threads import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    WELL_SECONDS,
    JobThread,
    ThreadFailures,
    TurnThread,
    go_on,
    next_pause,
)
from pontil.runtime.transfer.connector import ConnectorOptions
from pontil.runtime.transfer.shm.connector import ShmConnector
from pontil.runtime.transfer.tcp.connector import PeerStream, TcpConnector
from pontil.runtime.transfer.tcp.server import TcpServer
from pontil.runtime.wire.links.context import ADDRESS, VERSION, ZapAuthenticator
from pontil.runtime.worker.generate.grammar_manager import GrammarManager


class Panic(BaseException):
    """An exception that is no Exception, as extensions written in Rust raise them."""


class Once:
    """A method that raises at its first call and works afterwards."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        real, self.raised = getattr(owner, name), threading.Event()

        def called(*given: Any) -> Any:
            if not self.raised.is_set():
                self.raised.set()
                raise Panic("a fault of ours")
            return real(*given)

        patch.setattr(owner, name, called)


@pytest.fixture
def failures() -> ThreadFailures:
    return ThreadFailures()


@pytest.fixture
def pools(request: pytest.FixtureRequest, failures: ThreadFailures) -> Iterator[tuple[Pool, Pool]]:
    """Yield a pool that is read, and one that reads it."""
    kind = request.param
    made = [Pool(lambda storage, wake: kind(storage, wake, ConnectorOptions(failures=failures))) for _ in range(2)]
    yield made[0], made[1]
    for one in made:
        one.connector.close()


def pulled(pools: tuple[Pool, Pool]) -> str | None:
    """Pull everything and return the pull's error, if any."""
    theirs, ours = pools
    blocks = list(range(1, 40))
    (done,) = ours.finish(ours.pull("peer", [(block, block) for block in blocks], 0))
    assert done.error or ours.has(blocks, theirs, blocks)
    return done.error


@pytest.mark.parametrize(
    ("pools", "owner", "method", "thread", "fails"),
    [
        (ShmConnector, ShmConnector, "copy", "shm-connector", True),
        (TcpConnector, PeerStream, "pull", "tcp-connector", True),
        (TcpConnector, PeerStream, "try_out", "tcp-connector", False),
        (TcpConnector, TcpServer, "answer", "tcp-guest", False),
        (TcpConnector, TcpServer, "admit", "tcp-server", False),
    ],
    indirect=["pools"],
)
def test_a_pull_fails_or_is_repeated_and_the_next_one_works(
    pools: tuple[Pool, Pool], owner: Any, method: str, thread: str, fails: bool, failures: ThreadFailures,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    fault = Once(monkeypatch, owner, method)
    pools[1].connector.attach("peer", pools[0].connector.register())
    error = pulled(pools)
    assert fault.raised.wait(DEADLINE) and (error is not None) == fails and (not fails or "fault" in str(error))
    assert pulled(pools) is None
    # It is counted first, and then logged.
    wait_for(lambda: failures.counts() == {thread: 1} and bool(caplog.records))
    assert [record.name for record in caplog.records] == ["pontil.threads"] and "a fault of ours" in caplog.text


def test_who_waits_for_a_grammar_is_told(failures: ThreadFailures, caplog: pytest.LogCaptureFixture) -> None:
    made = SimpleNamespace(guide=print)

    class Compiler:
        def __init__(self) -> None:
            self.panics = True

        def compile(self, text: str) -> Any:
            if self.panics:
                raise Panic("a fault of theirs")
            return made

    compiler: Any = Compiler()
    wakeup = threading.Event()
    manager = GrammarManager(compiler, wakeup.set, failures)
    live: Any = SimpleNamespace(
        sequence=SimpleNamespace(
            params=SimpleNamespace(grammar="g", bad_token_ids=(), allowed_token_ids=(1,)), rules=DrawRules()
        ),
        ends=(),
    )
    assert not manager.submit(live, 0.0) and wakeup.wait(DEADLINE)
    assert manager.poll(0.0) == [] and manager.failed[0][0] is live and "theirs" in manager.failed[0][1]
    compiler.panics = False
    wakeup.clear()
    assert not manager.submit(live, 0.0) and wakeup.wait(DEADLINE)
    assert manager.poll(0.0) == [live] and failures.counts() == {"grammars": 1} and "Panic" in caplog.text
    manager.close()
    assert manager.wanted.started and not manager.wanted.thread.is_alive()


def test_a_doorkeeper_answers_every_question(failures: ThreadFailures, monkeypatch: pytest.MonkeyPatch) -> None:
    Once(monkeypatch, ZapAuthenticator, "answer")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    authenticator = ZapAuthenticator(context, b"k" * 32, failures)
    asker = context.socket(zmq.REQ)
    asker.setsockopt(zmq.RCVTIMEO, int(DEADLINE * 1000))
    asker.connect(ADDRESS)
    statuses = []
    for number in (b"1", b"2"):
        asker.send_multipart([VERSION, number, b"pontil", b"", b"", b"CURVE", b"k" * 32])
        version, request, status, *_ = asker.recv_multipart()
        assert (version, request) == (VERSION, number)
        statuses.append(status)
    assert statuses == [b"300", b"200"] and failures.counts() == {"doorkeeper": 1}
    asker.close(0)
    authenticator.close()
    context.term()
    assert not authenticator.thread.thread.is_alive()


class Disk:
    """A file whose first write fails with an unexpected exception."""

    def __init__(self) -> None:
        self.rows: list[Posted] = []
        self.failed = self.closed = False

    def write(self, rows: Iterable[Posted]) -> None:
        if not self.failed:
            self.failed = True
            raise Panic("no memory")
        self.rows += rows

    def tidy(self) -> None:
        pass

    def end(self) -> None:
        self.closed = True


def test_rows_in_hand_are_written_later(failures: ThreadFailures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pontil.runtime.accounting.usage_log.RETRY", 0.05)
    disk = Disk()
    log = UsageLog(disk, failures)
    receipt = log.post([REQUEST], wanted=True)
    assert receipt is not None
    receipt.result(DEADLINE)
    wait_for(lambda: disk.rows == [REQUEST])
    wait_for(lambda: log.complaint is None)
    log.post([replace(REQUEST, id="next")])
    log.close()
    assert len(disk.rows) == 2 and disk.closed and failures.counts() == {"usage-log": 1} and log.failures == 1


def test_a_task_of_an_event_loop_goes_on(failures: ThreadFailures) -> None:
    turns: list[int] = []

    async def tick(number: int) -> None:
        turns.append(number)
        if len(turns) < 3:
            raise OverflowError("too much")

    asyncio.run(asyncio.wait_for(go_on(failures, tick, 7), DEADLINE))
    assert turns == [7, 7, 7] and list(failures.counts().values()) == [2]


def test_a_task_that_is_cancelled_ends(failures: ThreadFailures) -> None:
    async def scene() -> None:
        task = asyncio.get_running_loop().create_task(go_on(failures, asyncio.Event().wait))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(scene())
    assert failures.counts() == {}


def test_pauses_grow_and_begin_again() -> None:
    pauses = [FIRST_PAUSE]
    for _ in range(8):
        pauses.append(next_pause(pauses[-1], 0.0))
    assert pauses == sorted(pauses) and pauses[1] > FIRST_PAUSE and pauses[-1] == LONGEST_PAUSE
    assert next_pause(LONGEST_PAUSE, WELL_SECONDS + 1) == FIRST_PAUSE


def test_all_is_counted_and_not_all_logged(failures: ThreadFailures, caplog: pytest.LogCaptureFixture) -> None:
    def work() -> None:
        raise ValueError("again")

    with caplog.at_level(logging.ERROR):
        errors = [failures.contain(name, work) for name in ("a", "a", "a", "b")]
    assert all(isinstance(error, ValueError) for error in errors)
    assert failures.counts() == {"a": 3, "b": 1} and len(caplog.records) == 2
    assert failures.contain("a", partial(int, "1")) is None


def test_an_end_that_is_asked_for_is_none_of_its_business(failures: ThreadFailures) -> None:
    def end() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        failures.contain("a", end)
    assert failures.counts() == {}


def test_jobs_are_done_in_order_and_one_that_fails_is_answered(failures: ThreadFailures) -> None:
    done: list[int] = []
    answered: list[tuple[int, str]] = []

    def work(job: int) -> None:
        if job == 2:
            raise Panic("a fault of ours")
        done.append(job)

    jobs = JobThread(work, "jobs", failures, lambda job, error: answered.append((job, str(error))))
    for job in range(5):
        jobs.put(job)
    jobs.start()
    assert jobs.close(DEADLINE), "the jobs put before are done before it ends"
    assert done == [0, 1, 3, 4] and answered == [(2, "a fault of ours")] and failures.counts() == {"jobs": 1}
    assert JobThread(work, "unused").close(), "one that was never started has ended"


def test_the_last_turn_begins_after_the_close(failures: ThreadFailures) -> None:
    """Something that is put in place before `close` is seen, also during a turn; no pause is waited for."""
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()
    waiting, seen = [1], list[int]()

    def turn() -> float | None:
        found = [waiting.pop() for _ in list(waiting)]
        begun.set()
        assert go.wait(DEADLINE)
        seen.extend(found)
        return None if thread.closing.is_set() and not waiting else 3600.0

    thread = TurnThread(turn, "turns", failures, end=ended.set)
    thread.start()
    assert begun.wait(DEADLINE)
    waiting.append(2)
    assert not thread.close(0.0)
    go.set()
    assert thread.close(DEADLINE) and seen == [1, 2] and ended.is_set() and not failures.counts()


def test_threads_can_be_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads but those that wait in a socket go through three methods."""
    events: list[TurnThread] = []
    monkeypatch.setattr(TurnThread, "start", lambda thread: events.append(thread))
    monkeypatch.setattr(TurnThread, "wake", lambda thread: events.append(thread))
    monkeypatch.setattr(TurnThread, "close", lambda thread: True)
    theirs, ours = Pool(ShmConnector), Pool(ShmConnector)
    blocks = [1, 2]
    ours.connector.attach("peer", theirs.connector.register())
    pull = ours.pull("peer", list(zip(blocks, blocks, strict=True)), 0)
    assert not ours.connector.poll(), "nothing happens by itself"
    for event in events:
        event.turn()
    assert ours.connector.poll() == [pull] and pull.end.error is None and ours.has(blocks, theirs, blocks)
    for one in (theirs, ours):
        one.connector.close()
