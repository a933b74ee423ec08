# SPDX-License-Identifier: Apache-2.0
"""Delivery of tokens to stream writers by the task that receives them; a slow or broken reader has no effect on other
streams."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.http.stream.reply import SERVER_SENT_EVENTS, EventWriter, StreamWriter, settled
from pontil.runtime.accounting.counts import Usage
from pontil.runtime.errors import PontilError, Unavailable
from pontil.runtime.proxy.requests.answer import ChoiceEvent, Ended, Finished, Mailbox
from pontil.runtime.proxy.requests.stream import MessageTurn, Stream

END = Finished("stop", Usage(1, 2, 0), "mixed:0")


class Unserved:
    """Stand-in for a Request: a mailbox with choices, and nothing else."""

    def __init__(self, choices: int = 1) -> None:
        self.mailbox, self.params = Mailbox(), SimpleNamespace(n=choices)
        self.receipt: Future[None] | None = None


def stream_of(*asked: Unserved) -> Stream:
    return Stream(cast(Any, asked), lambda request: None)


class RecordingReader:
    """Stand-in for an EventWriter. `got` is the data sent by the stream's task, which may wait for room, or written
    directly."""

    def __init__(self) -> None:
        self.begun, self.has_room = False, True
        self.framing = SERVER_SENT_EVENTS
        self.room = asyncio.Event()
        self.got: list[bytes] = []
        self.wrote_at = time.monotonic()

    @property
    def keeps_up(self) -> bool:
        return self.begun and self.has_room

    def take_more(self, has_room: bool) -> None:
        self.has_room = has_room
        if has_room:
            self.room.set()
        else:
            self.room.clear()

    def write(self, data: bytes) -> None:
        assert self.keeps_up
        self.got.append(data)
        self.wrote_at = time.monotonic()

    def hold(self, data: bytes) -> None:
        """Show what is held at once: what comes next is the reply's end."""
        self.got.append(data)

    async def send(self, data: bytes, last: bool = False) -> None:
        self.begun = True
        while not self.has_room:
            await self.room.wait()
        self.write(data)

    @property
    def text(self) -> bytes:
        return b"".join(self.got)


def rendered(said: Sequence[ChoiceEvent]) -> bytes:
    return b"".join(
        b"%d.\n" % index if isinstance(one, Ended) else b"%d:%b\n" % (index, one.text.encode()) for index, one in said
    )


Scene = Callable[[Unserved, RecordingReader, "asyncio.Task[None]"], Awaitable[None]]


def play(scene: Scene, render: Callable[[Sequence[ChoiceEvent]], bytes] = rendered) -> None:
    """Run a scene with one stream of two choices, the first of which has sent "a" to a reader that has received it."""

    async def main() -> None:
        stream, reader = Unserved(2), RecordingReader()
        task = asyncio.create_task(StreamWriter(stream_of(stream), render, cast(EventWriter, reader)).run())
        await turns()
        stream.mailbox.put("a", [1])
        assert not reader.got, "the first bytes are the task's to send"
        await turns()
        assert reader.got == [b"0:a\n"]
        await scene(stream, reader, task)

    asyncio.run(asyncio.wait_for(main(), 10))


async def turns(count: int = 4) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_what_comes_is_written_before_anybody_else_has_a_turn() -> None:
    async def scene(stream: Unserved, reader: RecordingReader, task: "asyncio.Task[None]") -> None:
        stream.mailbox.put("b", [2])
        stream.mailbox.put("x", [3], 1)
        assert reader.got[1:] == [b"0:b\n", b"1:x\n"]
        stream.mailbox.end_choice(1, "stop")
        stream.mailbox.add("c", [4])
        stream.mailbox.end_choice(0, "stop", end=END)
        assert reader.got[3:] == [b"1.\n", b"0:c\n0.\n"] and not task.done()
        await task

    play(scene)


