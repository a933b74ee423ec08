# SPDX-License-Identifier: Apache-2.0
"""Write a GGUF file that computes what another one does, in so many times its layers.

    python scripts/deepen_model.py --model smollm2-135m-instruct --times 3 [--counting] FILE

The further layers add nothing: the last projections of each are zero. So a step takes longer, the answers are those of
the given model to the last bit, and that one, as its draft model, guesses all tokens right that it has read the whole
text of. For measurements of speculation, where two models of the same vocabulary are wanted that differ in nothing but
what a step takes.

With --counting no layer adds anything, and the most likely token is the one whose id is one more than the last one's:
of two such files each guesses all tokens of the other right, whatever part of the text it has read, and no answer
repeats what was in it, so that nothing else guesses.
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
# The embeddings, the norm before the logits, and the matrix of these, which are the embeddings where it is left out.
EMBEDDINGS, LAST_NORM, LOGITS = "token_embd.weight", "output_norm.weight", "output.weight"
# Fields that the writer makes itself.
OWN = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", gguf.Keys.General.ARCHITECTURE)
# The type of weights whose bytes are scales and whole numbers, of which zeros are zero.
ZEROABLE = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")
# The types of embeddings that are written here.
QUANTIZABLE = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0")


def deepen(given: Path, times: int, counting: bool, to: Path) -> None:
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
        if layer := LAYER.fullmatch(tensor.name):
            assert layer[2] not in ADDED or tensor.tensor_type.name in ZEROABLE, tensor.tensor_type.name
            without = np.zeros_like(tensor.data) if layer[2] in ADDED else tensor.data
            for more in range(times):
                name = f"blk.{int(layer[1]) + more * layers}.{layer[2]}"
                writer.add_tensor(name, without if more or counting else tensor.data, raw_dtype=tensor.tensor_type)
        elif not counting:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        elif tensor.name == EMBEDDINGS:
            write_counting(writer, tensor)
        elif tensor.name not in (LAST_NORM, LOGITS):
            raise SystemExit(f"{tensor.name} of this model may change its answers: --counting knows no such model")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_counting(writer: gguf.GGUFWriter, embeddings: gguf.ReaderTensor) -> None:
    """Write embeddings of random signs, of which no two are alike, and behind them the logits of a token that the one
    before it makes likely. Both have the type of the model's own embeddings."""
    width, tokens = (int(size) for size in embeddings.shape)
    signs = np.random.default_rng(0).choice(np.array([-1, 1], dtype=np.float32), (tokens, width))
    kind = embeddings.tensor_type
    if kind.name not in QUANTIZABLE:
        raise SystemExit(f"embeddings of type {kind.name} cannot be written: --counting knows {', '.join(QUANTIZABLE)}")
    for name, matrix in ((EMBEDDINGS, signs), (LOGITS, np.roll(signs, 1, axis=0))):
        writer.add_tensor(name, gguf.quants.quantize(matrix, kind), raw_dtype=kind)
    writer.add_tensor(LAST_NORM, np.ones(width, dtype=np.float32))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("to", type=Path, metavar="FILE")
    parser.add_argument("--model", required=True, metavar="NAME", help="a GGUF file, or a built-in model that is one")
    parser.add_argument("--times", type=int, default=3, metavar="N")
    parser.add_argument("--counting", action="store_true", help="answers that anything guesses right")
    given = parser.parse_args()
    deepen(resolve_model(given.model, Path.home() / ".cache/pontil"), given.times, given.counting, given.to)
    return 0


if __name__ == "__main__":
    sys.exit(main())
