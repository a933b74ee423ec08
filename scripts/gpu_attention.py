# SPDX-License-Identifier: Apache-2.0
"""Compare the attention of other packages with that of our kernels, on a GPU.

    python scripts/gpu_attention.py [--device cuda:0] [--installed]

Tries each package that is installed in layers like those of published models, and says what differs. --installed only
prints the names of those that are. Exits with 1 if any differs or fails.
"""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch  # noqa: E402

import app  # noqa: E402, F401
from pontil.gpu_ops.attention_backends.backend import AttentionBackend  # noqa: E402
from pontil.gpu_ops.attention_backends.choice import MODULES, limit_of  # noqa: E402
from pontil.gpu_ops.attention_backends.self_check import AttentionShape  # noqa: E402
from pontil.runtime.worker.start.package_check import tried  # noqa: E402

BRAIN, HALF = torch.bfloat16, torch.float16
SHAPES = {
    "llama-3-8b": AttentionShape(32, 8, 128, BRAIN, 16, (None,)),
    "qwen2.5-0.5b": AttentionShape(14, 2, 64, HALF, 16, (None,)),
    "smollm2-135m": AttentionShape(9, 3, 64, BRAIN, 32, (None,)),
    "gemma-3": AttentionShape(8, 4, 256, BRAIN, 16, (None, 512)),
}


def installed() -> list[str]:
    return [name for name, module in MODULES.items() if find_spec(module) is not None]


def compare(name: str, device: torch.device) -> bool:
    """Print what a backend makes of each shape. Return whether all is well."""
    well = True
    for model, shape in SHAPES.items():
        found = limit_of(name, 2, shape.dim, shape.dtype, sinks=False)
        if found is None:
            found = tried(name, shape, device, AttentionBackend())
        well &= found is None
        print(f"{name}, {model}: {found or 'as our kernels'}", flush=True)
    return well


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--installed", action="store_true")
    arguments = parser.parse_args()
    if arguments.installed:
        print(*installed())
        return
    device = torch.device(arguments.device)
    if device.type != "cpu" and not torch.cuda.is_available():
        sys.exit("torch finds no GPU here: the packages compute on GPUs only")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # All are tried, whatever becomes of the first.
    compared = [compare(name, device) for name in installed()]
    sys.exit(not all(compared))


if __name__ == "__main__":
    main()
