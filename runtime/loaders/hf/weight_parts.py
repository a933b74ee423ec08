# SPDX-License-Identifier: Apache-2.0
"""Quantized weights of a Hugging Face directory, taken apart into numbers, scales and zeros."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.weight_forms import BIAS, FP4, FP4_BIAS, WORD_BITS, WeightForm, part_of
from pontil.runtime.loaders.hf.tensor_files import TensorLocation, opened

OUTPUTS = 256
"""Outputs whose numbers are float32 at a time."""
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""The place within a word of each of its eight outputs (autoawq, awq/utils/packing_utils.py)."""
LEVEL_BITS = 7
"""Bits of the kernels' whole numbers without a sign."""
NO_ORDER = -1


@dataclass(frozen=True, slots=True)
class StoredNumbers:
    """A weight [outputs, inputs] is (numbers - zeros) * scales: numbers int8, uint8 below 128 or float8, scales and
    zeros float32 [outputs, groups], of which each input has one of `groups`, int64 [inputs]. With a `table`, int8,
    numbers stand there, and what is stored are their places, uint8."""

    form: WeightForm
    numbers: Tensor
    scales: Tensor
    zeros: Tensor
    groups: Tensor
    table: Tensor | None = None

    def dense(self, dtype: torch.dtype) -> Tensor:
        """The weight by way of float32, which has all products of whole numbers and scales of 16 bits."""
        result = torch.empty(self.numbers.shape, dtype=dtype)
        rows = zip(*(one.split(OUTPUTS) for one in (result, self.numbers, self.scales, self.zeros)), strict=True)
        for part, numbers, scales, zeros in rows:
            levels = numbers if self.table is None else self.table[numbers.int()]
            part.copy_((levels.float() - zeros[:, self.groups]) * scales[:, self.groups])
        return result

    def levels(self) -> dict[str, Tensor]:
        """The kernels' form: numbers int8, or uint8 below 128, scales and offsets float32 [outputs, groups], which are
        last. Inputs that are not in the order of their groups are put into it, and an `order`, int64 [inputs], tells
        it."""
        parts, numbers = {} if self.table is None else {"table": self.table}, self.numbers
        order = self.groups.argsort(stable=True)
        if not torch.equal(order, torch.arange(len(order))):
            parts, numbers = parts | {"order": order}, numbers[:, order]
        return parts | {"numbers": numbers, "scales": self.scales, "offsets": (0 - self.zeros) * self.scales}

    @property
    def has_even_groups(self) -> bool:
        """Return whether as many inputs have one group as another."""
        return bool((self.groups.bincount(minlength=self.form.groups) == self.form.group).all())


@dataclass(frozen=True, slots=True)
class WeightParts:
    """The places of a weight's tensors."""

    name: str
    form: WeightForm
    parts: Mapping[str, TensorLocation]

    @property
    def path(self) -> Path:
        """The file with which the weight is read."""
        return self.paths[0]

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(place.path for place in self.parts.values())

    def read(self, file: Any) -> StoredNumbers:
        """Read the weight from the opened file, and from others that have parts of it. Raises ModelError."""
        found = {end: self.read_part(place, file) for end, place in self.parts.items()}
        if BIAS in found and found[BIAS].any():
            raise ModelError(
                f"{part_of(self.name, BIAS)} is not zero, and this architecture has no such bias: fetch another "
                "version of the model"
            )
        numbers, scales, zeros = READERS[self.form.layout](self.form, found)
        shared = (one.float().reshape(-1, self.form.groups) for one in (scales, zeros))
        own, zero = (one.repeat_interleave(self.form.outputs, dim=0)[: len(numbers)] for one in shared)
        table = torch.tensor(FP4, dtype=torch.int8) if self.form.layout == "mxfp4" else None
        return StoredNumbers(self.form, numbers, own, zero, self.order(found), table)

    def read_parts(self, file: Any) -> dict[str, Tensor]:
        """Read the tensors as they are stored, by their names."""
        return {part_of(self.name, end): self.read_part(place, file) for end, place in self.parts.items()}

    def read_part(self, place: TensorLocation, file: Any) -> Tensor:
        if place.path == self.path:
            return place.read(file)
        with opened(place.path) as other:
            return place.read(other)

    def order(self, found: Mapping[str, Tensor]) -> Tensor:
        """The group of each input. Raises ModelError for one that there is not, or that contradicts the form."""
        usual = torch.arange(self.form.shape[1]) // self.form.group
        listed = next((found[end].long() for end in ("g_idx", "weight_g_idx") if end in found), usual)
        if (listed == NO_ORDER).all():
            return usual
        if listed.min() < 0 or listed.max() >= self.form.groups:
            raise ModelError(
                f"the order of the inputs of {self.name} (g_idx) has groups beyond its {self.form.groups}: fetch the "
                "model again"
            )
        if not self.form.own_order and not torch.equal(listed, usual):
            raise ModelError(
                f"the inputs of {self.name} have an order of their own (g_idx), which quantization_config.desc_act in "
                "config.json denies: fetch the model again"
            )
        return listed


