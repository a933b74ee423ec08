# SPDX-License-Identifier: Apache-2.0
"""Reading of the fields of quantization_config, each with a sentence for what is not known. No torch here."""

from __future__ import annotations

from typing import Any

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.json_fields import short

SECTION, METHOD = "quantization_config", "quant_method"
ALL_INPUTS = -1
"""The group size by which files say that all inputs of an output share a scale."""


def only(found: dict[str, Any], key: str, known: tuple[Any, ...], where: str = SECTION) -> Any:
    """Return a field's value. Raises ModelError for one that is not known: True is not 1 here."""
    value = found.get(key)
    if not any(type(value) is type(one) and value == one for one in known):
        method = found.get(METHOD)
        stated = " or ".join(str(one) for one in known if one is not None)
        raise refused(
            f"{where}.{key}",
            value,
            f"{stated} with {short(method)}" if key != METHOD and method is not None else stated,
        )
    return value


def group_size(found: dict[str, Any], where: str = SECTION) -> int | None:
    """Return the number of inputs that share a scale; None for all of them."""
    size = found.get("group_size")
    if type(size) is not int or (size < 1 and size != ALL_INPUTS):
        raise ModelError(f"config.json needs a positive number, or -1, as {where}.group_size, not {short(size)}")
    return None if size == ALL_INPUTS else size


def refused(field: str, value: Any, known: str) -> ModelError:
    return ModelError(
        f"the model has {field} = {short(value)}: this version reads {known} there, so give it the model's own "
        "weights, or a GGUF file of it"
    )
