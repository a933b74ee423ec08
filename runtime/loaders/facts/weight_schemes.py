# SPDX-License-Identifier: Apache-2.0
"""The quantization_config of a Hugging Face directory, and the weights that are stored by it. No torch here.

Which of a model's weights are quantized, and in which of the forms that the configuration has, is seen from their
tensors' names, shapes and types: patterns of names, which some files have besides, are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pontil.runtime.loaders.facts.form_choice import FormChoice, Stored, WeightScheme
from pontil.runtime.loaders.facts.json_fields import section
from pontil.runtime.loaders.facts.quantization_fields import SECTION, group_size, only, refused
from pontil.runtime.loaders.facts.scaled_forms import compressed_scheme, fp8_block, fp8_scheme
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
    mxfp4_form,
    part_of,
)

GPTQ_BITS = (2, 3, 4, 8)
BESIDE = (
    "weight_shape", "input_scale", "input_zero_point", "output_scale", "output_zero_point", "activation_scale",
    "k_scale", "v_scale", "q_scale",
)  # fmt: skip
"""Last parts of the names of tensors that are not read: they repeat a shape, or are for activations of 8 bits."""


@dataclass(frozen=True, slots=True)
class AwqScheme:
    """Groups of so many inputs; None for all of them."""

    group: int | None
    method: str = "awq"

    def forms(self, shape: Shape) -> list[WeightForm]:
        return [awq_form(shape, self.group)]


@dataclass(frozen=True, slots=True)
class GptqScheme:
    """Numbers of so many bits. The first version of the format stores zeros less one, which is to be `added`. If they
    are not `ordered`, inputs that share a scale are listed."""

    bits: int
    group: int | None
    added: int
    ordered: bool
    method: str = "gptq"

    def forms(self, shape: Shape) -> list[WeightForm]:
        return [gptq_form(shape, self.bits, self.group, self.added, self.ordered)]


@dataclass(frozen=True, slots=True)
class Mxfp4Scheme:
    """Floats of 4 bits in groups."""

    method: str = "mxfp4"

    def forms(self, shape: Shape) -> list[WeightForm]:
        return [mxfp4_form(shape)]


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
    "mxfp4": lambda found: Mxfp4Scheme(),
}  # fmt: skip


def weight_scheme(data: dict[str, Any]) -> WeightScheme | None:
    """Read the scheme from config.json; None for weights that are not quantized. Raises ModelError for a scheme that is
    not known, and names its field."""
    found = section(data, SECTION)
    return SCHEMES[only(found, "quant_method", tuple(SCHEMES))](found) if found else None


def weight_block(data: dict[str, Any]) -> tuple[int, int] | None:
    """The outputs and inputs of a weight that share a scale, if its floats of 8 bits are in such blocks. Raises
    ModelError for blocks that are not known."""
    found = section(data, SECTION)
    return fp8_block(found) if found.get("quant_method") == "fp8" else None


def stored_forms(
    scheme: WeightScheme | None, wanted: Mapping[str, Shape], found: Mapping[str, Stored]
) -> dict[str, WeightForm]:
    """The forms of those weights that a file with these tensors has quantized. An embedding is looked up, not
    multiplied. Raises ModelError."""
    forms: dict[str, WeightForm] = {}
    if scheme is None:
        return forms
    choice = FormChoice(scheme, found)
    for name, shape in wanted.items():
        if len(shape) == 2 and name.endswith(f".{WEIGHT}") and name != EMBEDDING:
            form, bias = choice.form(name, shape), part_of(name, BIAS)
            if form is not None:
                forms[name] = with_bias(form) if bias in found and bias not in wanted else form
    return forms


def with_bias(form: WeightForm) -> WeightForm:
    """The same form with a bias that the model does not have: AutoGPTQ writes zeros for one."""
    if form.layout != "gptq":
        return form
    return replace(form, parts={**form.parts, BIAS: StoredPart(form.shape[:1], NUMBERS)})


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
