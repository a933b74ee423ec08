# SPDX-License-Identifier: Apache-2.0
"""Typed reading of a model's JSON files. No torch here."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from pontil.runtime.errors import ModelError


def read_json(path: Path) -> dict[str, Any]:
    """Read an object from a JSON file. Raises ModelError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: fetch the model again") from error
    if not isinstance(data, dict):
        raise ModelError(f"{path} holds no JSON object: fetch the model again")
    return data


# More layers than any model has: loops over them begin before a configuration is whole, and checked.
MOST_LAYERS = 1024
# No size or id of a model is larger.
MOST = 1 << 40


def integer(data: dict[str, Any], key: str, default: int | None = None) -> int:
    value = data.get(key)
    value = default if value is None else value
    if type(value) is not int or abs(value) > MOST:
        raise ModelError(f"config.json needs a whole number as {key}, not {short(value)}")
    return value


def layer_count(data: dict[str, Any]) -> int:
    layers = integer(data, "num_hidden_layers")
    if not 1 <= layers <= MOST_LAYERS:
        raise ModelError(f"the model's num_layers is {layers}: it must be positive, and at most {MOST_LAYERS}")
    return layers


def number(data: dict[str, Any], key: str, default: float | None = None) -> float:
    value = data.get(key)
    value = default if value is None else value
    # A whole number of JSON may be larger than any float, and Python reads NaN and Infinity, too.
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MOST:
        return float(value)
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise ModelError(f"config.json needs a number as {key}, not {short(value)}")


def section(data: dict[str, Any], key: str) -> dict[str, Any]:
    """An object within the file; an empty one when it is absent."""
    found = data.get(key) or {}
    if not isinstance(found, dict):
        raise ModelError(f"config.json needs an object as {key}, not {short(found)}")
    return found


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"
