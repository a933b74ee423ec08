# SPDX-License-Identifier: Apache-2.0
"""The README's example, and the real OpenAI client against real workers."""

import json
import re
import shlex
from pathlib import Path

import openai
import pytest
from forked_program import run_program
from openai.types.chat import ChatCompletionMessageParam
from served import ROOT, Served

NAME = "smollm2-135m-instruct"


@pytest.fixture
def served(pair: Served) -> Served:
    return pair


@pytest.fixture
def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key="none", max_retries=0)


def test_the_example_in_the_readme_runs(served: Served, tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert "127.0.0.1:8000" in example
    script = tmp_path / "example.py"
    script.write_text(example.replace("127.0.0.1:8000", f"127.0.0.1:{served.port}"))
    done = run_program([str(script)])
    assert done.returncode == 0, done.stderr
    assert "Tokyo" in done.stdout and "completion_tokens=8" in done.stdout


def test_the_curl_example_in_the_readme_is_answered(served: Served) -> None:
    (block,) = re.findall(r"```sh\n(curl .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    words = shlex.split(block)
    assert words[1].startswith("http://127.0.0.1:8000/") and words[2:4] == ["-H", "Content-Type: application/json"]
    reply = served.request(
        "POST", words[1].removeprefix("http://127.0.0.1:8000"), json.loads(words[words.index("-d") + 1])
    )
    assert reply.status == 200 and "Tokyo" in reply.json()["choices"][0]["message"]["content"]


def test_every_route_that_the_readme_names_answers(served: Served) -> None:
    named = set(re.findall(r"`(/[a-z/0-9]+)`", (ROOT / "README.md").read_text()))
    assert {"/v1/models", "/health", "/ready", "/metrics", "/version", "/admin/topology"} <= named
    for path in named:
        assert served.request("GET", path).status in (200, 405), path


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=NAME, prompt="The capital of France is", max_tokens=5, temperature=0)
    assert answer.choices[0].text.startswith(" Paris") and answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 5, 10)


def test_chat_streamed_with_usage(client: openai.OpenAI) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
    whole = client.chat.completions.create(model=NAME, messages=messages, max_tokens=20, temperature=0)
    stream = client.chat.completions.create(
        model=NAME, messages=messages, max_tokens=20, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert not chunks[-1].choices and chunks[-1].usage is not None and whole.usage is not None
    # The second request hit more of the prefix cache.
    as_if = {"prompt_tokens_details": whole.usage.prompt_tokens_details}
    assert chunks[-1].usage.model_copy(update=as_if) == whole.usage


def test_errors_map_to_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="nobody"):
        client.completions.create(model="nobody", prompt="x")
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.completions.create(model=NAME, prompt="x", max_tokens=-1)
    assert [model.id for model in client.models.list()] == [NAME]
