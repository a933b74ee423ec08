# SPDX-License-Identifier: Apache-2.0
"""The forms of compressed-tensors (compressed_tensors/compressors) and of floats of 8 bits. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.json_fields import section, short
from pontil.runtime.loaders.facts.quantization_fields import SECTION, group_size, only, refused
from pontil.runtime.loaders.facts.weight_forms import (
    FLOAT8,
    INVERSE,
    NUMBERS,
    WORDS,
    Layout,
    Shape,
    StoredPart,
    WeightForm,
    words_of,
)

PACKED, BYTES = "pack-quantized", ("int-quantized", "float-quantized", "naive-quantized")
MIXED, DENSE = "mixed-precision", "dense"
STRATEGIES = ("tensor", "channel", "group", "block")
SCALE = "weight_scale"


@dataclass(frozen=True, slots=True)
class ScaledForm:
    """Numbers of so many `bits`, or floats of 8 with None, `packed` or one in a byte. A scale is that of a `shared`
    thing: "tensor", "channel", "group" of so many inputs, or "block" of outputs and inputs. With `zeros` each has a
    zero beside it; `own_order`: inputs of a group are listed. `scale` is the end of the scales' name."""

    bits: int | None
    packed: bool
    shared: str
    group: int | None = None
    block: tuple[int, int] | None = None
    zeros: bool = False
    own_order: bool = False
    scale: str = SCALE

    def forms(self, shape: Shape) -> list[WeightForm]:
        """The forms that such a weight may have: a single scale may have no dimension, or one."""
        return [self.form(shape, scales) for scales in self.scales(shape)]

    def scales(self, shape: Shape) -> list[Shape]:
        outputs, inputs = shape
        if self.shared == "tensor":
            return [(1,), ()]
        if self.shared == "channel":
            return [(outputs, 1), (outputs,)]
        if self.block is not None:
            return [(-(-outputs // self.block[0]), -(-inputs // self.block[1]))]
        return [(outputs, -(-inputs // (self.group or inputs)))]

    def form(self, shape: Shape, scales: Shape) -> WeightForm:
        outputs, inputs = shape
        zeros = StoredPart(scales, ("I8",))
        if self.packed:
            numbers = {"weight_packed": StoredPart((outputs, words_of(inputs, self.bits or 8)), WORDS)}
            zeros = StoredPart((words_of(outputs, self.bits or 8), *scales[1:]), WORDS)
        else:
            numbers = {"weight": StoredPart(shape, (FLOAT8,) if self.bits is None else ("I8",))}
        parts = numbers | {self.scale: StoredPart(scales, NUMBERS)}
        parts |= {"weight_zero_point": zeros} if self.zeros else {}
        parts |= {"weight_g_idx": StoredPart((inputs,), WORDS)} if self.own_order else {}
        layout: Layout = "packed" if self.packed else "bytes"
        if self.block is not None:
            # A file may name any sizes: scales are repeated for no more than there is.
            rows, group = (min(size, most) for size, most in zip(self.block, shape, strict=True))
            return WeightForm(layout, shape, parts, self.bits, group, rows, self.own_order, whole_groups=False)
        rows = outputs if self.shared == "tensor" else 1
        return WeightForm(layout, shape, parts, self.bits, self.group or inputs, rows, self.own_order)


@dataclass(frozen=True, slots=True)
class ScaledScheme:
    """Weights in one of several forms."""

    method: str
    kinds: tuple[ScaledForm, ...]

    def forms(self, shape: Shape) -> list[WeightForm]:
        return [form for kind in self.kinds for form in kind.forms(shape)]


def fp8_scheme(found: dict[str, Any]) -> ScaledScheme:
    """Floats of 8 bits: a scale for each block, as DeepSeek V3 is published; or one for a weight, or one for each
    output, of which files have two names. Raises ModelError."""
    only(found, "fmt", ("e4m3", None))
    block = fp8_block(found)
    if block is not None:
        return ScaledScheme("fp8", (ScaledForm(None, False, "block", block=block, scale=INVERSE),))
    kinds = (ScaledForm(None, False, shared, scale=scale) for shared in STRATEGIES[:2] for scale in (SCALE, INVERSE))
    return ScaledScheme("fp8", tuple(kinds))


def fp8_block(found: dict[str, Any]) -> tuple[int, int] | None:
    """The outputs and inputs that share a scale; None where blocks do not. Raises ModelError."""
    block = found.get("weight_block_size")
    if block is None:
        return None
    if not isinstance(block, list) or len(block) != 2 or not all(type(size) is int and size > 0 for size in block):
        raise ModelError(f"config.json needs two positive numbers as weight_block_size, not {short(block)}")
    return block[0], block[1]


def compressed_scheme(found: dict[str, Any]) -> ScaledScheme:
    """The forms of all of a file's groups that have weights. Raises ModelError."""
    groups = section(found, "config_groups")
    if not groups:
        raise ModelError(f"config.json needs groups as {SECTION}.config_groups, not 0: fetch the model again")
    only(section(found, "sparsity_config"), "format", (DENSE, None), f"{SECTION}.sparsity_config")
    if section(found, "transform_config").get("config_groups"):
        raise refused(f"{SECTION}.transform_config", found["transform_config"], "weights that are not rotated")
    whole = only(found, "format", (PACKED, *BYTES, MIXED, DENSE))
    kinds = [scaled_form(name, group, whole) for name, group in groups.items()]
    return ScaledScheme("compressed-tensors", tuple(dict.fromkeys(kind for kind in kinds if kind is not None)))


def scaled_form(name: str, group: Any, whole: str) -> ScaledForm | None:
    """The form of a group's weights; None for one of activations only."""
    where = f"{SECTION}.config_groups.{short(name)}"
    if not isinstance(group, dict):
        raise ModelError(f"config.json needs an object as {where}, not {short(group)}")
    weights = section(group, "weights")
    if not weights:
        return None
    packed = only(group if group.get("format") else {"format": whole}, "format", (PACKED, *BYTES), where) == PACKED
    where = f"{where}.weights"
    kind = only(weights, "type", ("int",) if packed else ("int", "float"), where)
    bits = only(weights, "num_bits", tuple(range(2, 9)) if packed else (8,), where)
    shared = only(
        weights | {"strategy": weights.get("strategy") or implied(weights)},
        "strategy",
        STRATEGIES[1:3] if packed else STRATEGIES,
        where,
    )
    own_order = only(weights, "actorder", ("group", "dynamic", "weight", "static", True, False, None), where)
    return ScaledForm(
        bits if kind == "int" else None,
        packed,
        shared,
        group_size(weights, where) if shared == "group" else None,
        block_of(weights, where) if shared == "block" else None,
        not only(weights, "symmetric", (True, False, None), where) and weights.get("symmetric") is not None,
        own_order in ("group", "dynamic", True),
    )


def implied(weights: dict[str, Any]) -> str:
    """The strategy that a file leaves out."""
    size = weights.get("group_size")
    return "tensor" if size is None else "channel" if size == -1 else "group"


def block_of(weights: dict[str, Any], where: str) -> tuple[int, int]:
    """The outputs and inputs of a block, as a list or, in older files, as a text like 128x128."""
    stated = weights.get("block_structure")
    sizes = stated.split("x") if isinstance(stated, str) and len(stated) < 32 else stated
    if isinstance(sizes, list) and len(sizes) == 2:
        rows, columns = (int(one) if isinstance(one, str) and one.isdecimal() else one for one in sizes)
        if type(rows) is int and type(columns) is int and rows > 0 and columns > 0:
            return rows, columns
    raise ModelError(f"config.json needs two positive numbers as {where}.block_structure, not {short(stated)}")
