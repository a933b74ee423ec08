# SPDX-License-Identifier: Apache-2.0
"""Hugging Face directories whose weights are whole numbers or floats of 8 bits, made from a model of transformers by
the formats' definitions alone."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from architectures import SIZES
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from pontil.runtime.loaders.facts.shards import WHOLE

Tensors = dict[str, Tensor]
Numbers = np.ndarray[Any, Any]
Encode = Callable[[Numbers], tuple[Tensors, Numbers]]

LARGE = SIZES | {
    "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2,
    "num_hidden_layers": 2,
}  # fmt: skip
KEPT = ("embed_tokens", "lm_head", "norm", "mlp.gate.")
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
LARGEST = 448.0


@dataclass(frozen=True)
class Levels:
    """Whole numbers [outputs, inputs], and zeros and scales [outputs, groups]."""

    numbers: Numbers
    zeros: Numbers
    scales: Numbers
    group_of: Sequence[int]

    @property
    def weights(self) -> Numbers:
        zeros, scales = (one[:, self.group_of].astype(np.float64) for one in (self.zeros, self.scales))
        weights: Numbers = (self.numbers - zeros) * scales
        return weights


def levels_of(weight: Numbers, bits: int, group: int, symmetric: bool, group_of: Sequence[int] = ()) -> Levels:
    order = np.array(group_of or [j // group for j in range(weight.shape[1])])
    # The inputs of each group beside each other.
    behind = np.argsort(order, kind="stable")
    here, most = weight[:, behind].reshape(len(weight), -1, group), (1 << bits) - 1
    if symmetric:
        high = abs(here).max(2)
        low = -high
    else:
        low, high = np.minimum(here.min(2), 0), np.maximum(here.max(2), 0)
    scales = ((high - low) / most).astype(np.float16)
    steps = scales.astype(np.float64)
    # A zero is from 1 on: the first version of GPTQ stores it less one.
    zeros = (
        np.full(scales.shape, 1 << (bits - 1)) if symmetric else np.clip(np.round(-low / steps), 1, most).astype(int)
    )
    rounded = np.clip(np.round(here / steps[..., None]) + zeros[..., None], 0, most)
    numbers = np.zeros(weight.shape, np.int64)
    numbers[:, behind] = rounded.reshape(weight.shape)
    return Levels(numbers, zeros, scales, order.tolist())


def rows_in_words(rows: Numbers, bits: int) -> Tensor:
    """The numbers of each row one behind the other, the lowest bit of each first, in words of 32 bits."""
    long = (rows[..., None] >> np.arange(bits) & 1).reshape(len(rows), -1).astype(np.uint8)
    missing = -long.shape[1] % 32
    return floats(np.packbits(np.pad(long, ((0, 0), (0, missing))), axis=1, bitorder="little").view(np.int32))


def floats(numbers: Numbers) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(numbers))


def awq(group: int) -> Encode:
    def encode(weight: Numbers) -> tuple[Tensors, Numbers]:
        levels = levels_of(weight, 4, group, False)
        order = [base + place for base in range(0, len(weight), 8) for place in AWQ_ORDER]
        return {
            "qweight": rows_in_words(levels.numbers.T[:, order], 4),
            "qzeros": rows_in_words(levels.zeros.T[:, order], 4),
            "scales": floats(levels.scales.T),
        }, levels.weights

    return encode


def order_of(inputs: int, group: int, shuffled: bool, seed: int = 5) -> list[int]:
    """The group of each input."""
    order = [j // group for j in range(inputs)]
    return np.random.default_rng(seed).permutation(order).tolist() if shuffled else order


def gptq(
    bits: int, group: int, symmetric: bool, lacking: int = 1, shuffled: bool = False, apart: bool = False
) -> Encode:
    """`lacking`: less zeros are stored than there are. If they stand `apart`, inputs have an order for each weight."""
    seed = 5

    def encode(weight: Numbers) -> tuple[Tensors, Numbers]:
        nonlocal seed
        inputs, own = weight.shape[1], group if group > 0 else weight.shape[1]
        seed += apart
        order = order_of(inputs, own, shuffled, seed)
        levels = levels_of(weight, bits, own, symmetric, order)
        return {
            "qweight": rows_in_words(levels.numbers, bits).T.contiguous(),
            "qzeros": rows_in_words(levels.zeros.T - lacking, bits),
            "scales": floats(levels.scales.T),
            "g_idx": torch.tensor(order, dtype=torch.int32),
        }, levels.weights

    return encode


def packed(bits: int, group: int, symmetric: bool, shuffled: bool = False) -> Encode:
    def encode(weight: Numbers) -> tuple[Tensors, Numbers]:
        inputs, own = weight.shape[1], group if group > 0 else weight.shape[1]
        order = order_of(inputs, own, shuffled)
        levels = levels_of(weight, bits, own, symmetric, order)
        tensors = {
            "weight_packed": rows_in_words(levels.numbers, bits),
            "weight_scale": floats(levels.scales),
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            tensors["weight_zero_point"] = rows_in_words(levels.zeros.T, bits).T.contiguous()
        if shuffled:
            tensors["weight_g_idx"] = torch.tensor(order, dtype=torch.int32)
        return tensors, levels.weights

    return encode


def signed_bytes(weight: Numbers) -> tuple[Tensors, Numbers]:
    """Whole numbers of 8 bits with a scale for each output."""
    levels = levels_of(weight, 8, weight.shape[1], True)
    numbers = torch.from_numpy((levels.numbers - 128).astype(np.int8))
    return {"weight": numbers, "weight_scale": floats(levels.scales)}, levels.weights


def float8(block: tuple[int, int] | None, name: str = "weight_scale", shape: tuple[int, ...] | None = None) -> Encode:
    """Floats of 8 bits with a scale for so many outputs and inputs, 0 for all; None for one that is for the whole."""

    def encode(weight: Numbers) -> tuple[Tensors, Numbers]:
        outputs, inputs = (own or whole for own, whole in zip(block or (0, 0), weight.shape, strict=True))
        scales = np.zeros((-(-weight.shape[0] // outputs), -(-weight.shape[1] // inputs)), np.float32)
        numbers, found = torch.zeros(weight.shape, dtype=torch.float8_e4m3fn), np.zeros(weight.shape)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                here = (slice(i * outputs, (i + 1) * outputs), slice(j * inputs, (j + 1) * inputs))
                scales[i, j] = abs(weight[here]).max() / LARGEST
                numbers[here] = torch.from_numpy(weight[here] / scales[i, j]).to(torch.float8_e4m3fn)
                found[here] = numbers[here].float().numpy() * scales[i, j]
        stored = floats(scales) if shape is None else floats(scales).reshape(shape)
        return {"weight": numbers, name: stored, "input_scale": torch.ones(1)}, found

    return encode


def write_quantized(model: PreTrainedModel, folder: Path, form: dict[str, Any], encode: Encode) -> None:
    """Write the model with its products' weights encoded, and change it to have the weights that they stand for."""
    model.save_pretrained(folder)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, stands_for in quantize(folder, form, encode).items():
            parameters[name].copy_(torch.from_numpy(stands_for))


