# SPDX-License-Identifier: Apache-2.0
"""The official client against the real app."""

import openai
import pytest
from scripted_site import MODEL, Site

TEXT = "Hello 😀 world"


@pytest.fixture
def client(pair: Site) -> openai.OpenAI:
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
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], reasoning_effort="low"
        )
    assert caught.value.param == "reasoning_effort" and caught.value.code == "unsupported_parameter"


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "pontil"
