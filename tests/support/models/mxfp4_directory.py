# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face directory of a GPT-OSS whose experts are floats of 4 bits, made from a model of transformers."""

import json
from pathlib import Path

import torch
from architectures import SIZES
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from pontil.gpu_ops.products.scaled_weights import FP4_VALUES
from pontil.runtime.loaders.facts.shards import WHOLE

# Inputs are multiples of 32.
EVEN = SIZES | {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
FUSED = ("experts.gate_up_proj", "experts.down_proj")


def packed(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round [..., inputs] to floats of 4 bits: their bytes [..., groups, 16] and exponents [..., groups]."""
    groups = weight.unflatten(-1, (-1, 32))
    exponents = groups.abs().amax(-1).log2().floor() - 2
    scaled = groups / torch.exp2(exponents).unsqueeze(-1)
    numbers = (scaled.unsqueeze(-1) - torch.tensor(FP4_VALUES)).abs().argmin(-1).to(torch.uint8)
    pairs = numbers.unflatten(-1, (16, 2))
    return pairs[..., 0] | pairs[..., 1] << 4, (exponents + 127).to(torch.uint8)


def write_mxfp4(model: PreTrainedModel, folder: Path, dtype: str = "float32") -> None:
    """Write the model with experts of 4 bits, and have it take the values that transformers reads from their bytes."""
    model.save_pretrained(folder)
    tensors, parameters = load_file(folder / WHOLE), dict(model.named_parameters())
    for name in [one for one in tensors if one.endswith(FUSED)]:
        blocks, scales = packed(tensors.pop(name).transpose(1, 2))
        tensors |= {f"{name}_blocks": blocks.contiguous(), f"{name}_scales": scales}
        with torch.no_grad():
            parameters[name].copy_(convert_moe_packed_tensors(blocks, scales.clone(), dtype=torch.float32))
    save_file(tensors, folder / WHOLE, metadata={"format": "pt"})
    path = folder / "config.json"
    form = {"quantization_config": {"quant_method": "mxfp4"}, "dtype": dtype}
    path.write_text(json.dumps(json.loads(path.read_text()) | form))
