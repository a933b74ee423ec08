# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face directory with weights of 8 bits, made from a model of transformers."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from pontil.runtime.loaders.facts.shards import WHOLE

BLOCK = (32, 16)
LARGEST = 448.0
KEPT = ("embed_tokens", "lm_head", "norm", "mlp.gate.")


def write_fp8(model: PreTrainedModel, folder: Path) -> None:
    """Write the model with its products' weights in blocks of 8 bits, and change it to have these weights itself."""
    model.save_pretrained(folder)
    tensors: dict[str, Tensor] = {}
    for name, weight in load_file(folder / WHOLE).items():
        if weight.ndim != 2 or any(part in name for part in KEPT):
            tensors[name] = weight
            continue
        tensors[name], tensors[name + "_scale_inv"] = in_blocks(weight)
    with torch.no_grad():
        round_in_place(model)
    save_file(tensors, folder / WHOLE, metadata={"format": "pt"})
    path = folder / "config.json"
    form = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [*BLOCK]}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": form}))


def in_blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The weight's numbers and the scales of its blocks."""
    rows, columns = weight.shape
    scales = torch.zeros(-(-rows // BLOCK[0]), -(-columns // BLOCK[1]))
    numbers = torch.zeros(rows, columns, dtype=torch.float8_e4m3fn)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            here = (slice(i * BLOCK[0], (i + 1) * BLOCK[0]), slice(j * BLOCK[1], (j + 1) * BLOCK[1]))
            scales[i, j] = weight[here].abs().max() / LARGEST
            numbers[here] = (weight[here] / scales[i, j]).to(torch.float8_e4m3fn)
    return numbers, scales


def rounded(weight: Tensor) -> Tensor:
    numbers, scales = in_blocks(weight)
    by_row = scales.repeat_interleave(BLOCK[0], 0).repeat_interleave(BLOCK[1], 1)
    return numbers.float() * by_row[: weight.shape[0], : weight.shape[1]]


def round_in_place(model: PreTrainedModel) -> None:
    """Experts are rounded one by one: their gate and up projections are separate tensors in the file."""
    for name, parameter in model.named_parameters():
        if any(part in name for part in KEPT) or parameter.ndim < 2:
            continue
        if parameter.ndim == 2:
            parameter.copy_(rounded(parameter))
            continue
        for expert in parameter:
            halves = 2 if "gate_up_proj" in name else 1
            for half in expert.chunk(halves):
                half.copy_(rounded(half))
