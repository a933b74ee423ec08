# SPDX-License-Identifier: Apache-2.0
"""Write a GGUF file that computes what another one does, in so many times its layers.

    python scripts/deepen_model.py --model smollm2-135m-instruct --times 3 FILE

The further layers add nothing: the last projections of each are zero. So a step takes longer, the answers are those of
the given model to the last bit, and that one, as its draft model, guesses all tokens right. For measurements of
speculation, where two models of the same vocabulary are wanted that differ in nothing but what a step takes.
"""

import argparse
import re
import sys
from pathlib import Path

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import app  # noqa: E402, F401
from pontil.runtime.loaders.builtin import resolve_model  # noqa: E402

LAYER = re.compile(r"blk\.(\d+)\.(.+)")
# The projections whose products a layer adds to what passes through it.
ADDED = ("attn_output.weight", "ffn_down.weight")
# Fields that the writer makes itself.
OWN = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", gguf.Keys.General.ARCHITECTURE)
# The type of weights whose bytes are scales and whole numbers, of which zeros are zero.
ZEROABLE = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")


def deepen(given: Path, times: int, to: Path) -> None:
    """Write a file with the fields and layers of another one, and so many times their number of layers."""
    reader = gguf.GGUFReader(given)
    architecture = reader.fields[gguf.Keys.General.ARCHITECTURE].contents()
    writer = gguf.GGUFWriter(to, architecture)
    count = gguf.Keys.LLM.BLOCK_COUNT.format(arch=architecture)
    layers = int(reader.fields[count].contents())
    for name, field in reader.fields.items():
        if name not in OWN:
            value = layers * times if name == count else field.contents()
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, value, field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        if layer := LAYER.fullmatch(tensor.name):
            assert layer[2] not in ADDED or tensor.tensor_type.name in ZEROABLE, tensor.tensor_type.name
            data = np.zeros_like(tensor.data) if layer[2] in ADDED else tensor.data
            for more in range(1, times):
                name = f"blk.{int(layer[1]) + more * layers}.{layer[2]}"
                writer.add_tensor(name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("to", type=Path, metavar="FILE")
    parser.add_argument("--model", required=True, metavar="NAME", help="a GGUF file, or a built-in model that is one")
    parser.add_argument("--times", type=int, default=3, metavar="N")
    given = parser.parse_args()
    deepen(resolve_model(given.model, Path.home() / ".cache/pontil"), given.times, given.to)
    return 0


if __name__ == "__main__":
    sys.exit(main())
