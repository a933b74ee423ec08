# SPDX-License-Identifier: Apache-2.0
"""A runner of batches that is ended at any turn of its event loop, once or twice: it ends, leaves nothing open, and the
next one gives each line its one outcome and bill."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from effort import examples
from open_resources import nothing_left_open
from sanic import HTTPResponse, Request
from sanic.compat import Header

from pontil.http.batch.book_reader import BookReader
from pontil.http.batch.files_route import FilesRoutes
from pontil.http.batch.line_request import LineRoutes
from pontil.http.batch.runner import BatchRunner
from pontil.http.store.batch_book import COMPLETED, OPENAI, BatchBook, BatchRow
from pontil.runtime.accounting.usage_file import FileWriter, UsageFile
from pontil.runtime.errors import Unavailable
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.ticket import Ticket

CHAT, LINES, MANY = "/v1/chat/completions", 5, 2000
Handler = Callable[["QuietSite", Request], Any]


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class SlowJobs:
    """The jobs of an event loop's executor, which are done some turns after they were begun, in the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        loop.run_in_executor = self.begin  # type: ignore[assignment, method-assign]

    def begin(self, executor: object, work: Callable[..., Any], *given: Any) -> "asyncio.Future[Any]":
        future = self.loop.create_future()
        self.loop.create_task(self.do(future, partial(work, *given)))
        return future

    async def do(self, future: "asyncio.Future[Any]", work: Callable[[], Any]) -> None:
        await turns(2)
        try:
            result = work()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)


