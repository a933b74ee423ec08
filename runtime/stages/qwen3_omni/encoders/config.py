# SPDX-License-Identifier: Apache-2.0
"""The facts about the encoders of a Qwen3-Omni, and their reading from config.json. No torch here."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.architectures import LARGEST_THETA, LEAST_THETA, SIZES, check_range, check_size
from pontil.runtime.loaders.facts.json_fields import MOST_LAYERS, integer, number, read_json, section
from pontil.runtime.loaders.hf.config import refuse_unsupported
from pontil.runtime.loaders.hf.rope import rope
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.stages.graph.medium import IMAGE, SOUND
from pontil.runtime.stages.qwen3_omni.config import hashed

# Sizes that no encoder exceeds.
MOST_BANDS, MOST_PATCH, MOST_CHUNK, MOST_SIDE = 512, 64, 1 << 12, 1 << 10
# The ids that stand for rows of media, and the encoders' sections, in config.json.
MARKS = {SOUND: "audio_token_id", IMAGE: "image_token_id"}
TOWERS = {SOUND: "audio_config", IMAGE: "vision_config"}
# The base of rotary angles where config.json names none.
USUAL_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class TowerSizes:
    """The sizes of an encoder's layers, which are alike."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


@dataclass(frozen=True, slots=True)
class AudioConfig:
    """An encoder of spectrograms of `bands` bands. A chunk of so many frames goes through convolutions of `channels`
    channels by itself, and as many chunks as `chunks_seen` see one another. A row has `output_size` numbers."""

    sizes: TowerSizes
    bands: int
    channels: int
    chunk: int
    chunks_seen: int
    max_positions: int
    output_size: int

    @property
    def rows_of_chunk(self) -> int:
        return halved(self.chunk)

    def rows(self, frames: int) -> int:
        """The rows of a recording of so many frames."""
        whole, rest = divmod(frames, self.chunk)
        return whole * self.rows_of_chunk + halved(rest)

    def fingerprint(self) -> str:
        return hashed(self)


