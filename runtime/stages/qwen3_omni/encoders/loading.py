# SPDX-License-Identifier: Apache-2.0
"""Loading of the encoders of a Qwen3-Omni directory."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from pontil.runtime.errors import ModelError
from pontil.runtime.stages.graph.medium import IMAGE, SOUND
from pontil.runtime.stages.qwen3_omni.directory import AUDIO_TOWER, VISION_TOWER, part
from pontil.runtime.stages.qwen3_omni.encoders.audio import AudioEncoder
from pontil.runtime.stages.qwen3_omni.encoders.config import halved, media_kinds, read_audio_config, read_vision_config
from pontil.runtime.stages.qwen3_omni.encoders.forms import read_image_form
from pontil.runtime.stages.qwen3_omni.encoders.node import Encode, ImageEncoding, MediaNode, SoundEncoding
from pontil.runtime.stages.qwen3_omni.encoders.vision import VisionEncoder
from pontil.runtime.stages.qwen3_omni.speech_loading import ReadPart


def load_media_node(path: Path, read: ReadPart) -> MediaNode:
    """Load the encoders that a directory has. Raises ModelError for one that has none."""
    kinds, encoders = media_kinds(path), dict[str, Encode]()
    if not kinds:
        raise ModelError(
            f"{path} has no encoder of recordings or images: leave out the stage, or fetch the whole model"
        )
    if SOUND in kinds:
        encoders[SOUND] = SoundEncoding(load_audio_encoder(path, read))
    if IMAGE in kinds:
        encoders[IMAGE] = ImageEncoding(load_vision_encoder(path, read), read_image_form(path))
    return MediaNode(encoders, identity(path, kinds))


def identity(path: Path, kinds: Sequence[str]) -> str:
    """Return a hash of all that the rows depend on, besides the bytes and the kernels."""
    facts = [
        *([part(path, read_audio_config(path), AUDIO_TOWER, None).fingerprint] if SOUND in kinds else []),
        *([part(path, read_vision_config(path), VISION_TOWER, None).fingerprint] if IMAGE in kinds else []),
        *([repr(read_image_form(path))] if IMAGE in kinds else []),
    ]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def product_inputs(path: Path) -> tuple[int, ...]:
    """Return the inputs of each product of the encoders that a directory has."""
    kinds, found = media_kinds(path), list[int]()
    if SOUND in kinds:
        sound = read_audio_config(path)
        sizes = sound.sizes
        found += [sizes.hidden_size, sizes.intermediate_size, sound.channels * halved(sound.bands)]
    if IMAGE in kinds:
        image = read_vision_config(path)
        sizes = image.sizes
        found += [
            sizes.hidden_size,
            sizes.intermediate_size,
            image.numbers_of_patch,
            sizes.hidden_size * image.merge**2,
        ]
    return tuple(found)


def load_audio_encoder(path: Path, read: ReadPart) -> AudioEncoder:
    """Load the encoder of sound. Raises ModelError."""
    config = read_audio_config(path)
    return AudioEncoder(config, read(part(path, config, AUDIO_TOWER, None), "encoder of sound"))


def load_vision_encoder(path: Path, read: ReadPart) -> VisionEncoder:
    """Load the encoder of images. Raises ModelError."""
    config = read_vision_config(path)
    return VisionEncoder(config, read(part(path, config, VISION_TOWER, None), "encoder of images"))
