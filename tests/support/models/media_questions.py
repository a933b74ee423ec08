# SPDX-License-Identifier: Apache-2.0
"""Questions with recordings and images, as a client asks them and as transformers takes them, and their answers."""

import base64
import io
import json
import wave
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from served import Served
from spoken import NOTHING, Spoken, speak

from pontil.runtime.stages.nodes.log_mel import mel_filters
from pontil.runtime.stages.nodes.windows import RATE
from pontil.runtime.stages.qwen3_omni.encoders.config import read_vision_config
from pontil.runtime.stages.qwen3_omni.encoders.features import image_patches, sound_features
from pontil.runtime.stages.qwen3_omni.encoders.forms import TEXTS, read_image_form

if TYPE_CHECKING:
    from tiny_omni import OmniPair

TOKENS = 8
FORM = {"min_pixels": 32 * 32, "max_pixels": 1 << 16, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.3, 0.2]}
NOISE = np.random.default_rng(3)


def recording(seconds: float) -> bytes:
    """Return a WAV file of 16,000 samples a second."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(RATE)
        writer.writeframes((NOISE.standard_normal(int(seconds * RATE)) * 8000).astype("<i2").tobytes())
    return file.getvalue()


def picture(width: int, height: int) -> bytes:
    """Return a PNG of a size in which it enters the encoder as it is."""
    file = io.BytesIO()
    Image.fromarray(NOISE.integers(0, 255, (height, width, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def heard(data: bytes) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": "wav"}}


def seen(data: bytes) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


@dataclass(frozen=True)
class ShownQuestion:
    """The parts of a user's message: texts, WAV and PNG files."""

    parts: tuple[str | bytes, ...]

    def content(self) -> list[dict[str, Any]]:
        return [
            {"type": "text", "text": part}
            if isinstance(part, str)
            else heard(part)
            if part.startswith(b"RIFF")
            else seen(part)
            for part in self.parts
        ]

    def for_transformers(self, pair: "OmniPair") -> dict[str, Any]:
        vision, form = read_vision_config(pair.path), read_image_form(pair.path)
        text, features, patches, grids = "", list[torch.Tensor](), list[torch.Tensor](), list[tuple[int, int, int]]()
        for part in self.parts:
            if isinstance(part, str):
                text += part
            elif part.startswith(b"RIFF"):
                with wave.open(io.BytesIO(part)) as file:
                    samples = np.frombuffer(file.readframes(1 << 30), "<i2").astype(np.float32) / np.float32(32768)
                features.append(sound_features(samples, mel_filters(16)))
                rows = rows_of(features[-1].shape[1])
                text += TEXTS["audio"].replace(mark_of("audio"), mark_of("audio") * rows)
            else:
                made, grid = image_patches(np.array(Image.open(io.BytesIO(part))), vision, form)
                patches.append(made)
                grids.append(grid)
                text += TEXTS["image"].replace(mark_of("image"), mark_of("image") * (len(made) // 4))
        ids = pair.encoded(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")
        found: dict[str, Any] = {"input_ids": torch.tensor([ids])}
        found["attention_mask"] = torch.ones_like(found["input_ids"])
        if patches:
            found |= {"pixel_values": torch.cat(patches), "image_grid_thw": torch.tensor(grids)}
        if features:
            longest = max(one.shape[1] for one in features)
            padded = [torch.nn.functional.pad(one, (0, longest - one.shape[1])) for one in features]
            known = [(torch.arange(longest) < one.shape[1]).long() for one in features]
            found |= {"input_features": torch.stack(padded), "feature_attention_mask": torch.stack(known)}
        return found


def mark_of(kind: str) -> str:
    """Return the special token that stands for one row."""
    return TEXTS[kind].split("|>")[1] + "|>"


def rows_of(frames: int) -> int:
    whole, rest = divmod(frames, 100)
    return whole * 13 + -(-rest // 8)


QUESTIONS = {
    "images": ShownQuestion(("what is ", picture(64, 96), " and ", picture(96, 96), "?")),
    "a recording": ShownQuestion((recording(2.3), "say it again")),
    "both": ShownQuestion(("a ", picture(96, 64), " b ", recording(0.4), picture(64, 64), recording(1.2), " c")),
}


def let_see(folder: Path) -> None:
    """Write what a tiny model lacks to see: how images are prepared for it."""
    (folder / "preprocessor_config.json").write_text(json.dumps(FORM))


def ask(served: Served, question: ShownQuestion, **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": question.content()}], "max_tokens": TOKENS, "temperature": 0}
    reply = served.request("POST", "/v1/chat/completions", body | fields)
    assert reply.status == 200, reply.text()
    found: dict[str, Any] = reply.json()
    return found


def check_other_forms(served: Served) -> None:
    """Check that responses and messages about images say what chats say, also in a later turn and as events."""
    question = QUESTIONS["images"]
    chat = ask(served, question)
    text, details = chat["choices"][0]["message"]["content"], chat["usage"]["prompt_tokens_details"]
    urls = [part.get("image_url", {}).get("url") for part in question.content()]
    pairs = [*zip(question.parts, urls, strict=True)]
    shown = [
        {"type": "input_image", "image_url": url} if url else {"type": "input_text", "text": part}
        for part, url in pairs
    ]
    asked = {"max_output_tokens": TOKENS, "temperature": 0}
    first = answered(served, "/v1/responses", asked | {"input": [{"role": "user", "content": shown}]})
    assert first["output"][0]["content"][0]["text"] == text and first["store"]
    told = first["usage"]["input_tokens_details"]
    assert (told["image_tokens"], first["usage"]["input_tokens"]) == (
        details["image_tokens"],
        chat["usage"]["prompt_tokens"],
    )
    later = answered(served, "/v1/responses", asked | {"input": "again", "previous_response_id": first["id"]})
    assert later["usage"]["input_tokens_details"]["image_tokens"] == details["image_tokens"]
    blocks = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}}
        if url
        else {"type": "text", "text": part}
        for part, url in pairs
    ]
    turn = {"messages": [{"role": "user", "content": blocks}]}
    message = answered(served, "/v1/messages", turn | {"max_tokens": TOKENS, "temperature": 0})
    assert message["content"][0]["text"] == text
    counted = message["usage"]
    assert counted["input_tokens"] + counted["cache_read_input_tokens"] == chat["usage"]["prompt_tokens"]
    assert answered(served, "/v1/messages/count_tokens", turn) == {"input_tokens": chat["usage"]["prompt_tokens"]}
    events = served.request("POST", "/v1/messages", turn | {"max_tokens": TOKENS, "temperature": 0, "stream": True})
    lines = [json.loads(line[6:]) for line in events.text().splitlines() if line.startswith("data: ")]
    assert "".join(line["delta"].get("text", "") for line in lines if line["type"] == "content_block_delta") == text


def answered(served: Served, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = served.request("POST", path, body)
    assert reply.status == 200, reply.text()
    found: dict[str, Any] = reply.json()
    return found


def spoken(served: Served, question: ShownQuestion, on_event: Callable[[int, int], None] = NOTHING) -> Spoken:
    messages = [{"role": "user", "content": question.content()}]
    return speak(served, "", on_event, messages=messages, max_tokens=TOKENS, temperature=0)


def check_answers(served: Served, pair: "OmniPair") -> None:
    """Check the answers in text against transformers, and their counts by kind."""
    for question in QUESTIONS.values():
        given = question.for_transformers(pair)
        found = pair.hugging.thinker.generate(
            **given, max_new_tokens=TOKENS, do_sample=False, eos_token_id=2, pad_token_id=0
        )
        ids, length = found[0].tolist(), given["input_ids"].shape[1]
        answer = ask(served, question)
        assert answer["choices"][0]["message"]["content"] == pair.decoded(ids[length:])
        counted = {f"{kind}_tokens": ids[:length].count(pair.encoded(mark_of(kind))[0]) for kind in TEXTS}
        assert answer["usage"]["prompt_tokens"] == length
        assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0} | counted


def check_choices(served: Served) -> None:
    """Check that several choices are the same whole and streamed, the first of them that of one, and what they count:
    the prompt once, the tokens of all."""
    drawn: dict[str, Any] = {"temperature": 0.9, "seed": 5, "return_token_ids": True}
    for name, question in QUESTIONS.items():
        single = ask(served, question, cache_salt=f"{name} single", **drawn)
        whole = ask(served, question, cache_salt=f"{name} choices", n=3, **drawn)
        ids = [choice["token_ids"] for choice in whole["choices"]]
        assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2] and len({*map(tuple, ids)}) == 3
        assert whole["choices"][0] == single["choices"][0]
        spent = {"prompt_tokens": single["usage"]["prompt_tokens"], "completion_tokens": sum(map(len, ids))}
        assert whole["usage"] | spent == whole["usage"]
        assert whole["usage"]["prompt_tokens_details"] == single["usage"]["prompt_tokens_details"]
        messages = [{"role": "user", "content": question.content()}]
        body = {"messages": messages, "max_tokens": TOKENS, "n": 3, "cache_salt": f"{name} streamed", **drawn}
        events = served.stream("/v1/chat/completions", body)
        streamed = dict[int, list[int]]({0: [], 1: [], 2: []})
        for choice in (choice for event in events for choice in event["choices"]):
            streamed[choice["index"]] += choice.get("token_ids") or []
        assert [streamed[index] for index in range(3)] == ids and events[-1]["usage"] == whole["usage"]


def check_next_turns(served: Served) -> None:
    """Check that a chat's next turn finds the pictures and recordings of the one before, and answers as one that is
    computed whole; another picture as large as the first finds nothing of it."""
    for name, question in QUESTIONS.items():
        # A salt of its own: nothing else has asked this.
        first = ask(served, question, cache_salt=name)
        again = ask(served, question, cache_salt=name)
        assert again["choices"] == first["choices"]
        counts = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in (first, again)]
        assert counts == [0, first["usage"]["prompt_tokens"] - 1]
        later = ShownQuestion((*question.parts, " and now?"))
        found, whole = ask(served, later, cache_salt=name), ask(served, later, cache_salt=f"{name} whole")
        assert found["choices"] == whole["choices"]
        cached = found["usage"]["prompt_tokens_details"]["cached_tokens"]
        shared = first["usage"]["prompt_tokens"] - 16
        assert shared - 32 < cached and whole["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    said, _, *rest = QUESTIONS["images"].parts
    other = ShownQuestion((said, picture(64, 96), *rest))
    told = ask(served, other, cache_salt="images")
    assert told["usage"]["prompt_tokens_details"]["cached_tokens"] <= 16
    assert told["choices"] == ask(served, other, cache_salt="another")["choices"]
