# SPDX-License-Identifier: Apache-2.0
"""Questions about requests of other proxies."""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from pontil.runtime.proxy.siblings.timeline_exchange import MOST_ASKED, STALE, TimelineExchange

KNOWN: dict[str, dict[str, Any]] = {"r-1": {"id": "r-1", "seconds": 2.0}}


def proxies(folder: Path) -> tuple[TimelineExchange, TimelineExchange]:
    """One that knows nothing, and one that knows a request."""
    return TimelineExchange(folder, "p:0", lambda name: None), TimelineExchange(folder, "p:1", KNOWN.get)


async def answered(one: TimelineExchange, other: TimelineExchange, name: str) -> bytes | None:
    """Return the answer to a question, with the other proxy looking again and again."""
    asking = asyncio.ensure_future(one.ask(name))
    while not asking.done():
        one.look()
        other.look()
        await asyncio.sleep(0.01)  # a turn of the event loop, in which the question goes on
    return await asking


def test_a_proxy_that_knows_a_request_answers(tmp_path: Path) -> None:
    one, other = proxies(tmp_path)
    told = asyncio.run(answered(one, other, "r-1"))
    assert told is not None and json.loads(told) == KNOWN["r-1"]
    assert not list(tmp_path.iterdir()) and not one.asked


@pytest.mark.parametrize("ahead", [-7200.0, 7200.0])
def test_a_proxy_whose_clock_of_the_day_is_wrong_answers(
    tmp_path: Path, ahead: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = proxies(tmp_path)
    shown = time.time
    monkeypatch.setattr(time, "time", lambda: shown() + ahead)
    told = asyncio.run(answered(one, other, "r-1"))
    assert told is not None and json.loads(told) == KNOWN["r-1"]


def test_what_nobody_knows_ends_in_time_and_leaves_nothing(tmp_path: Path) -> None:
    one, other = proxies(tmp_path)
    assert asyncio.run(answered(one, other, "r-2")) is None
    assert not list(tmp_path.iterdir()) and not one.asked
    other.look()
    assert not other.seen


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 513, "\udcff", "a/b", "r-1\n"])
def test_no_other_names_are_asked_for(tmp_path: Path, name: str) -> None:
    one, _ = proxies(tmp_path)
    assert asyncio.run(one.ask(name)) is None and not list(tmp_path.iterdir())


def test_questions_are_bounded(tmp_path: Path) -> None:
    one, _ = proxies(tmp_path)

    async def ask_many() -> int:
        asking = [asyncio.ensure_future(one.ask(f"r-{number}")) for number in range(3 * MOST_ASKED)]
        await asyncio.sleep(0)
        there = len(list(tmp_path.glob("*.wanted")))
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        return there

    assert asyncio.run(ask_many()) == MOST_ASKED
    assert not list(tmp_path.iterdir()) and not one.asked


def test_the_question_of_a_dead_proxy_is_removed(tmp_path: Path) -> None:
    _, other = proxies(tmp_path)
    (tmp_path / "p:7-dead.wanted").write_text("r-1")
    (tmp_path / "p:7-wrong.wanted").write_bytes(b"\xff\xfe")
    old = time.monotonic() - 2 * STALE
    os.utime(tmp_path / "p:7-dead.wanted", (old, old))
    other.look()
    assert {path.name for path in tmp_path.iterdir()} == {"p:7-wrong.wanted"}


def test_the_question_of_a_proxy_that_died_later_is_removed_with_its_answer(tmp_path: Path) -> None:
    _, other = proxies(tmp_path)
    question = tmp_path / "p:7-dying.wanted"
    question.write_text("r-1")
    other.look()
    assert len(list(tmp_path.iterdir())) == 2
    old = time.monotonic() - 2 * STALE
    os.utime(question, (old, old))
    other.look()
    other.look()
    assert not list(tmp_path.iterdir()) and not other.seen


def test_an_answer_that_comes_too_late_is_not_left_behind(tmp_path: Path) -> None:
    question = tmp_path / "p:7-gone.wanted"
    question.write_text("r-1")

    def known(name: str) -> dict[str, Any]:
        question.unlink()
        return KNOWN[name]

    TimelineExchange(tmp_path, "p:1", known).look()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_gone_is_no_answer(tmp_path: Path) -> None:
    seen: list[Any] = []
    one = TimelineExchange(tmp_path / "none", "p:0", lambda name: seen.append(name))
    assert asyncio.run(one.ask("r-1")) is None
    one.look()
    assert not seen
