# SPDX-License-Identifier: Apache-2.0
"""One conformance suite by OpenAI's client, sync and async, with the same results from one worker, from a pair, and
from a pair whose decode worker is killed half way through every stream (promises 1, 2 and 5)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import openai
import pytest
from effort import is_long
from openai.types.chat import ChatCompletionMessageParam
from oracle import at_rest
from served import Served, launched
from tiny_llama import write_tiny_llama

MODEL = "tiny"
HALF_WAY = 4
TOKENS = 96
NUMBERS = count()
QUESTION: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "You answer."},
    {"role": "user", "content": [{"type": "text", "text": "What is it?"}]},
]
MEMORY = ("--kv-cache-memory", "16MiB")
MORTAL = (*MEMORY, "--restart-attempts", "1000", "--restart-max-delay", "1")
SYSTEMS: dict[str, tuple[str, ...]] = {
    "one worker": ("--role", "mixed", *MEMORY),
    "a pair": MORTAL,
    "a pair with deaths": MORTAL,
}


@dataclass
class System:
    """A running server, its clients, and the fault to cause half way through a stream."""

    served: Served
    harm: Callable[[], None] | None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.served.port}/v1"

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key="unused", max_retries=0)

    @property
    def failovers(self) -> float:
        return self.served.metric('pontil_failovers_total{cause="died"}')

    def disturb(self) -> None:
        if self.harm is not None:
            self.harm()

    def half_way(self, chunks: Iterable[Any]) -> Iterator[Any]:
        """Yield the chunks of a stream, and kill the worker among them."""
        for number, chunk in enumerate(chunks):
            if number == HALF_WAY:
                self.disturb()
            yield chunk


@dataclass
class Gathered:
    """The merged choices of a stream: text, ids, logprobs and finish reason."""

    texts: dict[int, str] = field(default_factory=dict)
    ids: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[Any]] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    usage: Any = None

    def add(self, chunk: Any) -> None:
        self.usage = chunk.usage.model_dump() if chunk.usage else self.usage
        for choice in chunk.choices:
            index, delta = choice.index, getattr(choice, "delta", None)
            assert index not in self.reasons, "nothing comes after the end of a choice"
            text = choice.text if delta is None else delta.content
            self.texts[index] = self.texts.get(index, "") + (text or "")
            self.ids.setdefault(index, []).extend(getattr(choice, "token_ids", None) or [])
            shown = choice.logprobs.model_dump() if choice.logprobs else {}
            self.logprobs.setdefault(index, []).extend(shown.get("content") or shown.get("token_logprobs") or [])
            if choice.finish_reason:
                self.reasons[index] = choice.finish_reason

    @classmethod
    def of(cls, answer: Any) -> "Gathered":
        """Return a whole response in the same form."""
        made = cls(usage=answer.usage.model_dump())
        for choice in answer.choices:
            shown = choice.logprobs.model_dump() if choice.logprobs else {}
            message = getattr(choice, "message", None)
            made.texts[choice.index] = choice.text if message is None else message.content
            made.ids[choice.index] = getattr(choice, "token_ids", None) or []
            made.logprobs[choice.index] = shown.get("content") or shown.get("token_logprobs") or []
            made.reasons[choice.index] = choice.finish_reason
        return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("models") / MODEL
    write_tiny_llama(made)
    return made


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    """Responses of the first system, which the others must repeat."""
    return {}


@pytest.fixture(scope="module")
def systems(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Served]]:
    """Launches by name, each set of flags once."""
    running: dict[tuple[str, ...], Served] = {}
    with ExitStack() as stack:

        def started(name: str) -> Served:
            flags = SYSTEMS[name]
            if flags not in running:
                system = launched(tmp_path_factory.mktemp("system"), "--model", str(folder), *flags)
                running[flags] = stack.enter_context(system)
            return running[flags]

        yield started


# By default one system: workers die in tests/world, and in tests/system/test_failover.py.
@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[] if name == "a pair" else [pytest.mark.long]) for name in SYSTEMS],
)
def system(request: pytest.FixtureRequest, systems: Callable[[str], Served]) -> Iterator[System]:
    served = systems(request.param)

    def kill() -> None:
        """Kill the worker if it is there: after another death it may not be back yet."""
        victim = served.child("decode:0")
        if victim is not None:
            victim.kill()

    before = at_rest(served)
    yield System(served, kill if "deaths" in request.param else None)
    assert at_rest(served).free_blocks == before.free_blocks, "nothing is left of anything"


@pytest.fixture(autouse=True)
def rest(system: System) -> None:
    """Wait for all workers before every test."""
    at_rest(system.served)


def options(salt: str, **more: Any) -> dict[str, Any]:
    """Settings that change logits and draws, and a salt so that nothing is found cached."""
    extra = {"cache_salt": f"{salt}, {next(NUMBERS)}", "return_token_ids": True, "ignore_eos": True}
    return {"model": MODEL, "max_tokens": TOKENS, "seed": 5, "temperature": 0.9, "extra_body": extra} | more


def test_a_chat_streams_what_it_says_whole(system: System, said: dict[str, Any]) -> None:
    create = system.client.chat.completions.create
    more = {"n": 3, "logprobs": True, "top_logprobs": 2, "presence_penalty": 0.3}
    whole = Gathered.of(create(messages=QUESTION, **options("chat 1", **more)))
    streamed = Gathered()
    chunks = create(messages=QUESTION, stream=True, stream_options={"include_usage": True}, **options("chat 2", **more))
    for chunk in system.half_way(chunks):
        streamed.add(chunk)
    assert streamed == whole == said.setdefault("chat", whole)
    assert [len(ids) for ids in whole.ids.values()] == [TOKENS] * 3 == [len(some) for some in whole.logprobs.values()]
    assert whole.usage["completion_tokens"] == 3 * TOKENS and set(whole.reasons.values()) == {"length"}


def test_the_first_chunk_of_a_choice_has_the_role(system: System) -> None:  # F4
    chunks = list(system.client.chat.completions.create(messages=QUESTION, stream=True, n=2, **options("role")))
    firsts = {chunk.choices[0].index: chunk.choices[0].delta for chunk in reversed(chunks)}
    assert {index: (delta.role, delta.content) for index, delta in firsts.items()} == dict.fromkeys(
        (0, 1), ("assistant", "")
    )
    assert len({chunk.id for chunk in chunks}) == len({chunk.system_fingerprint for chunk in chunks}) == 1


def test_a_completion_of_several_prompts(system: System, said: dict[str, Any]) -> None:
    create = system.client.completions.create
    asked: dict[str, Any] = {"prompt": ["It was", "Once upon a time"], "n": 2, "logprobs": 1, "echo": True}
    whole = Gathered.of(create(**asked, **options("texts 1")))
    streamed = Gathered()
    for chunk in system.half_way(
        create(**asked, stream=True, stream_options={"include_usage": True}, **options("texts 2"))
    ):
        streamed.add(chunk)
    assert streamed == whole == said.setdefault("texts", whole)
    assert [text[:2] for text in whole.texts.values()] == ["It", "It", "On", "On"]


def test_a_stop_string_ends_the_stream_where_it_ends_the_answer(system: System, said: dict[str, Any]) -> None:
    """The stop string is taken from the model's own output, so that it spans tokens at any position."""
    create = system.client.completions.create
    text = create(prompt="It was", **options("stop 0")).choices[0].text
    for number, begin in enumerate((1, len(text) // 2)):
        stop = text[begin : begin + 5]
        whole = Gathered.of(create(prompt="It was", stop=[stop], **options(f"stop 1 {number}")))
        streamed = Gathered()
        for chunk in system.half_way(
            create(prompt="It was", stop=stop, stream=True, stream_options={"include_usage": True},
                   **options(f"stop 2 {number}"))
        ):  # fmt: skip
            streamed.add(chunk)
        assert streamed == whole == said.setdefault(f"stop {number}", whole)
        assert whole.texts[0] == text[: text.index(stop)] and whole.reasons[0] == "stop"


def test_async_streams_side_by_side(system: System, said: dict[str, Any]) -> None:
    async def one(client: openai.AsyncOpenAI, number: int) -> Gathered:
        gathered = Gathered()
        chunks: AsyncIterator[Any] = await client.chat.completions.create(
            messages=QUESTION, stream=True, stream_options={"include_usage": True},
            **options(f"async {number}", seed=number),
        )  # fmt: skip
        seen = 0
        async for chunk in chunks:
            gathered.add(chunk)
            seen += 1
            # A death is a start more, and every run has one beside as many streams (tests/system/test_failover.py).
            if is_long() and number == 0 and seen == HALF_WAY:
                await asyncio.to_thread(system.disturb)
        return gathered

    async def all_of_them() -> list[Gathered]:
        async with openai.AsyncOpenAI(base_url=system.url, api_key="unused", max_retries=0) as client:
            return list(await asyncio.gather(*(one(client, number) for number in range(8))))

    answers = asyncio.run(all_of_them())
    assert answers == said.setdefault("async", answers)
    assert [answer.usage["completion_tokens"] for answer in answers] == [TOKENS] * 8


def test_a_stream_that_is_closed_leaves_nothing(system: System) -> None:  # F7
    with system.client.completions.create(prompt="It was", stream=True, **options("left", max_tokens=400)) as chunks:
        next(iter(chunks))
    at_rest(system.served)


def test_errors_have_the_clients_types(system: System) -> None:  # F3
    client = system.client
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(prompt="x", **options("bad", max_tokens=-1))
    assert bad.value.param == "max_tokens" and bad.value.status_code == 400
    with pytest.raises(openai.BadRequestError) as unknown:
        client.completions.create(model=MODEL, prompt="x", extra_body={"temprature": 1})
    assert unknown.value.param == "temprature" and unknown.value.code == "unknown_parameter"
    with pytest.raises(openai.NotFoundError) as nobody:
        client.chat.completions.create(model="nobody", messages=QUESTION)
    assert nobody.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError, match="embeddings are not served"):
        client.embeddings.create(model=MODEL, input="x")


def test_the_model_is_listed(system: System) -> None:
    (model,) = system.client.models.list()
    assert model.id == MODEL and model == system.client.models.retrieve(MODEL)
    assert model.model_dump()["max_model_len"] > 0


@pytest.mark.long  # tests/system/test_failover.py, and deaths in tests/world
def test_the_worker_dies_half_way_through_a_stream_where_it_should(system: System) -> None:
    """A death is no failover where the stream has ended before it, as it can on a crowded machine: another is tried."""

    def moved() -> bool:
        at_rest(system.served)
        before = system.failovers
        for _ in system.half_way(system.client.completions.create(prompt="It was", stream=True, **options("moved"))):
            pass
        return system.failovers > before

    assert any(moved() for _ in range(4)) == (system.harm is not None)
