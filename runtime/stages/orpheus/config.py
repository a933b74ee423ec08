# SPDX-License-Identifier: Apache-2.0
"""The facts about SNAC, and about the ids that are its codes. No torch here."""

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.architectures import SIZES, check_size
from pontil.runtime.loaders.facts.json_fields import integer, read_json, short

FOLDER = "snac"
"""The folder of SNAC's files within a model's directory."""
LEVELS = ((0,), (1, 4), (2, 3, 5, 6))
"""The codes of a frame by level, each level twice as fine as the one before: a frame names them depth first."""
FRAME_CODES = 7
FRAME_ROWS = 4
"""Rows of a frame at its finest level."""
STRIDES = [4, 2, 1]
"""Rows that a code of each level stands for."""
MOST_RATES = 8
SAMPLE_RATE = 24000
# Frames are decoded four at a time; one of the published sizes has 2048 samples.
MOST_FRAME_SAMPLES = 1 << 16


@dataclass(frozen=True, slots=True)
class SnacConfig:
    """A decoder of rows of `size` numbers, which makes `rates` times as many, one rate after the other, with half as
    many channels each, from `channels` on. With `noise` each rate adds some, shaped by the sound."""

    size: int
    channels: int
    rates: tuple[int, ...]
    codebook_size: int
    codebook_dim: int
    noise: bool

    @property
    def frame_samples(self) -> int:
        return FRAME_ROWS * math.prod(self.rates)

    @property
    def frame_rows(self) -> tuple[int, ...]:
        """The rows of a frame behind each rate."""
        return tuple(FRAME_ROWS * math.prod(self.rates[: number + 1]) for number in range(len(self.rates)))

    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


def read_snac_config(directory: Path) -> SnacConfig:
    """Read SNAC's config.json within a model's directory. Raises ModelError for what cannot be computed."""
    data = read_json(directory / FOLDER / "config.json")
    wanted: dict[str, Any] = {
        "sampling_rate": SAMPLE_RATE,
        "vq_strides": STRIDES,
        "attn_window_size": None,
        "depthwise": True,
    }
    for key, value in wanted.items():
        if data.get(key) != value:
            raise ModelError(f"SNAC's {key} is {short(data.get(key))}: this version runs {value} only")
    rates = data.get("decoder_rates")
    if not isinstance(rates, list) or not all(type(one) is int and 0 < one <= 64 for one in rates):
        raise ModelError(f"SNAC's config.json needs a list of whole numbers as decoder_rates, not {short(rates)}")
    encoder_rates = data.get("encoder_rates")
    steps = len(encoder_rates) if isinstance(encoder_rates, list) else 0
    config = SnacConfig(
        size=integer(data, "encoder_dim") << min(steps, MOST_RATES),
        channels=integer(data, "decoder_dim"),
        rates=tuple(rates),
        codebook_size=integer(data, "codebook_size"),
        codebook_dim=integer(data, "codebook_dim"),
        noise=bool(data.get("noise")),
    )
    for name in ("size", "channels", "codebook_dim"):
        check_size(f"SNAC's {name}", getattr(config, name), SIZES["hidden_size"])
    check_size("SNAC's codebook_size", config.codebook_size, SIZES["vocab_size"])
    if not 1 <= len(rates) <= MOST_RATES or config.channels >> len(rates) < 1:
        raise ModelError(f"SNAC's {config.channels} channels cannot be halved {len(rates)} times: fix config.json")
    if config.frame_samples > MOST_FRAME_SAMPLES:
        raise ModelError(
            f"SNAC's decoder_rates make {config.frame_samples} samples of a frame, and this version makes "
            f"{MOST_FRAME_SAMPLES} at most: fix config.json"
        )
    return config
