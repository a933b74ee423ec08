# SPDX-License-Identifier: Apache-2.0
"""A model's configuration from any file format. The proxy reads it too, so no torch here."""

from pathlib import Path

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.json_fields import read_json
from pontil.runtime.loaders.gguf.config import read_gguf_config
from pontil.runtime.loaders.hf.config import read_hf_config
from pontil.runtime.loaders.hf.encoder_families import FAMILIES
from pontil.runtime.models.config import ModelConfig


def read_config(path: Path) -> ModelConfig:
    """Read the configuration of a Hugging Face directory or a .gguf file. Raises ModelError."""
    if path.is_dir():
        return read_hf_config(path)
    if path.suffix == ".gguf":
        return read_gguf_config(path)
    raise ModelError(f"{path} is neither a directory with config.json nor a .gguf file")


def is_encoder(path: Path) -> bool:
    """Return whether a model is an encoder, and no decoder. Raises ModelError for an unreadable configuration."""
    return path.is_dir() and read_json(path / "config.json").get("model_type") in tuple(FAMILIES)
