# SPDX-License-Identifier: Apache-2.0
"""Loading of the encoders of a Qwen3-Omni directory."""

from pathlib import Path

from pontil.runtime.stages.qwen3_omni.directory import AUDIO_TOWER, VISION_TOWER, part
from pontil.runtime.stages.qwen3_omni.encoders.audio import AudioEncoder
from pontil.runtime.stages.qwen3_omni.encoders.config import read_audio_config, read_vision_config
from pontil.runtime.stages.qwen3_omni.encoders.vision import VisionEncoder
from pontil.runtime.stages.qwen3_omni.speech_loading import ReadPart


def load_audio_encoder(path: Path, read: ReadPart) -> AudioEncoder:
    """Load the encoder of sound. Raises ModelError."""
    config = read_audio_config(path)
    return AudioEncoder(config, read(part(path, config, AUDIO_TOWER, None), "encoder of sound"))


def load_vision_encoder(path: Path, read: ReadPart) -> VisionEncoder:
    """Load the encoder of images. Raises ModelError."""
    config = read_vision_config(path)
    return VisionEncoder(config, read(part(path, config, VISION_TOWER, None), "encoder of images"))
