# SPDX-License-Identifier: Apache-2.0
"""Measure products with weights in blocks beside the same weights in the form of any whole numbers, in turn; or those
with weights of any types beside the same by other kernels. `bench_engine.py --products` measures them beside what the
machine can do.

    taskset -c 1 python scripts/bench_products.py [--kernels auto] [--rows 1 2 4 8 32 128] [--rounds 9]
    taskset -c 1 python scripts/bench_products.py --kernels amx --beside avx512bf16 --types 8 13 20 --rows 32 256

Prints one JSON object for each type and number of rows: the least and the median milliseconds of this thread's CPU time
for both, and the ratio of each, the first to the other. Weights are random, and larger than a core's caches.
"""

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch  # noqa: E402
from roofline import best  # noqa: E402

import app  # noqa: E402, F401
from pontil.gpu_ops.kernels.kernel_set import open_kernels  # noqa: E402
from pontil.gpu_ops.kernels.library import KernelLibrary  # noqa: E402
from pontil.gpu_ops.kernels.weights.matrix import Matrix, pack  # noqa: E402
from pontil.gpu_ops.kernels.weights.quantized import QuantizedWeights  # noqa: E402
from pontil.runtime.loaders.gguf.ggml_levels import LEVELS, STEPS  # noqa: E402
from pontil.runtime.loaders.gguf.ggml_types import GGML_TYPES  # noqa: E402

CACHE = Path.home() / ".cache" / "pontil"
OUTPUTS, INPUTS = 35840, 1536
# The places of float16 steps in a block of each type, by its number in ggml.
SHARED_TYPES = (12, 14, 8)
STEP_PLACES = {12: (0, 2), 14: (208,), 2: (0,), 6: (0,), 8: (0,), 13: (0, 2), 20: (0,)}


def random_weight(kind: int) -> QuantizedWeights:
    form = GGML_TYPES[kind]
    blocks = torch.randint(0, 256, (OUTPUTS * INPUTS // form.numbers, form.size), dtype=torch.uint8)
    for place in STEP_PLACES[kind]:
        blocks[:, place : place + 2] = (torch.randn(len(blocks), 1) * 1e-3).half().view(torch.uint8)
    numbers, scales, offsets = (part.reshape(OUTPUTS, -1) for part in LEVELS[kind](blocks))
    steps = STEPS[kind](blocks).reshape(OUTPUTS, -1) if kind in STEPS else None
    return QuantizedWeights(numbers, scales, offsets, steps)


def bytes_of(matrix: Matrix) -> int:
    """Return the bytes that a product with a weight reads of it."""
    return sum(part.nbytes for part in matrix.parts if part is not None)


def product_shares(
    library: KernelLibrary, rows: list[int], read: float, peak: float, rounds: int
) -> list[dict[str, object]]:
    """Return for Q4_K, Q6_K and Q8_0 and each number of rows the least milliseconds of a product, what share that is of
    the bytes per second that can be `read`, and of the multiply-adds per second that are the `peak`."""
    found: list[dict[str, object]] = []
    for kind in SHARED_TYPES:
        matrix = pack(random_weight(kind))
        for count in rows:
            x = torch.randn(count, INPUTS)
            seconds = best(lambda x=x, matrix=matrix: library.linear(matrix, x), rounds)  # type: ignore[misc]
            shares = {"reading": bytes_of(matrix) / read, "peak": count * OUTPUTS * INPUTS / peak}
            found.append({
                "type": GGML_TYPES[kind].name, "rows": count, "ms": round(1000 * seconds, 2),
                **{name: round(least / seconds, 2) for name, least in shares.items()},
            })  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 2, 4, 8, 32, 128])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--beside", help="kernels that multiply the same weights")
    parser.add_argument("--types", nargs="+", type=int, choices=STEP_PLACES, default=[*STEPS])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    libraries = [
        open_kernels(one, 1, CACHE, print) for one in (arguments.kernels, arguments.beside or arguments.kernels)
    ]
    for kind in arguments.types:
        weight = random_weight(kind)
        forms = [pack(weight), pack(weight if arguments.beside else replace(weight, steps=None))]
        for rows in arguments.rows:
            x = torch.randn(rows, INPUTS)
            taken: tuple[list[float], list[float]] = ([], [])
            for _ in range(arguments.rounds):
                for library, form, seconds in zip(libraries, forms, taken, strict=True):
                    assert library is not None
                    start = time.thread_time()
                    library.linear(form, x)
                    seconds.append(1000 * (time.thread_time() - start))
            (least, median), (other_least, other_median) = ((min(one), statistics.median(one)) for one in taken)
            figures = [round(one, 2) for one in (least, median, other_least, other_median)]
            ratios = [round(least / other_least, 2), round(median / other_median, 2)]
            print(
                json.dumps({"type": GGML_TYPES[kind].name, "rows": rows, "ms": figures, "ratios": ratios}), flush=True
            )


if __name__ == "__main__":
    main()
