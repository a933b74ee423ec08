# SPDX-License-Identifier: Apache-2.0
"""The official client against the real app."""

import asyncio
from collections.abc import Iterator

import openai
import pydantic
import pytest
from scripted_site import MODEL, ScriptedSite
from scripted_worker import Script, ScriptedWorker

from pontil.runtime.wire.messages import Failed, Message, Submit

TEXT = "Hello 😀 world"


@pytest.fixture
def client(pair: ScriptedSite) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{pair.port}/v1", api_key="unused", max_retries=0)


def test_a_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="hi", max_tokens=40, temperature=0)
    assert answer.choices[0].text == TEXT and answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.completion_tokens == 15


def test_a_chat_stream_with_usage(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TEXT
    assert chunks[0].choices[0].delta.role == "assistant"
    usage = chunks[-1].usage
    assert usage is not None and usage.completion_tokens == 15 and usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 0
    assert usage.completion_tokens_details is not None and usage.completion_tokens_details.reasoning_tokens == 0


def test_errors_have_their_types(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no model 'nobody'"):
        client.completions.create(model="nobody", prompt="hi")
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}], modalities=["audio"])
    assert caught.value.param == "modalities" and caught.value.code == "unsupported_parameter"


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "pontil"


def refusing(status: int) -> Script:
    def script(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
        yield Failed(worker.incarnation, worker.proxy, submit.request_id, submit.attempt, "no", status)

    return script


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (404, openai.NotFoundError),
        (413, openai.APIStatusError),
        (429, openai.RateLimitError),
        (503, openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_every_status_has_its_type(bare: ScriptedSite, status: int, kind: type[Exception], stream: bool) -> None:  # F3
    bare.worker(script=refusing(status))
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{bare.port}/v1", api_key="unused", max_retries=0)
    with pytest.raises(kind) as caught:
        client.completions.create(model=MODEL, prompt="hi", stream=stream)
    assert isinstance(caught.value, openai.APIStatusError) and caught.value.status_code == status


def test_an_error_in_a_stream_is_raised(bare: ScriptedSite) -> None:  # F4
    def breaks(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
        yield worker.tokens(submit, 0, [40])
        bare.wait_for_readers()
        yield from refusing(503)(worker, submit)

    bare.worker(script=breaks)
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{bare.port}/v1", api_key="unused", max_retries=0)
    chunks = iter(client.completions.create(model=MODEL, prompt="hi", stream=True))
    assert next(chunks).choices[0].text
    with pytest.raises(openai.APIError, match="attempt 1 of 1"):
        list(chunks)


def test_async(pair: ScriptedSite) -> None:
    async def ask() -> tuple[str, str]:
        url = f"http://127.0.0.1:{pair.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="unused", max_retries=0) as client:
            whole = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])
            chunks = await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=True
            )
            pieces = [chunk.choices[0].delta.content or "" async for chunk in chunks]
            return whole.choices[0].message.content or "", "".join(pieces)

    assert asyncio.run(ask()) == (TEXT, TEXT)


def set_fields(model: pydantic.BaseModel) -> set[str]:
    """Return the declared fields that an answer had in its body."""
    return model.model_fields_set & set(type(model).model_fields)


def test_a_chat_has_the_fields_of_openais(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], logprobs=True, max_tokens=3
    )
    (choice,), usage = answer.choices, answer.usage
    assert usage is not None and usage.prompt_tokens_details is not None and choice.logprobs is not None
    assert set_fields(choice.message) == {"role", "content", "refusal", "annotations"}
    assert choice.message.refusal is None and choice.message.annotations == []
    assert set_fields(choice.logprobs) == {"content", "refusal"} and choice.logprobs.refusal is None
    assert set_fields(usage.prompt_tokens_details) == {"cached_tokens", "audio_tokens"}
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.to_dict() == {
        "reasoning_tokens": 0, "audio_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
    }  # fmt: skip


def test_a_completion_has_no_details_of_its_tokens(client: openai.OpenAI) -> None:
    usage = client.completions.create(model=MODEL, prompt="a", max_tokens=3).usage
    assert usage is not None and "completion_tokens_details" not in usage.model_fields_set