def test_a_reader_that_is_behind_gets_what_waited_as_one() -> None:  # F7
    async def scene(stream: Unserved, reader: RecordingReader, task: "asyncio.Task[None]") -> None:
        reader.take_more(False)
        stream.mailbox.put("b", [2])
        await turns()
        for letter in "cde":
            stream.mailbox.put(letter, [3])
        assert reader.got[1:] == []
        reader.take_more(True)
        await turns()
        assert reader.got[1:] == [b"0:b\n", b"0:cde\n"]
        stream.mailbox.put("f", [4])
        assert reader.got[3:] == [b"0:f\n"], "it keeps up again"
        task.cancel()

    play(scene)


def test_the_requests_know_while_their_reader_takes_nothing() -> None:  # F7
    async def main() -> None:
        one, writer = Unserved(), RecordingReader()
        stream = stream_of(one)
        task = asyncio.ensure_future(StreamWriter(stream, rendered, cast(Any, writer)).run())
        await turns()
        one.mailbox.put("a", [1])
        await turns()
        assert not one.mailbox.untaken
        writer.take_more(False)
        one.mailbox.put("b", [2])
        await turns()
        one.mailbox.put("c", [3])
        await turns()
        assert one.mailbox.untaken and one.mailbox.tokens == 1
        writer.take_more(True)
        await turns()
        assert not one.mailbox.untaken and one.mailbox.tokens == 0
        one.mailbox.close(END)
        await task

    asyncio.run(main())


def test_a_reply_that_cannot_be_rendered_breaks_only_itself() -> None:
    def broken(said: Sequence[ChoiceEvent]) -> bytes:
        if any(not isinstance(one, Ended) and one.text == "b" for _, one in said):
            raise KeyError("a bug")
        return rendered(said)

    async def scene(stream: Unserved, reader: RecordingReader, task: "asyncio.Task[None]") -> None:
        stream.mailbox.put("b", [2])
        with pytest.raises(KeyError):
            await task

    play(scene, broken)


def test_an_error_comes_after_what_was_said() -> None:  # F4
    async def scene(stream: Unserved, reader: RecordingReader, task: "asyncio.Task[None]") -> None:
        reader.take_more(False)
        stream.mailbox.put("b", [2])
        stream.mailbox.close(Unavailable("gone"))
        await turns()
        reader.take_more(True)
        with pytest.raises(Unavailable, match="gone"):
            await task
        assert reader.got == [b"0:a\n", b"0:b\n"]

    play(scene)


def test_silence_is_broken_and_tokens_count_as_none(monkeypatch: pytest.MonkeyPatch) -> None:  # F4
    monkeypatch.setattr("pontil.http.stream.reply.KEEP_ALIVE_AFTER", 0.01)

    async def scene(stream: Unserved, reader: RecordingReader, task: "asyncio.Task[None]") -> None:
        while len(reader.got) < 3:
            await asyncio.sleep(0.002)
        assert reader.got[1:3] == [SERVER_SENT_EVENTS.keep_alive] * 2
        stream.mailbox.close(END)
        await task

    play(scene)


@given(st.lists(st.sampled_from(["token", "token", "token", "other", "full", "room", "turn"]), max_size=40))
def test_nothing_is_lost_or_changes_places(acts: list[str]) -> None:  # F7
    async def scene(stream: Unserved, reader: RecordingReader, task: "asyncio.Task[None]") -> None:
        said: dict[int, str] = {0: "a", 1: ""}
        for number, act in enumerate(acts):
            if act in ("token", "other"):
                choice, letter = int(act == "other"), chr(ord("A") + number)
                said[choice] += letter
                stream.mailbox.put(letter, [number], choice)
            elif act == "turn":
                await turns(1)
            else:
                reader.take_more(act == "room")
        reader.take_more(True)
        for choice in (0, 1):
            stream.mailbox.end_choice(choice, "stop")
        stream.mailbox.close(END)
        await task
        lines = reader.text.decode().splitlines()
        for choice, text in said.items():
            mine = [line for line in lines if line.startswith(str(choice))]
            assert "".join(line[2:] for line in mine) == text and mine[-1] == f"{choice}."

    play(scene)


