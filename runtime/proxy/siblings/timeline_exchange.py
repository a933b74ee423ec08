# SPDX-License-Identifier: Apache-2.0
"""Timelines of requests at other proxies of the launch, asked for by files in the launch's folder.

A question is a file with a request's id, and is removed by the proxy that asks. A proxy that knows the request puts the
answer beside it. So a question costs the others a look at a folder, and an unknown id costs who asks PATIENCE.
"""

import asyncio
import json
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pontil.runtime.foundation.file_age import age, stamp

WANTED, FOUND = ".wanted", ".timeline"
# Ids that are asked for: those that a request can have.
ASKABLE = re.compile(r"[A-Za-z0-9._:-]{1,512}")
# Seconds that an answer is waited for, and between two looks for it. Proxies look for questions twice a second.
PATIENCE, LOOK = 1.5, 0.05
# Questions of a proxy at a time, and seconds after which one is that of a proxy that is gone.
MOST_ASKED, STALE = 8, 30.0


class TimelineExchange:
    """The questions of the proxy of this name, and its answers. `known` returns the JSON of a request that it knows."""

    def __init__(self, folder: Path, name: str, known: Callable[[str], dict[str, Any] | None]) -> None:
        self.folder, self.name, self.known = folder, name, known
        self.asked = 0
        # The questions that were looked at, of those that are there.
        self.seen: set[str] = set()

    async def ask(self, request_id: str) -> bytes | None:
        """Return the JSON of a request of another proxy; None if none knows it in time."""
        if self.asked >= MOST_ASKED or not ASKABLE.fullmatch(request_id):
            return None
        stem = f"{self.name}-{secrets.token_hex(8)}"
        question, answer = self.folder / f"{stem}{WANTED}", self.folder / f"{stem}{FOUND}"
        self.asked += 1
        try:
            with suppress(OSError):
                put(question, request_id.encode())
                return await self.answer_in(answer)
        finally:
            self.asked -= 1
            with suppress(OSError):
                question.unlink(missing_ok=True)
                answer.unlink(missing_ok=True)
        return None

    async def answer_in(self, path: Path) -> bytes | None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with suppress(FileNotFoundError):
                return path.read_bytes()
            await asyncio.sleep(LOOK)
        return None

    def look(self) -> None:
        """Answer the questions of others that this proxy can answer."""
        there = [path for path in self.folder.glob(f"*{WANTED}") if not path.stem.startswith(f"{self.name}-")]
        self.seen &= {path.stem for path in there}
        for path in there:
            with suppress(OSError, UnicodeDecodeError):
                if path.stem not in self.seen:
                    self.seen.add(path.stem)
                    self.answer(path)
                elif is_stale(path):
                    remove(path)

    def answer(self, question: Path) -> None:
        if is_stale(question):
            remove(question)
            return
        answer = self.known(question.read_bytes().decode())
        if answer is not None:
            put(question.with_suffix(FOUND), json.dumps(answer).encode())
            if not question.exists():
                # The asking proxy waited no longer, and nobody else removes the answer.
                question.with_suffix(FOUND).unlink(missing_ok=True)


def is_stale(question: Path) -> bool:
    return age(question) > STALE


def remove(question: Path) -> None:
    """Remove a question, and its answer if it has one."""
    question.unlink(missing_ok=True)
    question.with_suffix(FOUND).unlink(missing_ok=True)


def put(path: Path, content: bytes) -> None:
    """Write a file, which is there whole or not at all. Raises OSError."""
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    fresh.write_bytes(content)
    stamp(fresh)
    fresh.replace(path)