def halved(size: int) -> int:
    """The length of what three convolutions of stride 2 make of so many frames, or bands."""
    for _ in range(3):
        size = -(-size // 2)
    return size


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """An encoder of images, cut into squares of `patch` by `patch` pixels and `pictures` pictures one after the other.
    `merge` by `merge` of them make one row of `output_size` numbers. Positions are learned for a grid of `side` by
    `side`. After each layer of `deep_layers`, in order, rows are made that the Thinker adds to its first layers."""

    sizes: TowerSizes
    patch: int
    pictures: int
    merge: int
    side: int
    rope_theta: float
    deep_layers: tuple[int, ...]
    output_size: int

    @property
    def numbers_of_patch(self) -> int:
        """The numbers of one patch: of three colours, in each picture, in each line."""
        return 3 * self.pictures * self.patch**2

    def rows(self, grid: tuple[int, int, int]) -> int:
        """The rows of an image, or video, whose patches make this grid of times, lines and columns."""
        return math.prod(grid) // self.merge**2

    def fingerprint(self) -> str:
        return hashed(self)


def read_audio_config(path: Path) -> AudioConfig:
    """Read the configuration of the encoder of sound. Raises ModelError for one that is missing, or cannot be."""
    data = tower_section(path, "audio_config")
    refuse_unsupported(data, {"activation_function": "gelu"})
    window = integer(data, "n_window", 50)
    config = AudioConfig(
        sizes=tower_sizes(data, "d_model", "encoder_ffn_dim", "encoder_layers", "encoder_attention_heads"),
        bands=integer(data, "num_mel_bins", 128),
        channels=integer(data, "downsample_hidden_size", 480),
        chunk=2 * window,
        chunks_seen=integer(data, "n_window_infer", 800) // max(1, 2 * window),
        max_positions=integer(data, "max_source_positions", 1500),
        output_size=integer(data, "output_dim"),
    )
    check_tower("encoder of sound", config.sizes, config.output_size)
    check_size("the encoder's num_mel_bins", config.bands, MOST_BANDS)
    check_size("the encoder's downsample_hidden_size", config.channels, SIZES["hidden_size"])
    check_size("the encoder's chunk", config.chunk, MOST_CHUNK)
    check_size("the encoder's n_window_infer, in chunks,", config.chunks_seen, MOST_CHUNK)
    check_size("the encoder's max_source_positions", config.max_positions, 1 << 20)
    if config.rows_of_chunk > config.max_positions or config.sizes.hidden_size < 4:
        raise ModelError("the model's encoder of sound has a chunk with more rows than positions: fix config.json")
    return config


def read_vision_config(path: Path) -> VisionConfig:
    """Read the configuration of the encoder of images. Raises ModelError like `read_audio_config`."""
    data = tower_section(path, "vision_config")
    refuse_unsupported(data, {"hidden_act": "gelu_pytorch_tanh", "in_channels": 3})
    places = integer(data, "num_position_embeddings", 2304)
    config = VisionConfig(
        sizes=tower_sizes(data, "hidden_size", "intermediate_size", "depth", "num_heads"),
        patch=integer(data, "patch_size", 16),
        pictures=integer(data, "temporal_patch_size", 2),
        merge=integer(data, "spatial_merge_size", 2),
        side=math.isqrt(max(0, places)),
        rope_theta=number(section(data, "rope_parameters"), "rope_theta", USUAL_THETA),
        deep_layers=deep_layers(data),
        output_size=integer(data, "out_hidden_size"),
    )
    check_tower("encoder of images", config.sizes, config.output_size)
    for name, most in {"patch": MOST_PATCH, "pictures": MOST_PATCH, "merge": MOST_PATCH, "side": MOST_SIDE}.items():
        check_size(f"the encoder's {name}", getattr(config, name), most)
    check_range("the encoder's rope_theta", config.rope_theta, LEAST_THETA, LARGEST_THETA)
    deep = config.deep_layers
    if config.side**2 != places or config.sizes.head_dim % 4:
        raise ModelError(
            f"the model's encoder of images has {places} positions and heads of {config.sizes.head_dim} numbers: fix "
            "config.json"
        )
    if list(deep) != sorted(set(deep)) or not all(0 <= one < config.sizes.num_layers for one in deep):
        raise ModelError(f"the model's encoder of images has no layers {list(deep)}, in order: fix config.json")
    return config


def read_sections(path: Path, config: ModelConfig, name: str) -> tuple[int, int, int]:
    """Read how many rotary frequencies of the decoder in this section are turned by time, line and column. Raises
    ModelError."""
    text = section(section(read_json(path / "config.json"), name), "text_config")
    found = rope(text)
    sections = found.get("mrope_section", [24, 20, 20])
    whole = isinstance(sections, list) and len(sections) == 3 and all(type(one) is int and one >= 0 for one in sections)
    if not whole or sum(sections) != config.rotated // 2 or max(sections[1:]) > sections[0]:
        raise ModelError("the model's mrope_section does not divide its rotary frequencies: fix config.json")
    if config.rope_scaling is not None or found.get("mrope_interleaved", found.get("interleaved", True)) is not True:
        raise ModelError("the model's rotary positions are scaled, or not in turns: this version hears text only of it")
    return sections[0], sections[1], sections[2]


def media_kinds(path: Path) -> tuple[str, ...]:
    """Return the kinds of media for which a directory has an encoder. Raises ModelError for an unreadable
    configuration."""
    thinker = section(read_json(path / "config.json"), "thinker_config")
    return tuple(kind for kind in MARKS if section(thinker, TOWERS[kind]))


def read_marks(path: Path) -> dict[str, int]:
    """Return the ids that stand for rows of media, by kind. Raises ModelError for a model without one."""
    thinker = section(read_json(path / "config.json"), "thinker_config")
    return {kind: integer(thinker, name) for kind, name in MARKS.items()}


def tower_section(path: Path, name: str) -> dict[str, Any]:
    found = section(section(read_json(path / "config.json"), "thinker_config"), name)
    if not found:
        raise ModelError(f"{path} has no thinker_config.{name}: ask it about text, or choose a whole Qwen3-Omni")
    return found


def tower_sizes(data: Mapping[str, Any], hidden: str, inner: str, layers: str, heads: str) -> TowerSizes:
    return TowerSizes(*(integer(dict(data), name) for name in (hidden, inner, layers, heads)))


def deep_layers(data: Mapping[str, Any]) -> tuple[int, ...]:
    found = data.get("deepstack_visual_indexes", [8, 16, 24])
    if not isinstance(found, list) or not all(type(one) is int for one in found):
        raise ModelError("config.json needs a list of whole numbers as deepstack_visual_indexes")
    return tuple(found)


def check_tower(what: str, sizes: TowerSizes, output_size: int) -> None:
    """Raise ModelError for sizes that no model can have."""
    check_size(f"the {what}'s hidden size", sizes.hidden_size, SIZES["hidden_size"])
    check_size(f"the {what}'s intermediate size", sizes.intermediate_size, SIZES["intermediate_size"])
    check_size(f"the {what}'s output size", output_size, SIZES["hidden_size"])
    check_size(f"the {what}'s number of layers", sizes.num_layers, MOST_LAYERS)
    check_size(f"the {what}'s number of heads", sizes.num_heads, sizes.hidden_size)
    if sizes.hidden_size % sizes.num_heads:
        raise ModelError(f"the {what} has {sizes.num_heads} heads for {sizes.hidden_size} numbers: fix config.json")
