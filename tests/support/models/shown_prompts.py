# SPDX-License-Identifier: Apache-2.0
"""Prompts with images and recordings as transformers takes them and as a Thinker does."""

from dataclasses import dataclass
from typing import Any

import torch
from tiny_omni import OmniPair, omni_tokenizer
from torch import Tensor

from pontil.runtime.models.layers.decoder import Decoder
from pontil.runtime.models.weights import Weights
from pontil.runtime.stages.graph.medium import IMAGE, MEDIA_UNIT, SOUND, Medium
from pontil.runtime.stages.qwen3_omni.directory import PartCheckpoint
from pontil.runtime.stages.qwen3_omni.encoders.loading import load_audio_encoder, load_vision_encoder
from pontil.runtime.stages.qwen3_omni.encoders.media_prompt import MediaPrompt, OmniMedia


def read(checkpoint: PartCheckpoint, part: str) -> Weights:
    return Weights(checkpoint.tensors(), torch.device("cpu"), torch.float32)


def id_of(mark: str) -> int:
    found: int = omni_tokenizer().get_vocab()[mark]
    return found


@dataclass
class MediaQuestion:
    """A prompt of text (a number of ids), recordings (frames) and images (patches in a line and in a column), as both
    implementations take it."""

    prompt: list[int]
    features: list[Tensor]
    images: list[tuple[Tensor, tuple[int, int, int]]]
    order: str

    @classmethod
    def of(cls, *parts: int | tuple[str, int] | tuple[int, int]) -> "MediaQuestion":
        asked = cls([], [], [], "")
        generator = torch.Generator().manual_seed(len(parts))
        for part in parts:
            if isinstance(part, int):
                asked.prompt += torch.randint(0, 200, (part,), generator=generator).tolist()
            elif part[0] == "sound":
                frames = int(part[1])
                asked.features.append(torch.randn(16, frames, generator=generator))
                asked.prompt += [id_of("<|audio_start|>"), *[id_of("<|audio_pad|>")] * (-(-frames // 8)), 5]
                asked.order += "s"
            else:
                lines, columns = int(part[0]), int(part[1])
                patches = torch.randn(lines * columns, 3 * 2 * 16 * 16, generator=generator)
                asked.images.append((patches, (1, lines, columns)))
                asked.prompt += [id_of("<|vision_start|>"), *[id_of("<|image_pad|>")] * (lines * columns // 4), 6]
                asked.order += "i"
        return asked

    def for_transformers(self) -> dict[str, Any]:
        found: dict[str, Any] = {"input_ids": torch.tensor([self.prompt])}
        found["attention_mask"] = torch.ones_like(found["input_ids"])
        if self.images:
            found["pixel_values"] = torch.cat([patches for patches, _ in self.images])
            found["image_grid_thw"] = torch.tensor([grid for _, grid in self.images])
        if self.features:
            longest = max(one.shape[1] for one in self.features)
            found["input_features"] = torch.stack(
                [torch.nn.functional.pad(one, (0, longest - one.shape[1])) for one in self.features]
            )
            found["feature_attention_mask"] = torch.stack(
                [(torch.arange(longest) < one.shape[1]).long() for one in self.features]
            )
        return found

    def media(self, pair: OmniPair) -> list[tuple[Medium, Tensor]]:
        hearing, seeing = load_audio_encoder(pair.path, read), load_vision_encoder(pair.path, read)
        features, images = iter(self.features), iter(self.images)
        found = list[tuple[Medium, Tensor]]()
        for kind in self.order:
            if kind == "s":
                rows = hearing.encode(next(features))
                found.append((Medium(SOUND, len(rows), 1), rows.unsqueeze(1)))
            else:
                patches, grid = next(images)
                rows, deep = seeing.encode(patches, grid)
                whole = torch.cat((rows.unsqueeze(1), deep.transpose(0, 1)), 1)
                found.append((Medium(IMAGE, len(rows), 1, grid[1] // 2, grid[2] // 2), whole))
        return found


def marks() -> dict[str, int]:
    return {SOUND: id_of("<|audio_pad|>"), IMAGE: id_of("<|image_pad|>")}


def prompt_of(pair: OmniPair, model: Decoder, asked: MediaQuestion) -> MediaPrompt:
    media = asked.media(pair)
    prompt = OmniMedia(pair.path, model).begin(asked.prompt, [medium for medium, _ in media])
    for _, rows in media:
        for item in rows.split(MEDIA_UNIT):
            prompt.push(item)
    return prompt
