# SPDX-License-Identifier: Apache-2.0
"""Weights of a Hugging Face directory that stay in blocks of floats of 8 bits with a scale for each, as those of
DeepSeek V3 are published. No torch here."""

from __future__ import annotations

from typing import Any

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.json_fields import section, short
from pontil.runtime.loaders.facts.quantization_fields import SECTION, only
from pontil.runtime.loaders.facts.weight_forms import Shape
from pontil.runtime.loaders.facts.weight_schemes import keeps_blocks

SCALE = "_scale_inv"


def weight_block(data: dict[str, Any]) -> tuple[int, int] | None:
    """The outputs and inputs of a weight that share a scale, if weights stay in such blocks. Raises ModelError for
    blocks that are not known."""
    found = section(data, SECTION)
    if not keeps_blocks(found):
        return None
    only(found, "fmt", ("e4m3", None))
    block = found["weight_block_size"]
    if not isinstance(block, list) or len(block) != 2 or not all(type(size) is int and size > 0 for size in block):
        raise ModelError(f"config.json needs two positive numbers as weight_block_size, not {short(block)}")
    return block[0], block[1]


def with_scales(wanted: dict[str, Shape], found: dict[str, Shape], block: tuple[int, int] | None) -> dict[str, Shape]:
    """The wanted tensors as the file has them: not every weight is in 8 bits, with its scales behind it."""
    if block is None:
        return wanted
    shapes: dict[str, Shape] = {}
    for name, shape in wanted.items():
        shapes[name] = shape
        if len(shape) == 2 and name + SCALE in found:
            shapes[name + SCALE] = (-(-shape[0] // block[0]), -(-shape[1] // block[1]))
    return shapes
