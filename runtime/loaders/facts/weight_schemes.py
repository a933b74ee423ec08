# SPDX-License-Identifier: Apache-2.0
"""The quantization_config of a Hugging Face directory, and the weights that are stored by it. No torch here.

Which of a model's weights are quantized, and in which of the forms that the configuration has, is seen from their
tensors' names and shapes: patterns of names, which some files have besides, are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pontil.runtime.loaders.facts.json_fields import section
from pontil.runtime.loaders.facts.quantization_fields import SECTION, group_size, only, refused
from pontil.runtime.loaders.facts.scaled_forms import compressed_scheme, fp8_scheme
from pontil.runtime.loaders.facts.weight_forms import (
    BIAS,
    EMBEDDING,
    NUMBERS,
    WEIGHT,
    Shape,
    StoredPart,
    WeightForm,
    awq_form,
    gptq_form,
    part_of,
)

GPTQ_BITS = (2, 3, 4, 8)
BESIDE = (
    "weight_shape", "input_scale", "input_zero_point", "output_scale", "output_zero_point", "activation_scale",
    "k_scale", "v_scale", "q_scale",
)  # fmt: skip
"""Last parts of the names of tensors that are not read: they repeat a shape, or are for activations of 8 bits."""


class WeightScheme(Protocol):
    """A way to store weights. `method` is the name that files have for it."""

    @property
    def method(self) -> str: ...

    def possible(self, name: str, shape: Shape, found: Mapping[str, Shape]) -> list[WeightForm]:
        """The forms that a weight [outputs, inputs] of this name may have in a file with these tensors; none if it is
        not quantized there. Raises ModelError."""


@dataclass(frozen=True, slots=True)
class AwqScheme:
    """Groups of so many inputs; None for all of them."""

    group: int | None
    method: str = "awq"

    def possible(self, name: str, shape: Shape, found: Mapping[str, Shape]) -> list[WeightForm]:
        return [awq_form(name, shape, self.group)] if part_of(name, "qweight") in found else []


@dataclass(frozen=True, slots=True)
class GptqScheme:
    """Numbers of so many bits. The first version of the format stores zeros less one, which is to be `added`. If they
    are not `ordered`, inputs that share a scale are listed."""

    bits: int
    group: int | None
    added: int
    ordered: bool
    method: str = "gptq"

    def possible(self, name: str, shape: Shape, found: Mapping[str, Shape]) -> list[WeightForm]:
        if part_of(name, "qweight") not in found:
            return []
        return [gptq_form(name, shape, self.bits, self.group, self.added, self.ordered)]


def awq_scheme(found: dict[str, Any]) -> AwqScheme:
    for key in ("version", "checkpoint_format", "format"):
        only(found, key, ("gemm", "GEMM", None))
    only(found, "zero_point", (True, None))
    only(found, "bits", (4,))
    return AwqScheme(group_size(found))


def gptq_scheme(found: dict[str, Any]) -> GptqScheme:
    only(found, "pack_dtype", ("int32", None))
    only(found, "is_marlin_format", (False, None))
    versions = [only(found, key, ("gptq", "gptq_v2", None)) for key in ("checkpoint_format", "format")]
    # A pattern that begins so is of weights that are not quantized.
    changed = {pattern: "…" for pattern in section(found, "dynamic") if not pattern.startswith("-:")}
    if changed:
        raise refused(f"{SECTION}.dynamic", changed, "patterns that begin with -:")
    bits = only(found, "bits", GPTQ_BITS)
    ordered = not only(found, "desc_act", (True, False, None))
    return GptqScheme(bits, group_size(found), 0 if "gptq_v2" in versions else 1, ordered)


SCHEMES: dict[str, Callable[[dict[str, Any]], WeightScheme]] = {
    "awq": awq_scheme, "gptq": gptq_scheme, "compressed-tensors": compressed_scheme, "fp8": fp8_scheme,
}  # fmt: skip


def weight_scheme(data: dict[str, Any]) -> WeightScheme | None:
    """Read the scheme from config.json; None for weights that are not quantized, or that stay in the blocks of
    `weight_block`. Raises ModelError for a scheme that is not known, and names its field."""
    found = section(data, SECTION)
    if not found or keeps_blocks(found):
        return None
    return SCHEMES[only(found, "quant_method", (*SCHEMES, "mxfp4"))](found)


def keeps_blocks(found: dict[str, Any]) -> bool:
    """Return whether weights stay in the blocks of their file, of floats of 8 or 4 bits."""
    method = found.get("quant_method")
    return method == "mxfp4" or (method == "fp8" and found.get("weight_block_size") is not None)


def stored_forms(
    scheme: WeightScheme | None, wanted: Mapping[str, Shape], found: Mapping[str, Shape]
) -> dict[str, WeightForm]:
    """The forms of those weights that a file with these tensors has quantized. An embedding is looked up, not
    multiplied. Raises ModelError."""
    forms: dict[str, WeightForm] = {}
    if scheme is None:
        return forms
    for name, shape in wanted.items():
        if len(shape) == 2 and name.endswith(f".{WEIGHT}") and name != EMBEDDING:
            possible = scheme.possible(name, shape, found)
            if possible:
                form = next((form for form in possible if fits(form, name, found)), possible[0])
                bias = part_of(name, BIAS)
                forms[name] = with_bias(form) if bias in found and bias not in wanted else form
    return forms


def with_bias(form: WeightForm) -> WeightForm:
    """The same form with a bias that the model does not have: AutoGPTQ writes zeros for one."""
    if form.layout != "gptq":
        return form
    return replace(form, parts={**form.parts, BIAS: StoredPart(form.shape[:1], NUMBERS)})


def fits(form: WeightForm, name: str, found: Mapping[str, Shape]) -> bool:
    return all(found.get(part_of(name, end)) == part.shape for end, part in form.parts.items())


def in_parts(wanted: dict[str, Shape], forms: Mapping[str, WeightForm]) -> dict[str, Shape]:
    """The wanted tensors as a file has them: several in the place of a weight that has a form."""
    shapes: dict[str, Shape] = {}
    for name, shape in wanted.items():
        form = forms.get(name)
        parts = {} if form is None else {part_of(name, end): part.shape for end, part in form.parts.items()}
        shapes |= parts or {name: shape}
    return shapes


def is_beside(name: str) -> bool:
    """Return whether a tensor of this name stands beside weights, and is not read."""
    return name.rpartition(".")[2] in BESIDE
