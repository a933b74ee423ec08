# SPDX-License-Identifier: Apache-2.0
"""Long texts: refused before they are encoded where they cannot fit, else encoded in order and off the event loop."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scripted_site import MODEL, HttpAnswer, ScriptedSite, site
from scripted_worker import DEADLINE

from pontil.http.intake import ordered_executor
from pontil.http.intake.ordered_executor import OrderedExecutor
from pontil.http.openai.chat.prompt_reader import HUGE_TEXT, NOT_KEPT_WHOLE, SHORT_TEXT, Encoder, TextLimit
from pontil.runtime.errors import RequestError, Unavailable
from pontil.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer

CONTEXT = 512


@pytest.fixture(scope="module")
def served(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedSite]:
    """A site with a tokenizer of its own, in which tests may replace parts."""
    with site(tmp_path_factory.mktemp("served"), load_tokenizer(tokenizer_folder)) as made:
        made.pair(max_model_len=CONTEXT)
        yield made


@pytest.fixture
def no_encoding(served: ScriptedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every call of the tokenizer fail its request."""
    for name in ("encode", "encode_unlocked"):
        monkeypatch.setattr(served.tokenizer, name, lambda *args, **known: 1 / 0)


def most(made: ScriptedSite) -> int:
    return CONTEXT * made.tokenizer.longest_token


def too_long(answer: HttpAnswer, param: str) -> None:
    error = answer.json["error"]
    assert (answer.status, error["code"], error["param"]) == (400, "context_length_exceeded", param), answer.body
    assert error["message"].startswith(f"This model's maximum context length is {CONTEXT} tokens. ")


def test_what_cannot_fit_is_not_encoded(served: ScriptedSite, no_encoding: None) -> None:
    text = "a" * (most(served) + 1)
    too_long(served.complete(text), "prompt")
    too_long(served.complete(["a" * (SHORT_TEXT + 1), text][1:]), "prompt")
    too_long(served.chat(text), "messages")
    too_long(served.chat("é" * (most(served) // 2 + 1)), "messages")
    too_long(served.chat([{"type": "text", "text": "a" * 500}] * 99), "messages")
    for key, value in (("prompt", text), ("messages", [{"role": "user", "content": text}])):
        too_long(served.ask("POST", "/tokenize", {"model": MODEL, key: value * NOT_KEPT_WHOLE}), key)


def test_what_is_cut_or_counted_may_be_longer(served: ScriptedSite) -> None:
    text = "a" * (most(served) + 1)
    assert served.complete(text, truncate_prompt_tokens=-1, max_tokens=2).status == 200
    assert served.ask("POST", "/tokenize", {"prompt": text}).json["count"] == len(text)
    too_long(served.complete(text * NOT_KEPT_WHOLE, truncate_prompt_tokens=-1), "prompt")


def test_what_may_fit_is_encoded_and_then_judged(served: ScriptedSite) -> None:
    answer = served.complete("a" * most(served))
    assert answer.json["error"]["code"] == "context_length_exceeded", "each letter is a token"


def test_the_first_prompt_that_does_not_fit_is_the_last_that_is_encoded(
    served: ScriptedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    encode = served.tokenizer.encode

    def watched(text: str, add_special_tokens: bool) -> list[int]:
        seen.append(text)
        return encode(text, add_special_tokens)

    monkeypatch.setattr(served.tokenizer, "encode", watched)
    assert served.complete(["a", "b" * CONTEXT, "c"]).status == 400
    assert [text[0] for text in seen] == ["a", "b"]
    assert served.complete(["a"] * 64, n=128).status == 400
    assert len(seen) == 2, "so many together are never let in"


class HeldTokenizer(Tokenizer):
    """A tokenizer that encodes nothing until it is released."""

    def __init__(self) -> None:
        self.bytes_by_id = (b"a" * 100,)
        self.begun: list[str] = []
        self.threads: set[int] = set()
        self.go = threading.Semaphore(0)

    def encode(self, text: str, add_special_tokens: bool, parse_special: bool = True) -> list[int]:
        self.begun.append(text)
        return [len(text)]

    def encode_unlocked(self, text: str, add_special_tokens: bool) -> list[int]:
        self.begun.append(text)
        self.threads.add(threading.get_ident())
        assert self.go.acquire(timeout=DEADLINE)
        return [len(text)]


async def settled(condition: Callable[[], object]) -> None:
    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0)

    await asyncio.wait_for(wait(), DEADLINE)


def test_long_texts_are_encoded_in_order_two_at_a_time() -> None:
    tokenizer = HeldTokenizer()
    long = [letter * (SHORT_TEXT + 1) for letter in "abc"]
    huge = [letter * (HUGE_TEXT + 1) for letter in "xyz"]

    async def run() -> None:
        encoder, limit = Encoder(tokenizer), TextLimit(1 << 20)
        tasks = [asyncio.ensure_future(encoder.encode(text, False, limit)) for text in (*huge, *long)]
        await settled(lambda: len(tokenizer.begun) == 2)
        assert {text[0] for text in tokenizer.begun} == {"a", "x"}, "ordinary ones wait for no huge one"
        assert await encoder.encode("short", False, limit) == [5], "and short ones for nobody"
        tasks[1].cancel()  # y, which waits
        for _ in range(5):
            tokenizer.go.release()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in done] == [list, asyncio.CancelledError, list, list, list, list]

    asyncio.run(run())
    order = [text[0] for text in tokenizer.begun if len(text) > SHORT_TEXT]
    assert [one for one in order if one in "abc"] == ["a", "b", "c"]
    assert [one for one in order if one in "xyz"] == ["x", "z"]
    assert threading.get_ident() not in tokenizer.threads


def test_who_leaves_keeps_the_turn_until_the_thread_is_done() -> None:
    go, ran = threading.Event(), []

    def first() -> None:
        assert go.wait(DEADLINE)
        ran.append("first")
        raise RequestError("seen by nobody")

    async def run() -> None:
        executor = OrderedExecutor()
        left = asyncio.ensure_future(executor.run(first, 1))
        second = asyncio.ensure_future(executor.run(lambda: ran.append("second"), 1))
        await settled(lambda: executor.turns.taken)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        assert not second.done() and executor.turns.taken
        go.set()
        await second

    asyncio.run(run())
    assert ran == ["first", "second"]


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_executor, "MOST_WAITING", 100)
    go = threading.Event()

    async def run() -> None:
        executor = OrderedExecutor()
        tasks = [asyncio.ensure_future(executor.run(lambda: go.wait(DEADLINE), size)) for size in (1000, 1000)]
        await settled(lambda: executor.turns.room.total == 1000)
        with pytest.raises(Unavailable, match="too many long requests"):
            await executor.run(lambda: None, 1)
        go.set()
        await asyncio.gather(*tasks)
        assert await executor.run(lambda: 7, 1000) == 7 and executor.turns.room.total == 0

    asyncio.run(run())


def test_without_workers_a_text_is_bounded_too(tokenizer: Tokenizer) -> None:
    encoder = Encoder(tokenizer)
    with pytest.raises(RequestError, match="^prompt has more than 2097152 bytes"):
        encoder.check("a" * (3 << 20), "prompt", TextLimit(None))
    assert encoder.most_bytes(TextLimit(1 << 20)) == min(16, tokenizer.longest_token) << 20
