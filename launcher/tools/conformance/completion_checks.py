# SPDX-License-Identifier: Apache-2.0
"""Checks of models and completions."""

from typing import Any

from pontil.launcher.tools.conformance.api import Api, expect
from pontil.launcher.tools.conformance.check import Check, topic

CHECKS: list[Check] = []
models, completions, streams = topic("models", CHECKS), topic("completions", CHECKS), topic("streams", CHECKS)


@models("GET /v1/models lists models with their ids")
def list_models(api: Api) -> None:
    model_list = api.get("/v1/models").good()
    expect(model_list.get("object") == "list", "object is not list")
    expect(
        all(card["object"] == "model" and isinstance(card["id"], str) for card in model_list["data"]),
        "an entry is no model",
    )
    expect(api.model in [card["id"] for card in model_list["data"]], f"{api.model} is not listed")


@models("GET /v1/models/ID shows one model")
def one_model(api: Api) -> None:
    expect(api.get(f"/v1/models/{api.model}").optional().get("id") == api.model, "another id")


@completions("an answer has id, object, created, model, choices and usage")
def shape(api: Api) -> None:
    completion = api.complete().good()
    expect(completion["object"] == "text_completion" and isinstance(completion["id"], str), "object or id")
    expect(isinstance(completion["created"], int) and completion["model"] == api.model, "created or model")
    choice = completion["choices"][0]
    expect(isinstance(choice["text"], str) and choice["index"] == 0, "text or index")
    check_usage(completion["usage"])


def check_usage(usage: dict[str, Any]) -> None:
    prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
    expect(prompt > 0 and completion > 0, f"counts that are not above 0: {usage}")
    expect(usage["total_tokens"] == prompt + completion, f"total_tokens is not the sum: {usage}")


@completions("max_tokens ends an answer with finish_reason length, and usage counts so many")
def length(api: Api) -> None:
    completion = api.complete(prompt="Once upon a time", max_tokens=3).good()
    if completion["choices"][0]["finish_reason"] == "length":
        expect(
            completion["usage"]["completion_tokens"] == 3,
            f"{completion['usage']['completion_tokens']} tokens instead of 3",
        )
    else:
        expect(
            completion["choices"][0]["finish_reason"] == "stop",
            f"finish_reason {completion['choices'][0]['finish_reason']}",
        )


@completions("several prompts give a choice each, in their order")
def several(api: Api) -> None:
    first, second = "One, two, three,", "The capital of France is"
    completion = api.complete(prompt=[first, second]).good()
    expect([choice["index"] for choice in completion["choices"]] == [0, 1], "indices are not 0 and 1")
    for choice, prompt in zip(completion["choices"], (first, second), strict=True):
        expect(
            choice["text"] == api.complete(prompt=prompt).good()["choices"][0]["text"], f"another text for {prompt!r}"
        )


@completions("a prompt of token ids is counted as so many")
def token_ids(api: Api) -> None:
    completion = api.complete(prompt=[105, 106, 107, 108, 109]).optional()
    expect(completion["usage"]["prompt_tokens"] == 5, f"{completion['usage']['prompt_tokens']} instead of 5")


@completions("echo puts the prompt before the answer")
def echo(api: Api) -> None:
    completion = api.complete(echo=True).optional()
    expect(
        completion["choices"][0]["text"].lstrip().startswith("One, two, three,"),
        "the text does not begin with the prompt",
    )


@completions("n gives so many choices, and usage counts them all")
def many(api: Api) -> None:
    completion = api.complete(n=2, temperature=1, seed=5, max_tokens=6, stop=None).good()
    expect([choice["index"] for choice in completion["choices"]] == [0, 1], "indices are not 0 and 1")
    cut_count = sum(choice["finish_reason"] == "length" for choice in completion["choices"])
    expect(
        completion["usage"]["completion_tokens"] >= 6 * cut_count,
        f"usage counts {completion['usage']['completion_tokens']}",
    )


@completions("a stop text ends the answer before itself, with finish_reason stop")
def stop(api: Api) -> None:
    whole = api.complete(max_tokens=12).good()["choices"][0]["text"]
    mark = next((part for part in whole.split() if len(part) > 1), whole.strip()[:1])
    expect(mark, "the answer has no text to stop at")
    choice = api.complete(max_tokens=12, stop=[mark]).good()["choices"][0]
    expect(mark not in choice["text"] and whole.startswith(choice["text"]), f"{choice['text']!r} for stop {mark!r}")
    expect(choice["finish_reason"] == "stop", f"finish_reason {choice['finish_reason']}")


@completions("logprobs list tokens, their logprobs, the most likely ones and offsets")
def logprobs(api: Api) -> None:
    choice = api.complete(logprobs=2).optional()["choices"][0]
    choice_logprobs = choice["logprobs"]
    count = len(choice_logprobs["tokens"])
    expect(count > 0, "no tokens")
    same = all(len(choice_logprobs[name]) == count for name in ("token_logprobs", "top_logprobs", "text_offset"))
    expect(same, "lists of different lengths")
    expect("".join(choice_logprobs["tokens"]) == choice["text"], "the tokens do not make the text")
    expect(all(value <= 0 for value in choice_logprobs["token_logprobs"]), "a logprob above 0")


@completions("a seed makes a random answer repeatable")
def seed(api: Api) -> None:
    texts = {api.complete(temperature=1, seed=11, max_tokens=12).good()["choices"][0]["text"] for _ in range(2)}
    expect(len(texts) == 1, "the same seed gave two texts")


@completions("logit_bias of 100 forces a token")
def bias(api: Api) -> None:
    params = {"max_tokens": 1, "logit_bias": {"300": 100}}
    texts = {api.complete(prompt=prompt, **params).optional()["choices"][0]["text"] for prompt in ("One,", "The sea")}
    expect(len(texts) == 1, f"different tokens: {sorted(texts)}")


@streams("a completion's events make the same text, and [DONE] is last")
def stream(api: Api) -> None:
    api_stream = api.stream_completion()
    expect(api_stream.content_type.startswith("text/event-stream"), f"content type {api_stream.content_type!r}")
    expect(api_stream.done, "no [DONE]")
    expect(api_stream.text == api.complete().good()["choices"][0]["text"], "another text than without a stream")
    expect(sum(bool(choice.get("finish_reason")) for choice in api_stream.choices) == 1, "not one finish_reason")


@streams("include_usage adds one last event with usage and no choices")
def stream_usage(api: Api) -> None:
    api_stream = api.stream_completion(stream_options={"include_usage": True})
    expect(api_stream.events[-1]["choices"] == [], "the last event has choices")
    check_usage(api_stream.events[-1]["usage"])
    expect(not any(event.get("usage") for event in api_stream.events[:-1]), "usage in an earlier event")


@streams("without include_usage no event has usage")
def stream_without_usage(api: Api) -> None:
    expect(not any(event.get("usage") for event in api.stream_completion().events), "an event has usage")


@streams("a stream of several choices names each event's choice")
def stream_choices(api: Api) -> None:
    api_stream = api.stream_completion(n=2, temperature=1, seed=3)
    expect({choice["index"] for choice in api_stream.choices} == {0, 1}, "indices are not 0 and 1")
    ended_indices = [choice["index"] for choice in api_stream.choices if choice.get("finish_reason")]
    expect(sorted(ended_indices) == [0, 1], f"choices that ended: {ended_indices}")