class QuietSite:
    """A runner of batches in one event loop, over a proxy that has no more than it asks of it. `closed` counts the
    accounts of its requests that were closed, by whether they are billed."""

    def __init__(self, folder: Path, handler: Handler) -> None:
        book = BatchBook(folder / "batches", folder / "usage.db")
        self.watched = BatchBook(folder / "batches", folder / "usage.db")
        self.usage = UsageFile(folder / "usage.db", FileWriter("p"))
        self.bills: list[str] = []
        self.opened = self.closed = 0
        self.readiness = SimpleNamespace(is_draining=False)
        groups = {"tiny": SimpleNamespace(seats=SimpleNamespace(total=2), available=[1])}
        self.registry = SimpleNamespace(groups=groups, answering=[groups["tiny"]])
        self.metrics = SimpleNamespace(threads=self)
        self.books, self.faults = self, list[BaseException]()
        routes = LineRoutes({CHAT: partial(handler, self)}, lambda caller: True)
        self.runner = BatchRunner(cast(Proxy, self), BookReader(book), routes, lambda: 1 << 16)

    # The parts of its threads' failures, and of its bookkeeper.

    def note(self, name: str, error: BaseException) -> None:
        self.faults.append(error)

    def close_with(self, close: Callable[[], None], rows: Any) -> "Future[None]":
        close()
        self.usage.write(rows)
        receipt: Future[None] = Future()
        receipt.set_result(None)
        return receipt

    def when_written(self, work: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(work)

    # A request of a line.

    def open_account(self, request: Request) -> Callable[[], None]:
        """Open the account of a line's request; return what ends it."""
        ticket = request.ctx.ticket
        whole = ticket.whole
        whole.add()
        self.opened += 1

        def close() -> None:
            self.closed += 1
            if not whole.failed:
                self.bills.append(ticket.name)

        return partial(whole.end, close, failed=False)

    @property
    def is_over(self) -> bool:
        return not self.watched.unfinished()

    def close(self) -> None:
        self.watched.close()
        self.usage.close()

    def check_rest(self) -> None:
        room = self.runner.site.room
        assert room.taken == 0 and not room.waiting and not self.runner.running
        assert self.opened == self.closed, "an account is open"


async def proper(made: QuietSite, request: Request) -> HTTPResponse:
    end = made.open_account(request)
    try:
        await turns(3)
    finally:
        end()
    return HTTPResponse(b'{"id": 1}')


async def deaf(made: QuietSite, request: Request) -> HTTPResponse:
    """Lose a cancellation, as a wait of a handler may; there is no worker then."""
    with suppress(asyncio.CancelledError):
        return await proper(made, request)
    raise Unavailable("no worker is there")


def prepare(folder: Path, count: int = LINES) -> None:
    UsageFile(folder / "usage.db", FileWriter("p")).close()
    book = BatchBook(folder / "batches", folder / "usage.db")
    lines = [json.dumps({"custom_id": f"l{n}", "url": CHAT, "body": {}}) for n in range(count)]
    book.add(BatchRow("b", "me", OPENAI, CHAT, "file-i", "file-o", "file-e", count, 1 << 20, 1.0, 1 << 33, "{}"))
    book.path_of("file-i").write_text("\n".join(lines))
    book.close()


async def ended(task: "asyncio.Task[None]") -> None:
    """Wait for the end of a task that was cancelled, in fewer turns than would be many."""
    for _ in range(MANY):
        if task.done():
            break
        await asyncio.sleep(0)
    else:
        others = [str(one.get_coro()) for one in asyncio.all_tasks()]
        raise AssertionError(f"the runner does not end: {others}")
    assert task.cancelled(), "the runner has lost its cancellation"
    assert asyncio.all_tasks() == {asyncio.current_task()}, asyncio.all_tasks()


async def life(folder: Path, handler: Handler, *ends: int | None) -> tuple[list[str], bool]:
    """Let a runner live until it is drained, where the first of `ends` is a number of turns, and then cancelled, after
    so many. Return the bills, and whether the batch was over before."""
    SlowJobs(asyncio.get_running_loop())
    made = QuietSite(folder, handler)
    running = asyncio.ensure_future(made.runner.run())
    drain, cancel = ends
    if drain is not None:
        await turns(drain)
        made.readiness.is_draining = True
        made.runner.wake()
    for _ in range(MANY if cancel is None else cancel):
        if cancel is None and made.is_over:
            break
        await asyncio.sleep(0)
    was_over = made.is_over
    running.cancel()
    await ended(running)
    made.check_rest()
    assert not made.faults, made.faults
    made.close()
    return made.bills, was_over


def each_end(folder: Path, handler: Handler, ends: Callable[[int], tuple[int | None, int | None]], step: int) -> None:
    """End a runner at each turn in steps until the batch is over before."""
    for turn in range(0, MANY, step):
        place = folder / str(turn)
        place.mkdir()
        prepare(place)
        with nothing_left_open():
            bills, was_over = asyncio.run(life(place, handler, *ends(turn)))
            more, _ = asyncio.run(life(place, proper, None, None))
        assert Counter(bills + more) == {f"b-{n}": 1 for n in range(1, LINES + 1)}, f"turn {turn}"
        book = BatchBook(place / "batches", place / "usage.db")
        progress = book.progress("b")
        told = [json.loads(one)["custom_id"] for one in book.path_of("file-o").read_bytes().splitlines()]
        assert progress.settled == LINES and sorted(told) == [f"l{n}" for n in range(LINES)], f"turn {turn}"
        (row,) = book.database.execute("SELECT state FROM batches")
        assert row == (COMPLETED,)
        book.close()
        if was_over:
            return
    raise AssertionError("the batch is never over")


@pytest.mark.parametrize("handler", [proper, deaf])
def test_a_runner_that_is_cancelled_ends(tmp_path: Path, handler: Handler) -> None:
    each_end(tmp_path, handler, lambda turn: (None, turn), examples(13, 1))


@pytest.mark.parametrize("later", range(examples(1, 12)))
def test_a_runner_that_is_cancelled_while_it_leaves_ends(tmp_path: Path, later: int) -> None:
    def ends(turn: int) -> tuple[int, int]:
        return turn, 2 * later + 1

    for turn in range(3, 60, examples(11, 1)):
        place = tmp_path / str(turn)
        place.mkdir()
        prepare(place)
        with nothing_left_open():
            bills, _ = asyncio.run(life(place, proper, *ends(turn)))
            more, _ = asyncio.run(life(place, proper, None, None))
        assert Counter(bills + more) == {f"b-{n}": 1 for n in range(1, LINES + 1)}, f"turn {turn}"


async def failing(folder: Path, faults: dict[str, int]) -> QuietSite:
    """Let a runner live to the end of the batch. The handler of a line, or the books, fail so often."""
    SlowJobs(asyncio.get_running_loop())

    async def handler(made: QuietSite, request: Request) -> HTTPResponse | None:
        end = made.open_account(request)
        end()
        if faults["line"]:
            faults["line"] -= 1
            return None
        return HTTPResponse(b'{"id": 1}')

    made = QuietSite(folder, handler)
    real = made.close_with

    def close_with(close: Callable[[], None], rows: Any) -> "Future[None]":
        if faults["books"]:
            faults["books"] -= 1
            raise RuntimeError("a fault of the books")
        return real(close, rows)

    made.close_with = close_with  # type: ignore[method-assign]
    running = asyncio.ensure_future(made.runner.run())
    for _ in range(MANY):
        if made.is_over:
            break
        made.runner.wake()
        await asyncio.sleep(0)
    was_over = made.is_over
    running.cancel()
    await ended(running)
    made.check_rest()
    assert was_over, "a wait for what has failed has no end"
    made.close()
    return made


@pytest.mark.parametrize("fault", ["line", "books"])
def test_a_batch_begins_anew_after_a_fault(tmp_path: Path, fault: str) -> None:
    prepare(tmp_path)
    made = asyncio.run(failing(tmp_path, {"line": 0, "books": 0} | {fault: 1}))
    assert Counter(made.bills) == {f"b-{n}": 1 for n in range(1, LINES + 1)} and len(made.faults) == 1


async def waiting_for_a_log(folder: Path, count: int) -> None:
    """Let a runner live while the usage log, but not the disk of the files, fails, and then to the batch's end."""
    SlowJobs(asyncio.get_running_loop())
    made = QuietSite(folder, proper)
    works: list[Callable[[], None]] = []
    books: Any = made
    real = made.close_with, made.when_written
    books.close_with = lambda close, rows: (real[0](close, rows), None)[1]
    books.when_written = works.append
    running = asyncio.ensure_future(made.runner.run())
    await turns(MANY)
    assert 0 < len(made.bills) < count, "it runs on, and all that it posts may be lost"
    books.close_with, books.when_written = real
    for work in works:
        work()
    for _ in range(MANY):
        if made.is_over:
            break
        await asyncio.sleep(0)
    running.cancel()
    await ended(running)
    made.check_rest()
    assert Counter(made.bills) == {f"b-{n}": 1 for n in range(1, count + 1)}
    made.close()


def test_a_batch_waits_for_a_usage_log_that_fails(tmp_path: Path) -> None:
    prepare(tmp_path, 60)
    asyncio.run(waiting_for_a_log(tmp_path, 60))


UPLOAD = (
    b'--xx\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--xx\r\n'
    b'content-disposition: form-data; name="file"; filename="a"\r\n\r\n{}\n\r\n--xx--\r\n'
)


class UploadStream:
    """The body of an upload, in pieces."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for place in range(0, len(UPLOAD), 64):
            await asyncio.sleep(0)
            yield UPLOAD[place : place + 64]


def test_an_upload_whose_client_leaves_is_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    async def upload(turn: int) -> bool:
        SlowJobs(asyncio.get_running_loop())
        reader = BookReader(BatchBook(tmp_path / "batches", tmp_path / "usage.db"))
        headers = Header({"content-type": "multipart/form-data; boundary=xx"})
        context = SimpleNamespace(ticket=Ticket("r"), understood=lambda: None)
        request: Any = SimpleNamespace(headers=headers, stream=UploadStream(), ctx=context)
        creating = asyncio.ensure_future(FilesRoutes(reader, lambda: 1 << 16).create_file(request))
        await turns(turn)
        creating.cancel()
        with suppress(asyncio.CancelledError):
            await creating
        await reader.close()
        return not creating.cancelled()

    prepare(tmp_path)
    for turn in range(MANY):
        with nothing_left_open():
            is_kept = asyncio.run(upload(turn))
        names = {path.name for path in (tmp_path / "batches").iterdir()} - {"batches.db", "file-i"}
        book = BatchBook(tmp_path / "batches", tmp_path / "usage.db")
        rows = {name for (name,) in book.database.execute("SELECT id FROM files")}
        book.close()
        # A client that left just before its answer may have a file that it was not told of, but a whole one.
        assert names == rows, f"turn {turn}: {names}, {rows}"
        if is_kept:
            return