def quantize(folder: Path, form: dict[str, Any], encode: Encode, kept: Sequence[str] = KEPT) -> dict[str, Numbers]:
    """Encode the weights of a directory's products. Return those that they stand for."""
    tensors: Tensors = {}
    stands_for: dict[str, Numbers] = {}
    for name, weight in load_file(folder / WHOLE).items():
        if weight.ndim != 2 or any(part in name for part in kept):
            tensors[name] = weight
            continue
        parts, stands_for[name] = encode(weight.double().numpy())
        tensors |= {name.removesuffix("weight") + end: tensor for end, tensor in parts.items()}
    save_file(tensors, folder / WHOLE, metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": form}))
    return stands_for


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    """The configuration of compressed-tensors with one group."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}


AWQ = {"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "sym": False, "desc_act": False}
PACKED, FLOATS, FP8 = "pack-quantized", "float-quantized", {"quant_method": "fp8", "activation_scheme": "static"}
EIGHT = {"num_bits": 8, "type": "float", "symmetric": True}
FORMS: dict[str, tuple[dict[str, Any], Encode]] = {
    "awq": (AWQ | {"group_size": 32}, awq(32)),
    "awq-64": (AWQ | {"group_size": 64}, awq(64)),
    "awq-128": (AWQ | {"group_size": 128}, awq(128)),
    "awq-8": (AWQ | {"group_size": 8}, awq(8)),
    "gptq": (GPTQ | {"bits": 4, "group_size": 32}, gptq(4, 32, True)),
    "gptq-zeros": (GPTQ | {"bits": 4, "group_size": 64}, gptq(4, 64, False)),
    "gptq-v2": (GPTQ | {"bits": 4, "group_size": 16, "checkpoint_format": "gptq_v2"}, gptq(4, 16, False, 0)),
    "gptq-2": (GPTQ | {"bits": 2, "group_size": 32}, gptq(2, 32, False)),
    "gptq-3": (GPTQ | {"bits": 3, "group_size": 32}, gptq(3, 32, False)),
    "gptq-8": (GPTQ | {"bits": 8, "group_size": -1}, gptq(8, -1, False)),
    "gptq-order": (GPTQ | {"bits": 4, "group_size": 32, "desc_act": True}, gptq(4, 32, False, shuffled=True)),
    "packed": (
        compressed(PACKED, num_bits=4, type="int", symmetric=True, strategy="group", group_size=32),
        packed(4, 32, True),
    ),
    "packed-zeros": (
        compressed(PACKED, num_bits=4, type="int", symmetric=False, strategy="group", group_size=128),
        packed(4, 128, False),
    ),
    "packed-channel": (compressed(PACKED, num_bits=8, type="int", strategy="channel"), packed(8, -1, True)),
    "packed-5": (
        compressed(PACKED, num_bits=5, type="int", symmetric=False, strategy="group", group_size=32),
        packed(5, 32, False),
    ),
    "packed-order": (
        compressed(PACKED, num_bits=4, type="int", strategy="group", group_size=32, actorder="group"),
        packed(4, 32, True, shuffled=True),
    ),
    "bytes": (compressed("int-quantized", num_bits=8, type="int", strategy="channel"), signed_bytes),
    "float8-tensor": (compressed(FLOATS, **EIGHT, strategy="tensor"), float8(None, shape=(1,))),
    "float8-channel": (compressed(FLOATS, **EIGHT, strategy="channel"), float8((1, 0))),
    "float8-block": (
        compressed(FLOATS, **EIGHT, strategy="block", block_structure=[48, 80]), float8((48, 80)),
    ),
    "fp8": (FP8, float8(None, shape=())),
    "fp8-inverse": (FP8, float8(None, "weight_scale_inv", (1,))),
    "fp8-rows": (FP8, float8((1, 0))),
}  # fmt: skip
"""quantization_config and tensors of each form that is read."""
UNPACKED = {"awq-8", "gptq-order", "packed-order", "float8-block"}
EIGHT_BITS = {"gptq-8", "packed-channel", "packed-5", "bytes"}
"""Forms that no kernel multiplies as they are, and of those that kernels do, the ones in a byte for each number."""