def test_streams_are_read_as_one() -> None:
    async def read() -> None:
        first, second = Unserved(2), Unserved()
        stream = stream_of(first, second)
        first.mailbox.put("a", [1], 1)
        second.mailbox.put("b", [2])
        assert [(index, one.choice) for index, one in stream.drain()] == [(1, 1), (2, 0)]
        first.mailbox.close(END)
        assert stream.drain() == [] and not stream.is_over and stream.final_usage == END.usage
        second.mailbox.close(END)
        assert stream.drain() == [] and stream.is_over and stream.final_usage == END.usage + END.usage

    asyncio.run(read())


@pytest.mark.parametrize("left", [False, True])
def test_what_one_turn_brings_is_one_chunk_at_its_end(left: bool) -> None:
    written: list[bytes] = []
    transport = SimpleNamespace(write=written.append, is_closing=lambda: left)
    request = SimpleNamespace(protocol=SimpleNamespace(transport=transport, has_room=True))
    turn = MessageTurn()
    writer = EventWriter(cast(Any, request), dict, turn)
    turn.is_open = True
    writer.write(b"a")
    writer.write(b"bc")
    assert not written
    for work in turn.close():
        work()
    writer.write(b"d")
    assert written == ([] if left else [b"3\r\nabc\r\n", b"1\r\nd\r\n"])


@pytest.mark.parametrize("logged", [False, True])
def test_the_last_text_goes_out_with_the_end_unless_that_has_to_wait(logged: bool) -> None:
    sent: list[tuple[bytes, bool]] = []

    async def send(data: bytes, end_stream: bool) -> None:
        sent.append((data, end_stream))

    async def finish() -> None:
        written: list[bytes] = []
        transport = SimpleNamespace(write=written.append, is_closing=lambda: False)
        request = SimpleNamespace(protocol=SimpleNamespace(transport=transport, has_room=True))
        writer = EventWriter(cast(Any, request), dict, MessageTurn())
        writer.response = SimpleNamespace(send=send)
        source, receipt = Unserved(), Future[None]()
        source.receipt = receipt
        if logged:
            receipt.set_result(None)
        writer.hold(b"ab")
        ending = asyncio.create_task(settled(stream_of(source), writer))
        await turns()
        assert ending.done() == logged and written == ([] if logged else [b"2\r\nab\r\n"])
        if not logged:
            receipt.set_result(None)
        await ending
        await writer.send(b"c", last=True)

    asyncio.run(finish())
    assert sent == [(b"abc" if logged else b"c", True)]


def test_nothing_that_is_held_never_ends_the_body() -> None:
    """An empty chunk is the end of a chunked body."""
    written: list[bytes] = []
    transport = SimpleNamespace(write=written.append, is_closing=lambda: False)
    request = SimpleNamespace(protocol=SimpleNamespace(transport=transport, has_room=True))
    writer = EventWriter(cast(Any, request), dict, MessageTurn())
    writer.hold(b"")
    writer.flush()
    writer.hold(b"a")
    writer.hold(b"")
    writer.flush()
    assert written == [b"1\r\na\r\n"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_whole_reply_wakes_its_task_at_the_end_only(fails: bool) -> None:
    async def read() -> None:
        first, second = Unserved(), Unserved()
        task = asyncio.create_task(stream_of(first, second).all())
        await turns()
        for _ in range(3):
            first.mailbox.put("a", [1])
        second.mailbox.close(Unavailable("gone") if fails else END)
        await turns()
        if fails:
            assert isinstance(task.exception(), PontilError), "the other one need not end"
            return
        assert not task.done()
        first.mailbox.close(END)
        ((index, said),) = await task
        assert index == 0 and not isinstance(said, Ended) and said.ids == [1, 1, 1]

    asyncio.run(read())
