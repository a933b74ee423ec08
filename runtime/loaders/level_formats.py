# SPDX-License-Identifier: Apache-2.0
"""The weights that a model's files hold as whole numbers with scales, and their formats in memory. No torch here: plans
are checked by it before a process loads that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.layout import tensor_shapes
from pontil.runtime.loaders.facts.safetensors_header import header_tensors
from pontil.runtime.loaders.facts.shards import shards
from pontil.runtime.loaders.facts.weight_forms import FP4, WeightForm
from pontil.runtime.loaders.facts.weight_schemes import stored_forms
from pontil.runtime.loaders.gguf.packed_formats import (
    AUTO,
    NO_GGUF,
    NumberFormat,
    choose_quantization,
    gguf_formats,
    is_float,
)
from pontil.runtime.loaders.hf.config import read_weight_scheme
from pontil.runtime.loaders.hf.fused_experts import tensors_in
from pontil.runtime.models.config import ModelConfig

NIBBLE, BYTE = 4, 8
# Floats of 4 bits in as many bytes as their groups and exponents take.
FOURS = NumberFormat(NIBBLE, block_bytes=136)


def level_formats(path: Path, config: ModelConfig) -> dict[str, NumberFormat]:
    """Return the formats by Hugging Face's names; other weights become floats. Raises ModelError, also for a directory
    without such weights."""
    if not path.is_dir():
        return gguf_formats(path, config)
    formats = level_forms(directory_forms(path, config))
    if not formats:
        raise ModelError(NO_GGUF)
    return formats


def level_forms(forms: Mapping[str, WeightForm]) -> dict[str, NumberFormat]:
    return {name: number_format(form) for name, form in forms.items() if form.has_levels and not is_float(name)}


def device_formats(path: Path, config: ModelConfig) -> dict[str, NumberFormat]:
    """Return the same of a device's kernels. Raises ModelError."""
    if path.is_dir():
        return device_forms(directory_forms(path, config))
    formats = gguf_formats(path, config)
    return {name: one.on_device() for name, one in formats.items()}


def device_forms(forms: Mapping[str, WeightForm]) -> dict[str, NumberFormat]:
    return {
        name: replace(number_format(form).on_device(), own_order=form.own_order)
        for name, form in forms.items()
        if form.has_device_levels and not is_float(name)
    }


def may_have_levels(path: Path, config: ModelConfig, on_device: bool = False) -> bool:
    """Return whether there may be such weights. Raises ModelError."""
    if on_device:
        return bool(device_formats(path, config))
    if not path.is_dir():
        return bool(gguf_formats(path, config))
    return any(form.has_levels for form in directory_forms(path, config).values())


def embedding_quantization(asked: str, has_levels: bool, has_kernels: bool) -> str:
    """Return the quantization of a decoder that embeds, whatever `--dtype` says: `int8` is for the model that
    generates, and such a decoder may be another one."""
    return choose_quantization(asked if asked == "none" else AUTO, has_levels, "bfloat16", has_kernels)


def directory_forms(path: Path, config: ModelConfig) -> dict[str, WeightForm]:
    """Return the forms of a directory's quantized weights. Raises ModelError."""
    scheme = read_weight_scheme(path, config.architecture)
    if scheme is None:
        return {}
    stored = ((name, one) for file in shards(path) for name, one in header_tensors(file).items())
    found = {name: (own, kind) for one, (shape, kind) in stored for name, own, _ in tensors_in(config, one, shape)}
    return stored_forms(scheme, tensor_shapes(config), found)


def kept_formats(forms: Mapping[str, WeightForm]) -> dict[str, NumberFormat]:
    """Return the formats of weights that stay as a directory has them, where no kernels are."""
    kept = ((name, form) for name, form in forms.items() if form.stays)
    return {name: FOURS if form.layout == "mxfp4" else number_format(form).on_device() for name, form in kept}


def number_format(form: WeightForm) -> NumberFormat:
    table = FP4 if form.layout == "mxfp4" else None
    bits = NIBBLE if (form.bits or BYTE) <= NIBBLE else BYTE
    return NumberFormat(bits, form.group, table=table, floats=form.bits is None)