Read = tuple[Tensor, Tensor, Tensor]


def read_awq(form: WeightForm, found: Mapping[str, Tensor]) -> Read:
    def numbers(own: slice) -> Tensor:
        return in_order(found["qweight"][:, own.start // len(AWQ_PLACES) : own.stop // len(AWQ_PLACES)]).T

    zeros = in_order(found["qzeros"])[:, : form.shape[0]]
    return by_outputs(form, numbers), found["scales"].T, signed(form, zeros.T)


def in_order(words: Tensor) -> Tensor:
    """The numbers of AWQ's words, output by output."""
    numbers: Tensor = fields(words, 4).unflatten(1, (-1, len(AWQ_PLACES)))[:, :, AWQ_PLACES].flatten(1)
    return numbers


def read_gptq(form: WeightForm, found: Mapping[str, Tensor]) -> Read:
    (outputs, inputs), bits = form.shape, form.bits or 0

    def numbers(own: slice) -> Tensor:
        return fields(found["qweight"][:, own].T.contiguous(), bits)[:, :inputs]

    zeros = (fields(found["qzeros"], bits)[:, :outputs] + form.added) & ((1 << bits) - 1)
    return by_outputs(form, numbers), found["scales"].T, signed(form, zeros.T)


def read_packed(form: WeightForm, found: Mapping[str, Tensor]) -> Read:
    """Signed numbers are stored with the half of their range added."""
    (outputs, inputs), bits = form.shape, form.bits or 0
    scales = found["weight_scale"]
    numbers = by_outputs(form, lambda own: fields(found["weight_packed"][own], bits)[:, :inputs])
    if "weight_zero_point" not in found:
        return numbers, scales, signed(form, torch.full(scales.shape, 1 << (bits - 1), dtype=torch.uint8))
    zeros = found["weight_zero_point"].reshape(-1, form.groups).T.contiguous()
    return numbers, scales, signed(form, fields(zeros, bits)[:, :outputs].T)


def by_outputs(form: WeightForm, read: Callable[[slice], Tensor]) -> Tensor:
    """The numbers of all outputs, read some outputs at a time, so that little more is in memory than these."""
    numbers = torch.empty(form.shape, dtype=signed(form, torch.empty(0, dtype=torch.uint8)).dtype)
    for first in range(0, form.shape[0], OUTPUTS):
        rows = numbers[first : first + OUTPUTS]
        rows.copy_(signed(form, read(slice(first, first + OUTPUTS))[..., : form.shape[1]][: len(rows)]))
    return numbers


def signed(form: WeightForm, numbers: Tensor) -> Tensor:
    """Numbers uint8 as the kernels have them: of 8 bits less the half of their range, so that they have a sign."""
    return (numbers ^ (1 << LEVEL_BITS)).view(torch.int8) if (form.bits or 0) > LEVEL_BITS else numbers


def read_bytes(form: WeightForm, found: Mapping[str, Tensor]) -> Read:
    scales = next(found[end] for end in ("weight_scale", "weight_scale_inv") if end in found)
    return found["weight"], scales, found.get("weight_zero_point", torch.zeros_like(scales))


def read_mxfp4(form: WeightForm, found: Mapping[str, Tensor]) -> Read:
    """The table has twice the floats, so that they are whole numbers."""
    blocks, exponents = found["weight_blocks"], found["weight_scales"].int()
    scales = torch.ldexp(torch.ones(exponents.shape), exponents - FP4_BIAS - 1)
    return torch.stack((blocks & 15, blocks >> 4), dim=-1).view(form.shape), scales, torch.zeros_like(scales)


READERS = {"awq": read_awq, "gptq": read_gptq, "packed": read_packed, "bytes": read_bytes, "mxfp4": read_mxfp4}


def fields(words: Tensor, bits: int) -> Tensor:
    """The numbers of so many bits in rows of words int32 [rows, words], from the lowest bit of the first on; a number
    may lie in two words: uint8 [rows, numbers]."""
    period = WORD_BITS // math.gcd(bits, WORD_BITS)
    span = period * bits // WORD_BITS
    whole = torch.nn.functional.pad(words, (0, -words.shape[1] % span)).unflatten(1, (-1, span))
    result = torch.empty(*whole.shape[:2], period, dtype=torch.uint8)
    for place in range(period):
        word, shift = divmod(place * bits, WORD_BITS)
        here = min(bits, WORD_BITS - shift)
        number = (whole[..., word] >> shift) & ((1 << here) - 1)
        if here < bits:
            number = number | (whole[..., word + 1] & ((1 << (bits - here)) - 1)) << here
        result[..., place] = number
    return result.flatten(1)
