# SPDX-License-Identifier: Apache-2.0
"""Answers as a client receives them, in the forms of seven routes: completions, chats (also in sound),
responses, embeddings, rankings, scores and texts that are read out.

A chat's or a response's prompt is its conversation, which the client writes and encodes itself, without the product's
template."""

import base64
import json
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pontil.runtime.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from clients import ClientTry, ClientWish, SoundWish

COMPLETION, CHAT, RESPONSE, EMBEDDING = "completion", "chat", "response", "embedding"
RANKING, SCORES = "ranking", "scores"
SPOKEN, SPEECH = "spoken chat", "speech"
PATHS = {
    COMPLETION: "/v1/completions", CHAT: "/v1/chat/completions", RESPONSE: "/v1/responses", EMBEDDING: "/v1/embeddings",
    SPOKEN: "/v1/chat/completions", SPEECH: "/v1/audio/speech", RANKING: "/v1/rerank", SCORES: "/v1/score",
}  # fmt: skip
OPENING = ("response.created", "response.in_progress", "response.output_item.added", "response.content_part.added")
DELTA = "response.output_text.delta"
CLOSING = ("response.output_text.done", "response.content_part.done", "response.output_item.done")
FINISHES = {"response.completed": "stop", "response.incomplete": "length"}

Message = tuple[str, str]


def prompt_of(messages: Sequence[Message], tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of a conversation, as the tiny model's template writes it."""
    told = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in messages)
    return tokenizer.encode(f"{told}<|im_start|>assistant\n", add_special_tokens=False)


def body_of(wish: "ClientWish") -> bytes:
    if (numbers := wish.vectors or wish.scores) is not None:
        return json.dumps(numbers.fields | {"priority": wish.priority}).encode()
    if wish.form == SPEECH:
        return json.dumps(speech_fields(wish)).encode()
    told: dict[str, Any] = {"model": "tiny", "seed": wish.seed, "ignore_eos": True, "priority": wish.priority}
    if wish.stop is not None:
        told["stop"] = [wish.stop]
    if wish.form == RESPONSE:
        return json.dumps(told | response_fields(wish)).encode()
    told |= {"max_tokens": wish.max_tokens, "n": wish.choices, "return_token_ids": True}
    if wish.stream:
        told |= {"stream": True, "stream_options": {"include_usage": True}}
    if wish.sound is not None:
        told |= {"modalities": ["text", "audio"], "audio": sound_fields(wish.sound, "format", "pcm16")}
    if wish.form in (CHAT, SPOKEN):
        told["messages"] = [{"role": role, "content": text} for role, text in wish.messages]
    else:
        told["prompt"] = wish.prompt
    return json.dumps(told).encode()


def sound_fields(wish: "SoundWish", form: str, plain: str) -> dict[str, Any]:
    return {form: "wav" if wish.in_wav else plain} | ({"voice": wish.voice} if wish.voice else {})


def speech_fields(wish: "ClientWish") -> dict[str, Any]:
    assert wish.sound is not None
    told = {"input": wish.messages[0][1], "stream": wish.sound.streams, "priority": wish.priority}
    return told | sound_fields(wish.sound, "response_format", "pcm")


def response_fields(wish: "ClientWish") -> dict[str, Any]:
    """Return the fields of a response. One that goes on after another has only what is new as its input."""
    told: dict[str, Any] = {"max_output_tokens": wish.max_tokens, "stream": wish.stream}
    (role, first), *rest = wish.messages
    if role == "system":
        told["instructions"] = first
    else:
        rest = [*wish.messages]
    if wish.previous is not None:
        return told | {"previous_response_id": wish.previous, "input": rest[-1][1]}
    if len(rest) == 1:
        return told | {"input": rest[0][1]}
    return told | {"input": [{"role": role, "content": text} for role, text in rest]}


def take_event(one: "ClientTry", form: str, told: dict[str, Any]) -> None:
    """Take the data of an event of a stream."""
    if form == RESPONSE:
        take_response_event(one, told)
    else:
        take_chunk(one, told)


