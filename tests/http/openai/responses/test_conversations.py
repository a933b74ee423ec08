# SPDX-License-Identifier: Apache-2.0
"""Kept responses are written in a thread: a slow disk holds up no answer for long, and no order is lost."""

import asyncio
import sqlite3
import threading
from typing import Any, cast

import pytest

from pontil.http.openai.responses.conversations import Conversations
from pontil.http.openai.responses.input_items import REFERENCE
from pontil.http.store.response_store import KeptResponse, ResponseStore
from pontil.runtime.errors import RequestError, Unavailable

NAME = f"resp_{'a' * 32}"
KEPT = KeptResponse(NAME, None, {"id": NAME, "output": []}, [{"type": "message", "id": "in_1"}], [])


class StubbornStore:
    """Stand-in for a store whose disk takes what it gets only once `goes_on` is set, or fails."""

    def __init__(self, fails: bool = False) -> None:
        self.goes_on, self.fails = threading.Event(), fails
        self.added: list[str] = []
        self.threads: set[int] = set()

    def add(self, caller: str, response: KeptResponse) -> bool:
        self.threads.add(threading.get_ident())
        assert self.goes_on.wait(10)
        if self.fails:
            raise sqlite3.OperationalError("disk I/O error")
        self.added.append(response.id)
        return True

    def response(self, caller: str, name: str) -> bytes | None:
        if self.fails:
            raise sqlite3.DatabaseError("malformed")
        return b"{}" if name in self.added else None


def conversations(store: Any) -> Conversations:
    return Conversations(cast(ResponseStore, store))


def test_an_answer_waits_for_a_slow_disk_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pontil.http.openai.responses.conversations.KEEP_PATIENCE", 0.01)
    store = StubbornStore()

    async def scene() -> bytes:
        kept = conversations(store)
        assert not await kept.keep("a", KEPT, 10)
        assert not store.added, "it goes on without"
        reading = asyncio.ensure_future(kept.response("a", NAME))
        store.goes_on.set()
        return await reading

    assert asyncio.run(scene()) == b"{}", "who reads comes behind who writes"
    assert threading.get_ident() not in store.threads


def test_a_disk_that_fails_is_logged_or_503(caplog: pytest.LogCaptureFixture) -> None:
    store = StubbornStore(fails=True)
    store.goes_on.set()

    async def scene() -> None:
        kept = conversations(store)
        assert not await kept.keep("a", KEPT, 10)
        with pytest.raises(Unavailable, match="try again in a moment"):
            await kept.response("a", NAME)

    asyncio.run(scene())
    assert f"response {NAME} is not kept: disk I/O error" in caplog.text


def test_too_much_that_waits_is_not_kept(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Responses that wait for a slow disk take a bounded memory."""
    monkeypatch.setattr("pontil.http.openai.responses.conversations.KEEP_PATIENCE", 0.01)
    store = StubbornStore()

    async def scene() -> None:
        kept = conversations(store)
        for _ in range(3):
            await kept.keep("a", KEPT, 12 << 20)
        store.goes_on.set()
        await kept.response("a", NAME)

    asyncio.run(scene())
    assert len(store.added) == 2 and "try again in a moment" in caplog.text


def test_names_that_are_none_are_looked_up_nowhere() -> None:  # F3
    async def scene() -> None:
        kept = conversations(object())
        for name in ("", "resp_", NAME + "\n", NAME.upper(), "x" * 100_000):
            for call in (
                kept.response("a", name),
                kept.remove("a", name),
                kept.input_items("a", name, lambda items: {}),
            ):
                with pytest.raises(RequestError) as caught:
                    await call
                assert caught.value.status == 404 and len(str(caught.value)) < 300
            with pytest.raises(RequestError, match="Previous response"):
                await kept.history("a", name, [])

    asyncio.run(scene())


def test_a_request_without_names_reads_nothing() -> None:
    items = [{"type": "message"}]
    assert asyncio.run(conversations(object()).history("a", None, items)) == ([], items)
    with pytest.raises(RequestError, match="Item with id"):
        asyncio.run(Conversations(None).history("a", None, [{"type": REFERENCE, "id": "msg_1"}]))
