# SPDX-License-Identifier: Apache-2.0
"""The files with the weights of a Hugging Face directory: model.safetensors, or those that
model.safetensors.index.json lists. Others beside them are not read. No torch here."""

from __future__ import annotations

from pathlib import Path

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.json_fields import read_json

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def shards(directory: Path) -> list[Path]:
    """The model's files in the order of their names."""
    if not (directory / INDEX).is_file():
        if (directory / WHOLE).is_file():
            return [directory / WHOLE]
        raise ModelError(f"{directory} has neither {WHOLE} nor {INDEX}: fetch the model's safetensors files")
    places = read_json(directory / INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise ModelError(f"{directory / INDEX} has no weight_map: fetch the model again")
    names = sorted(set(places.values()))
    missing = [name for name in names if Path(name).name != name or not (directory / name).is_file()]
    if missing:
        shard = f"the shard{'s' * (len(missing) > 1)} {', '.join(missing)}"
        raise ModelError(f"{directory} lacks {shard}: fetch the model again")
    return [directory / name for name in names]
