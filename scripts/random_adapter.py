# SPDX-License-Identifier: Apache-2.0
"""A LoRA adapter of random numbers for a model, as PEFT saves it, to try what computes adapters.

    python scripts/random_adapter.py MODEL DIRECTORY [--rank 8] [--seed 1] [--size 0.1]

MODEL is a built-in name or a directory. Every linear layer that may have an adapter has one, whose results are about
--size times as large as the layer's inputs.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402

import app  # noqa: E402, F401
from pontil.runtime.loaders.builtin import resolve_model  # noqa: E402
from pontil.runtime.loaders.config import read_config  # noqa: E402
from pontil.runtime.loaders.facts.adapter_facts import CONFIG, WEIGHTS, adaptable_layers  # noqa: E402


def write(model: Path, directory: Path, rank: int, seed: int, size: float) -> None:
    generator, tensors = np.random.default_rng(seed), dict[str, np.ndarray]()
    for name, (outputs, inputs) in adaptable_layers(read_config(model)).items():
        shapes = {"A": ((rank, inputs), inputs**-0.5), "B": ((outputs, rank), size * rank**-0.5)}
        for matrix, (shape, scale) in shapes.items():
            numbers = scale * generator.standard_normal(shape, dtype=np.float32)
            tensors[f"base_model.model.{name}.lora_{matrix}.weight"] = numbers
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none", "target_modules": "all-linear"}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / CONFIG).write_text(json.dumps(settings))
    save_file(tensors, directory / WEIGHTS)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", type=float, default=0.1)
    parser.add_argument("--cache-dir", type=Path, default=Path.home() / ".cache" / "pontil")
    given = parser.parse_args()
    write(resolve_model(given.model, given.cache_dir), given.directory, given.rank, given.seed, given.size)


if __name__ == "__main__":
    main()
