# SPDX-License-Identifier: Apache-2.0
"""Compare other kernels of products, experts and cuts of draws with ours, on a GPU, and time both.

    python scripts/gpu_parts.py [--device cuda:0] [--usable]

Tries each part that this GPU and these packages have, in sizes of published models, as a worker does that is asked for
it, and prints the median milliseconds of both at a few numbers of rows. --usable only prints the parts. Exits with 1 if
any differs or fails.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch  # noqa: E402
from gpu_bench import timed  # noqa: E402

import app  # noqa: E402, F401
from pontil.gpu_ops.draws.filtered_draws import DRAWS, FilteredDraws  # noqa: E402
from pontil.gpu_ops.draws.sampling import DrawIds, draw  # noqa: E402
from pontil.gpu_ops.parameters.draws import ALL_KINDS, DeviceDraws  # noqa: E402
from pontil.gpu_ops.products.experts import GroupedExperts  # noqa: E402
from pontil.gpu_ops.products.scaled_weights import ScaledLinear, ScaledWeights  # noqa: E402
from pontil.gpu_ops.products.torch_products import (  # noqa: E402
    EXPERTS,
    PRODUCTS,
    GroupedMatmul,
    ScaledMatmul,
    TorchProducts,
)
from pontil.gpu_ops.triton.device_weights import DeviceWeights  # noqa: E402
from pontil.runtime.config.worker_config import KERNEL_BACKENDS  # noqa: E402
from pontil.runtime.worker.start.package_check import differing, limit  # noqa: E402

BRAIN = torch.bfloat16
ROWS = (1, 64, 2048)
VOCABULARY = 128256
# Outputs and inputs of products of an 8B model, and experts, hidden and inner size of a mixture of 30B.
PRODUCT_SIZES = ((6144, 4096), (28672, 4096), (4096, 14336))
EXPERT_SIZES = (128, 2048, 768)

Pair = tuple[str, Callable[[], object], Callable[[], object]]


def usable(device: torch.device) -> list[str]:
    """The parts that this GPU and these packages have."""
    found = [name for name in KERNEL_BACKENDS if limit(name, BRAIN, device) is None]
    return [name for name in found if name != DRAWS or find_spec("flashinfer") is not None]


def products_of(device: torch.device, sizes: Sequence[tuple[int, int]], mixture: tuple[int, int, int]) -> TorchProducts:
    """Products of random weights, as models make them."""
    made, (count, hidden, inner) = TorchProducts((EXPERTS, PRODUCTS)), mixture
    for outputs, inputs in sizes:
        numbers = torch.randn(outputs, inputs, device=device).to(torch.float8_e4m3fn)
        made.linear(ScaledWeights(numbers, torch.rand(outputs, 1, device=device) + 0.5, inputs), BRAIN, device, None)
    gate_up, down = (
        DeviceWeights(torch.randn(count, outputs, inputs, device=device, dtype=BRAIN) / inputs**0.5)
        for outputs, inputs in ((2 * inner, hidden), (hidden, inner))
    )
    made.experts(GroupedExperts(gate_up, down, 0, None))
    return made


def product_pairs(one: ScaledMatmul) -> list[Pair]:
    def pair(rows: int) -> Pair:
        x = torch.randn(rows, one.in_features, device=one.device, dtype=BRAIN)
        return f"{one.shape}, {rows} rows", lambda: one.multiply(x), lambda: ScaledLinear.multiply(one, x)

    return [pair(rows) for rows in ROWS]


def expert_pairs(one: GroupedMatmul) -> list[Pair]:
    device, count = one.down.numbers.device, len(one.down.numbers)

    def pair(rows: int) -> Pair:
        x = torch.randn(rows, one.gate_up.inputs, device=device, dtype=BRAIN)
        chosen = torch.randint(count, (rows, min(8, count)), device=device)
        return f"{one.shape}, {rows} rows", lambda: one(x, chosen), lambda: GroupedExperts.__call__(one, x, chosen)

    return [pair(rows) for rows in ROWS]


def draw_pairs(device: torch.device) -> list[Pair]:
    def pair(rows: int) -> Pair:
        logits, real = (
            torch.randn(rows, VOCABULARY, device=device),
            torch.ones(rows, dtype=torch.float64, device=device),
        )
        row = torch.arange(rows, dtype=torch.int32, device=device)
        draws, out = DeviceDraws(row, real, torch.full_like(row, 50), 0.9 * real, 0 * real, 0.5 * real), row.clone()

        def call(by: DrawIds) -> Callable[[], object]:
            return lambda: by(logits, draws, out, ALL_KINDS)

        return f"{VOCABULARY} ids, {rows} rows", call(FilteredDraws.of_package()), call(draw)

    return [pair(rows) for rows in ROWS[:2]]


def pairs_of(name: str, products: TorchProducts, device: torch.device) -> list[Pair]:
    if name == DRAWS:
        return draw_pairs(device)
    made = products.made[name].values()
    scaled = [pair for one in made if isinstance(one, ScaledMatmul) for pair in product_pairs(one)]
    return scaled + [pair for one in made if isinstance(one, GroupedMatmul) for pair in expert_pairs(one)]


def compare(name: str, products: TorchProducts, device: torch.device, vocabulary: int = VOCABULARY) -> bool:
    """Print what a part makes, and the milliseconds of it and of our kernels. Return whether all is well."""
    found = differing(name, products, vocabulary, device)
    print(f"{name}: {found or 'as our kernels'}", flush=True)
    for what, theirs, ours in pairs_of(name, products, device) if found is None else []:
        times = [1e3 * statistics.median(timed(call, device)) for call in (theirs, ours)]
        print(f"{name}, {what}: {times[0]:.3f} ms, ours {times[1]:.3f} ms", flush=True)
    return found is None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--usable", action="store_true")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cpu" or not torch.cuda.is_available():
        sys.exit("torch finds no GPU here: these kernels compute on GPUs only")
    torch.cuda.set_device(device)
    if arguments.usable:
        print(*usable(device))
        return
    products = products_of(device, PRODUCT_SIZES, EXPERT_SIZES)
    # All are tried, whatever becomes of the first.
    compared = [compare(name, products, device) for name in usable(device)]
    sys.exit(not all(compared))


if __name__ == "__main__":
    main()
