# SPDX-License-Identifier: Apache-2.0
"""A model of random weights with recurrent layers, in the sizes of a large one, to measure what no package has.

    python scripts/random_hybrid.py SHAPE DIRECTORY [--layers 8]

SHAPE is delta (the layers of a Qwen3.5 with hidden size 2048: three gated delta nets to one with attention) or mamba2
(those of a Bamba with hidden size 2048: Mamba 2 in three of four), in bfloat16, with a small vocabulary.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), *map(str, sorted((ROOT / "tests/support").iterdir()))]

from tiny_hybrid import write_tiny_hybrid  # noqa: E402

SIZES: dict[str, Any] = {
    "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
    "max_position_embeddings": 32768,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "delta": SIZES | {
        "model_type": "qwen3_5_text", "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    },
    "mamba2": SIZES | {
        "model_type": "bamba", "mamba_n_heads": 64, "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_expand": 2,
    },
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    given = parser.parse_args()
    with_attention = [layer for layer in range(given.layers) if layer % 4 == 3]
    kinds = ["full_attention" if layer in with_attention else "linear_attention" for layer in range(given.layers)]
    own = {"num_hidden_layers": given.layers, "layer_types": kinds, "attn_layer_indices": with_attention}
    write_tiny_hybrid(given.directory, "bfloat16", **SHAPES[given.shape], **own)


if __name__ == "__main__":
    main()
