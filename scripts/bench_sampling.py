# SPDX-License-Identifier: Apache-2.0
"""The cost of drawing a step's tokens from logits, by their distribution and the parameters of the draw.

    python scripts/bench_sampling.py [--rows 8 32] [--ids 49152] [--rounds 30] [--kernels auto]

Each figure is the median of processor time over rounds that take turns, on one thread, with new logits each round.
"""

import argparse
import statistics
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import app  # noqa: E402, F401
from pontil.gpu_ops.draws.sampling import Shaping, sample  # noqa: E402
from pontil.gpu_ops.kernels.draws import draw_rows  # noqa: E402
from pontil.gpu_ops.kernels.kernel_set import CHOICES, TORCH, open_kernels  # noqa: E402

# Map from a distribution to the spread of its logits and the number of ids that stand out.
DISTRIBUTIONS = {"peaked": (3.0, 20), "broad": (3.0, 0), "almost flat": (0.5, 0)}
OUTSTANDING = 8.0
CUTS: dict[str, dict[str, float]] = {
    "none": {},
    "top_p 0.95": {"top_p": 0.95},
    "top_p 0.95, min_p 0.02": {"top_p": 0.95, "min_p": 0.02},
    "top_p 0.95, top_k 40": {"top_p": 0.95, "top_k": 40},
}


def logits_of(distribution: str, rows: int, ids: int, generator: torch.Generator) -> Tensor:
    spread, outstanding = DISTRIBUTIONS[distribution]
    logits = torch.randn(rows, ids, generator=generator) * spread
    chosen = torch.randint(0, ids, (rows, outstanding), generator=generator)
    return logits.scatter_add_(1, chosen, torch.full((rows, outstanding), OUTSTANDING))


def shaping_of(rows: int, temperature: float, top_k: float = 0, top_p: float = 1.0, min_p: float = 0.0) -> Shaping:
    def full(value: float) -> Tensor:
        return torch.full((rows,), value, dtype=torch.float64)

    return Shaping(full(temperature), full(top_k).long(), full(top_p), full(min_p))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--ids", type=int, default=49152)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--kernels", choices=CHOICES, default=TORCH)
    args = parser.parse_args()
    torch.set_num_threads(1)
    kernels = open_kernels(args.kernels, 1, None)
    draws = None if kernels is None else partial(draw_rows, kernels)
    generator = torch.Generator().manual_seed(0)
    times: dict[tuple[int, str, str], list[float]] = {}
    for _ in range(args.rounds):
        for rows in args.rows:
            numbers = torch.rand(rows, generator=generator, dtype=torch.float64)
            for distribution in DISTRIBUTIONS:
                logits = logits_of(distribution, rows, args.ids, generator)
                for name, cut in CUTS.items():
                    shaping = shaping_of(rows, args.temperature, **cut)
                    start = time.process_time()
                    sample(logits, shaping, torch.arange(rows), numbers, draws)
                    times.setdefault((rows, distribution, name), []).append(time.process_time() - start)
    print(f"{args.ids} ids, temperature {args.temperature}")
    for (rows, distribution, name), seconds in times.items():
        median, least, worst = (1000 * one for one in (statistics.median(seconds), min(seconds), max(seconds)))
        print(f"{rows:3d} rows  {distribution:12s} {name:24s} {median:7.2f} ms, {least:7.2f} to {worst:7.2f} ms")


if __name__ == "__main__":
    main()
