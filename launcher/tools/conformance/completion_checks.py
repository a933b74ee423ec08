# SPDX-License-Identifier: Apache-2.0
"""Checks of models and completions."""

from typing import Any

from pontil.launcher.tools.conformance.api import Api, expect
from pontil.launcher.tools.conformance.check import Check, topic

CHECKS: list[Check] = []
models, completions, streams = topic("models", CHECKS), topic("completions", CHECKS), topic("streams", CHECKS)


@models("GET /v1/models lists models with their ids")
def list_models(api: Api) -> None:
    listed = api.get("/v1/models").good()
    expect(listed.get("object") == "list", "object is not list")
    expect(
        all(one["object"] == "model" and isinstance(one["id"], str) for one in listed["data"]), "an entry is no model"
    )
    expect(api.model in [one["id"] for one in listed["data"]], f"{api.model} is not listed")


@models("GET /v1/models/ID shows one model")
def one_model(api: Api) -> None:
    expect(api.get(f"/v1/models/{api.model}").optional().get("id") == api.model, "another id")


@completions("an answer has id, object, created, model, choices and usage")
def shape(api: Api) -> None:
    made = api.complete().good()
    expect(made["object"] == "text_completion" and isinstance(made["id"], str), "object or id")
    expect(isinstance(made["created"], int) and made["model"] == api.model, "created or model")
    choice = made["choices"][0]
    expect(isinstance(choice["text"], str) and choice["index"] == 0, "text or index")
    check_usage(made["usage"])


def check_usage(usage: dict[str, Any]) -> None:
    prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
    expect(prompt > 0 and completion > 0, f"counts that are not above 0: {usage}")
    expect(usage["total_tokens"] == prompt + completion, f"total_tokens is not the sum: {usage}")


@completions("max_tokens ends an answer with finish_reason length, and usage counts so many")
def length(api: Api) -> None:
    made = api.complete(prompt="Once upon a time", max_tokens=3).good()
    if made["choices"][0]["finish_reason"] == "length":
        expect(made["usage"]["completion_tokens"] == 3, f"{made['usage']['completion_tokens']} tokens instead of 3")
    else:
        expect(made["choices"][0]["finish_reason"] == "stop", f"finish_reason {made['choices'][0]['finish_reason']}")


@completions("several prompts give a choice each, in their order")
def several(api: Api) -> None:
    first, second = "One, two, three,", "The capital of France is"
    made = api.complete(prompt=[first, second]).good()
    expect([choice["index"] for choice in made["choices"]] == [0, 1], "indices are not 0 and 1")
    for choice, prompt in zip(made["choices"], (first, second), strict=True):
        expect(
            choice["text"] == api.complete(prompt=prompt).good()["choices"][0]["text"], f"another text for {prompt!r}"
        )


@completions("a prompt of token ids is counted as so many")
def token_ids(api: Api) -> None:
    made = api.complete(prompt=[105, 106, 107, 108, 109]).optional()
    expect(made["usage"]["prompt_tokens"] == 5, f"{made['usage']['prompt_tokens']} instead of 5")


@completions("echo puts the prompt before the answer")
def echo(api: Api) -> None:
    made = api.complete(echo=True).optional()
    expect(
        made["choices"][0]["text"].lstrip().startswith("One, two, three,"), "the text does not begin with the prompt"
    )


@completions("n gives so many choices, and usage counts them all")
def many(api: Api) -> None:
    made = api.complete(n=2, temperature=1, seed=5, max_tokens=6, stop=None).good()
    expect([choice["index"] for choice in made["choices"]] == [0, 1], "indices are not 0 and 1")
    cut = sum(choice["finish_reason"] == "length" for choice in made["choices"])
    expect(made["usage"]["completion_tokens"] >= 6 * cut, f"usage counts {made['usage']['completion_tokens']}")


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
    found = choice["logprobs"]
    count = len(found["tokens"])
    expect(count > 0, "no tokens")
    same = all(len(found[name]) == count for name in ("token_logprobs", "top_logprobs", "text_offset"))
    expect(same, "lists of different lengths")
    expect("".join(found["tokens"]) == choice["text"], "the tokens do not make the text")
    expect(all(value <= 0 for value in found["token_logprobs"]), "a logprob above 0")


@completions("a seed makes a random answer repeatable")
def seed(api: Api) -> None:
    texts = {api.complete(temperature=1, seed=11, max_tokens=12).good()["choices"][0]["text"] for _ in range(2)}
    expect(len(texts) == 1, "the same seed gave two texts")


@completions("logit_bias of 100 forces a token")
def bias(api: Api) -> None:
    asked = {"max_tokens": 1, "logit_bias": {"300": 100}}
    texts = {api.complete(prompt=prompt, **asked).optional()["choices"][0]["text"] for prompt in ("One,", "The sea")}
    expect(len(texts) == 1, f"different tokens: {sorted(texts)}")


@streams("a completion's events make the same text, and [DONE] is last")
def stream(api: Api) -> None:
    made = api.stream_completion()
    expect(made.content_type.startswith("text/event-stream"), f"content type {made.content_type!r}")
    expect(made.done, "no [DONE]")
    expect(made.text == api.complete().good()["choices"][0]["text"], "another text than without a stream")
    expect(sum(bool(choice.get("finish_reason")) for choice in made.choices) == 1, "not one finish_reason")


@streams("include_usage adds one last event with usage and no choices")
def stream_usage(api: Api) -> None:
    made = api.stream_completion(stream_options={"include_usage": True})
    expect(made.events[-1]["choices"] == [], "the last event has choices")
    check_usage(made.events[-1]["usage"])
    expect(not any(event.get("usage") for event in made.events[:-1]), "usage in an earlier event")


@streams("without include_usage no event has usage")
def stream_without_usage(api: Api) -> None:
    expect(not any(event.get("usage") for event in api.stream_completion().events), "an event has usage")


@streams("a stream of several choices names each event's choice")
def stream_choices(api: Api) -> None:
    made = api.stream_completion(n=2, temperature=1, seed=3)
    expect({choice["index"] for choice in made.choices} == {0, 1}, "indices are not 0 and 1")
    ended = [choice["index"] for choice in made.choices if choice.get("finish_reason")]
    expect(sorted(ended) == [0, 1], f"choices that ended: {ended}")
