# SPDX-License-Identifier: Apache-2.0
"""The forms in which a Hugging Face directory stores a weight of less than 16 bits. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Shape = tuple[int, ...]
FLOAT8, WEIGHT, BIAS = "F8_E4M3", "weight", "bias"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
NUMBERS, WORDS, BYTES = ("F32", "F16", "BF16"), ("I32",), ("U8",)
"""Types of safetensors: of scales, of words that hold whole numbers one behind the other, and of bytes."""
WORD_BITS = 32
INVERSE = "weight_scale_inv"
"""The end of the names of scales of floats of 8 bits, in files that keep them in blocks."""
FP4_GROUP = 32
"""Neighbouring floats of 4 bits that share a power of two."""
FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the floats of 4 bits, by their bits."""
FP4_BIAS = 127
"""What is added to the exponent of a group as it is stored."""
FINEST_GROUP = 16
"""Neighbouring inputs that share a scale, at the least, in the kernels' own form."""
# The places of whole numbers: in words along the outputs, with an order of their own (AWQ), in words along the inputs
# of a weight that is stored by inputs (GPTQ) or by outputs (compressed-tensors), or one in a byte; and places of floats
# of 4 bits, two in a byte (MXFP4).
Layout = Literal["awq", "gptq", "packed", "bytes", "mxfp4"]
Meaning = tuple[Layout, int | None, int, int, bool, int]
"""What decides the numbers of a weight, beside its tensors."""


@dataclass(frozen=True, slots=True)
class StoredPart:
    """One of a weight's tensors: its shape, and the types that it may have."""

    shape: Shape
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WeightForm:
    """A weight [outputs, inputs] as a file has it: its `parts` by the ends of their names.

    A weight is (number - zero) * scale. Numbers are whole ones of so many `bits`, or with None floats of 8. `group`
    neighbouring inputs of so many `outputs` share a scale and a zero; if inputs have their `own_order`, `group` of them
    do that are listed. Stored zeros lack `added`. Groups that are no `whole_groups` may be cut off at the end.
    """

    layout: Layout
    shape: Shape
    parts: Mapping[str, StoredPart]
    bits: int | None
    group: int
    outputs: int = 1
    own_order: bool = False
    added: int = 0
    whole_groups: bool = True

    @property
    def mark(self) -> str:
        """The end of the name of a tensor that only quantized weights have."""
        return next(end for end in self.parts if end != WEIGHT)

    @property
    def meaning(self) -> Meaning:
        return self.layout, self.bits, self.group, self.outputs, self.own_order, self.added

    @property
    def leaves_over(self) -> bool:
        """Return whether groups should divide the inputs, and do not."""
        return self.whole_groups and self.shape[1] % self.group > 0

    @property
    def groups(self) -> int:
        return -(-self.shape[1] // self.group)

    @property
    def has_levels(self) -> bool:
        """Return whether the kernels multiply such numbers as they are."""
        return self.group % FINEST_GROUP == 0 and self.shape[1] % self.group == 0 and not self.own_order

    @property
    def stays(self) -> bool:
        """Return whether products without a CPU's kernels read such weights as the file has them."""
        return self.layout == "mxfp4" or (INVERSE in self.parts and not self.whole_groups)

    @property
    def has_device_levels(self) -> bool:
        """Return whether kernels for devices multiply such numbers, in groups of any size."""
        return not self.stays and self.shape[1] % self.group == 0

    @property
    def words(self) -> str:
        """The form, for somebody who reads that it is unpacked."""
        if self.bits is None:
            return "floats of 8 bits"
        order = " in an order of their own (act-order)" if self.own_order else ""
        return f"whole numbers of {self.bits} bits in groups of {self.group} inputs{order}"


def part_of(name: str, end: str) -> str:
    """The name of one of a weight's tensors."""
    return name.removesuffix(WEIGHT) + end


def words_of(count: int, bits: int) -> int:
    """The words that hold so many numbers."""
    return -(-count * bits // WORD_BITS)


def awq_form(shape: Shape, group: int | None) -> WeightForm:
    """AutoAWQ's "gemm" (awq/modules/linear/gemm.py): numbers of 4 bits, eight outputs in a word."""
    (outputs, inputs), size = shape, group or shape[1]
    groups, words = -(-inputs // size), words_of(outputs, 4)
    parts = {
        "qweight": StoredPart((inputs, words), WORDS),
        "qzeros": StoredPart((groups, words), WORDS),
        "scales": StoredPart((groups, outputs), NUMBERS),
    }
    return WeightForm("awq", shape, parts, 4, size)


def gptq_form(shape: Shape, bits: int, group: int | None, added: int, ordered: bool) -> WeightForm:
    """AutoGPTQ's and GPTQModel's tensors (nn_modules/qlinear). If they are not `ordered`, `g_idx` alone says which
    inputs share a scale."""
    (outputs, inputs), size = shape, group or shape[1]
    groups = -(-inputs // size)
    parts = {
        "qweight": StoredPart((words_of(inputs, bits), outputs), WORDS),
        "qzeros": StoredPart((groups, words_of(outputs, bits)), WORDS),
        "scales": StoredPart((groups, outputs), NUMBERS),
        "g_idx": StoredPart((inputs,), WORDS),
    }
    return WeightForm("gptq", shape, parts, bits, size, own_order=not ordered and groups > 1, added=added)


def mxfp4_form(shape: Shape) -> WeightForm:
    """The experts of GPT-OSS: floats of 4 bits, two in a byte, and the exponent of each group, with a bias of 127
    ("OCP Microscaling Formats", Open Compute Project, 2023)."""
    outputs, inputs = shape
    groups = (outputs, -(-inputs // FP4_GROUP))
    parts = {"weight_blocks": StoredPart((*groups, FP4_GROUP // 2), BYTES), "weight_scales": StoredPart(groups, BYTES)}
    return WeightForm("mxfp4", shape, parts, 4, FP4_GROUP)