def take_whole(one: "ClientTry", form: str, body: bytes) -> None:
    """Take a whole answer."""
    if form == SPEECH:
        one.sound += body
        one.usage = {"prompt_tokens": 0, "completion_tokens": 0}
        return
    told = json.loads(body)
    if form == RESPONSE:
        take_response(one, told)
    elif form == EMBEDDING:
        take_vectors(one, told)
    elif form in (RANKING, SCORES):
        take_scores(one, told)
    else:
        take_chunk(one, told)


def take_vectors(one: "ClientTry", told: dict[str, Any]) -> None:
    if [item["index"] for item in told["data"]] != list(range(len(told["data"]))):
        one.odd.append("has its vectors in another order")
    one.vectors = [numbers_of(item["embedding"]) for item in told["data"]]
    one.usage = {"prompt_tokens": told["usage"]["total_tokens"], "completion_tokens": 0}


def take_scores(one: "ClientTry", told: dict[str, Any]) -> None:
    """Take the scores of pairs, in their order or that of a ranking."""
    ranked = told.get("results")
    one.scores = [(item["index"], item["score"]) for item in told.get("data", ())]
    if ranked is not None:
        one.scores = [(item["index"], item["relevance_score"]) for item in ranked]
    one.usage = {"prompt_tokens": told["usage"]["total_tokens"], "completion_tokens": 0}


def numbers_of(vector: list[float] | str) -> "array[float]":
    """Return a vector as float32 numbers, of either form."""
    return array("f", base64.b64decode(vector) if isinstance(vector, str) else vector)


def take_chunk(one: "ClientTry", told: dict[str, Any]) -> None:
    """Take a chunk of a completion or a chat, or a whole one, which has a message in place of the chunks' deltas."""
    one.answer = one.answer or told["id"]
    if told["id"] != one.answer:
        one.odd.append(f"is {one.answer}, and then {told['id']}")
    for choice in told["choices"]:
        index = choice["index"]
        said = choice.get("message") or choice.get("delta") or {}
        audio = said.get("audio") or {}
        one.sound += base64.b64decode(audio.get("data", ""))
        ids = choice.get("token_ids") or []
        text = choice.get("text") or said.get("content") or audio.get("transcript") or ""
        one.ids[index] += ids
        one.texts[index] += text
        if "role" in said and "delta" in choice:
            one.events.append(f"role {index}")
        if ids or text or {"data", "expires_at"} & audio.keys():
            one.events.append(f"part {index}")
        if choice.get("finish_reason"):
            one.finishes[index] = choice["finish_reason"]
            one.events.append(f"end {index}")
    if told.get("usage"):
        one.usage = told["usage"]
        one.frames = told["usage"].get("completion_tokens_details", {}).get("audio_tokens", 0)
        one.events.append("usage")


def take_response_event(one: "ClientTry", told: dict[str, Any]) -> None:
    kind = told["type"]
    if told["sequence_number"] != len(one.events):
        one.odd.append(f"has {kind} as number {told['sequence_number']}, after {len(one.events)}")
    one.events.append(kind)
    if kind == DELTA:
        one.texts[0] += told["delta"]
    elif kind == CLOSING[0] and told["text"] != one.texts[0]:
        one.odd.append("ends its text with another one")
    elif kind in FINISHES:
        streamed, one.texts[0] = one.texts[0], ""
        take_response(one, told["response"])
        if one.texts[0] != streamed or one.finishes[0] != FINISHES[kind]:
            one.odd.append(f"ends by {kind} with another response than its events")


def take_response(one: "ClientTry", told: dict[str, Any]) -> None:
    one.answer, one.kept = told["id"], told["store"]
    parts = [part for item in told["output"] for part in item["content"]]
    one.texts[0] += "".join(part["text"] for part in parts)
    one.finishes[0] = FINISHES[f"response.{told['status']}"]
    usage = told["usage"]
    one.usage = {
        "prompt_tokens": usage["input_tokens"],
        "completion_tokens": usage["output_tokens"],
    } | {name: usage[name] for name in ("service_tier", "share") if name in usage}
