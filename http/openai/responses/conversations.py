# SPDX-License-Identifier: Apache-2.0
"""Kept responses, read and written in a thread."""

import asyncio
import json
import logging
import re
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pontil.http.intake.ordered_executor import OrderedExecutor
from pontil.http.openai.responses.input_items import REFERENCE, Item
from pontil.http.store.response_store import KeptResponse, ResponseStore
from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.errors import PontilError, RequestError, Unavailable

LOG = logging.getLogger("pontil.http")
RESPONSE_ID = re.compile(r"resp_[0-9a-f]{32}")
# An item of an output; its name has the token of its response, and its index.
ITEM_ID = re.compile(r"[a-z]{1,4}_([0-9a-f]{32})([0-9a-f]{4})")
# Seconds that the end of an answer waits for a slow disk.
KEEP_PATIENCE = 1.0
DAY = 86400.0
# Bytes that a request to read holds while it waits.
READING = 256

T = TypeVar("T")


class Conversations:
    """The responses of all callers, or none where `store` is None. What is not a name of one is looked up nowhere."""

    def __init__(self, store: ResponseStore | None) -> None:
        self.store = store
        self.executor = OrderedExecutor()

    @classmethod
    def of(cls, config: ProxyConfig) -> "Conversations":
        """Open the configured file. One that cannot be used is logged, and nothing is kept."""
        path = config.response_store
        if path is None:
            return cls(None)
        try:
            return cls(ResponseStore(Path(path), config.response_store_size, config.response_store_days * DAY))
        except (PontilError, sqlite3.Error) as error:
            LOG.warning("responses are not kept, so that no conversation can go on after them: %s", error)
            return cls(None)

    async def close(self, app: Any = None) -> None:
        store, self.store = self.store, None
        if store is not None:
            await self.executor.run(store.close, 0)

    async def read(self, work: Callable[[ResponseStore], T], otherwise: T) -> T:
        """Return what `work` reads. Raises Unavailable where the file fails."""
        store = self.store
        if store is None:
            return otherwise
        try:
            return await self.executor.run(partial(work, store), READING)
        except sqlite3.Error as error:
            LOG.warning("kept responses cannot be read: %s", error)
            raise Unavailable("the responses that are kept cannot be read now: try again in a moment") from None

    async def keep(self, caller: str, response: KeptResponse, size: int) -> bool:
        """Keep a response of about this many bytes. Return whether it is kept by now; one that cannot be is logged."""
        store = self.store
        if store is None:
            return False
        future = asyncio.ensure_future(self.executor.run(partial(store.add, caller, response), size))
        future.add_done_callback(partial(complain, response.id))
        done_futures, _ = await asyncio.wait([future], timeout=KEEP_PATIENCE)
        return bool(done_futures) and future.exception() is None and future.result()

    async def history(self, caller: str, previous: str | None, items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
        """Return the items before a request, and its own with references resolved. Raises RequestError (404) for a
        response or an item that is not there."""
        reference_ids = [item["id"] for item in items if item["type"] == REFERENCE]
        if previous is None and not reference_ids:
            return [], list(items)
        before: list[Item] | None = []
        if previous is not None:
            before = await self.conversation(caller, previous)
        if before is None:
            says = f"Previous response with id {previous!r:.100} not found: {self.reason}"
            raise RequestError(says, status=404, param="previous_response_id", code="previous_response_not_found")
        nothing: dict[str, Item] = {}
        output_items = await self.read(partial(outputs, caller, reference_ids), nothing) if reference_ids else nothing
        return before, [resolved(item, output_items, self.reason) for item in items]

    @property
    def reason(self) -> str:
        if self.store is None:
            return "this server keeps no responses; send the whole conversation as input"
        return "it was deleted, has expired or was never kept; send the whole conversation as input"

    async def conversation(self, caller: str, name: str, with_output: bool = True) -> list[Item] | None:
        if not RESPONSE_ID.fullmatch(name):
            return None
        return await self.read(lambda store: store.conversation(caller, name, with_output), None)

    async def response(self, caller: str, name: str) -> bytes:
        """Return a response's JSON. Raises RequestError (404)."""
        is_valid_id = RESPONSE_ID.fullmatch(name) is not None
        body = await self.read(lambda store: store.response(caller, name), None) if is_valid_id else None
        if body is None:
            raise self.not_found(name)
        return body

    async def input_items(self, caller: str, name: str, select_page: Callable[[list[Item]], dict[str, Any]]) -> bytes:
        """Return the JSON of what `select_page` takes of a response's input. Raises RequestError (404)."""

        def work(store: ResponseStore) -> bytes | None:
            items = store.conversation(caller, name, with_output=False)
            return None if items is None else json.dumps(select_page(items), ensure_ascii=False).encode()

        body = await self.read(work, None) if RESPONSE_ID.fullmatch(name) else None
        if body is None:
            raise self.not_found(name)
        return body

    async def remove(self, caller: str, name: str) -> None:
        """Remove a response. Raises RequestError (404)."""
        is_valid_id = RESPONSE_ID.fullmatch(name) is not None
        if not (is_valid_id and await self.read(lambda store: store.remove(caller, name), False)):
            raise self.not_found(name)

    def not_found(self, name: str) -> RequestError:
        return RequestError(f"Response with id {name!r:.100} not found: {self.reason}", status=404)


def outputs(caller: str, names: Iterable[str], store: ResponseStore) -> dict[str, Item]:
    """Return those of the named items that are there. Each response is read once."""
    owners = dict.fromkeys(f"resp_{match[1]}" for match in map(ITEM_ID.fullmatch, names) if match)
    return {item["id"]: item for item in store.outputs(caller, owners)}


def resolved(item: Item, output_items: dict[str, Item], reason: str) -> Item:
    """Return the item, or the one that it refers to. Raises RequestError (404)."""
    if item["type"] != REFERENCE:
        return item
    if item["id"] not in output_items:
        raise RequestError(f"Item with id {item['id']!r:.100} not found: {reason}", status=404, param="input")
    return output_items[item["id"]]


def complain(name: str, future: "asyncio.Future[bool]") -> None:
    """Log that a response was not kept."""
    if future.cancelled():
        return
    error = future.exception()
    if error is not None or not future.result():
        LOG.warning("response %s is not kept: %s", name, error or "it is larger than all that may be kept")
