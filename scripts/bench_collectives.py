# SPDX-License-Identifier: Apache-2.0
"""Time of an exchange between the ranks of a worker on one host, over shared memory and by gloo.

    python scripts/bench_collectives.py [--ranks 2 4] [--rows 1 32] [--columns 576] [--rounds 2000]

Each rank gives its part of float32 rows and gets the whole; "barrier" exchanges nothing. Microseconds of rank 0: the
least, and the median, of rounds that follow each other without a pause. Ranks are processes of one thread.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch  # noqa: E402

import app  # noqa: E402, F401
from pontil.gpu_ops.collectives.communicator import Communicator  # noqa: E402
from pontil.gpu_ops.collectives.factory import create_communicator, open_communicator  # noqa: E402
from pontil.gpu_ops.collectives.shared_memory import exchange_bytes  # noqa: E402
from pontil.gpu_ops.kernels.kernel_set import open_kernels  # noqa: E402

WAYS = ("shared memory", "gloo")
WARM_UP = 20
DEADLINE = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--columns", type=int, default=576)
    parser.add_argument("--rounds", type=int, default=2000)
    args = parser.parse_args()
    print(f"{'ranks':>5}  {'way':15}{'exchange':>12}{'least':>10}{'median':>10}")
    for ranks in args.ranks:
        for way in WAYS:
            for name, least, median in measured(way, ranks, args):
                print(f"{ranks:5}  {way:15}{name:>12}{least:10.1f}{median:10.1f}", flush=True)


def measured(way: str, ranks: int, args: argparse.Namespace) -> list[tuple[str, float, float]]:
    """Start the other ranks, be rank 0, and return for each exchange its name and two figures."""
    context = get_context("spawn")
    library = open_kernels("auto", 1, Path.home() / ".cache" / "pontil") if way == WAYS[0] else None
    with tempfile.TemporaryDirectory() as folder:
        size = exchange_bytes(args.columns, max(args.rows))
        first = create_communicator(library, torch.device("cpu"), ranks, size, f"file://{folder}/store", DEADLINE)
        ends, others = [], []
        for rank in range(1, ranks):
            ours, theirs = context.Pipe()
            others.append(context.Process(target=follow, args=(theirs, rank, args), daemon=True))
            others[-1].start()
            ours.send(first.descriptor)
            ends.append(ours)
        for end in ends:
            end.recv()
        results = timed(first, args)
        first.close()
        for other in others:
            other.join()
    if library is not None:
        library.close()
    return results


def follow(end: Connection, rank: int, args: argparse.Namespace) -> None:
    descriptor = end.recv()
    shared = descriptor["kind"] == "shared_memory"
    library = open_kernels("auto", 1, Path.home() / ".cache" / "pontil") if shared else None
    communicator = open_communicator(library, torch.device("cpu"), descriptor, rank)
    end.send("here")
    timed(communicator, args)
    communicator.close()


def timed(communicator: Communicator, args: argparse.Namespace) -> list[tuple[str, float, float]]:
    torch.set_num_threads(1)
    exchanges: list[tuple[str, Callable[[], object]]] = [("barrier", communicator.barrier)]
    for rows in args.rows:
        part = torch.randn(rows, args.columns // communicator.size)
        exchanges.append((f"{rows}x{args.columns}", partial(communicator.gather_columns, part)))
    return [(name, *figures(exchange, args.rounds)) for name, exchange in exchanges]


def figures(exchange: Callable[[], object], rounds: int) -> tuple[float, float]:
    times = []
    for _ in range(WARM_UP + rounds):
        begun = time.perf_counter()
        exchange()
        times.append((time.perf_counter() - begun) * 1e6)
    return min(times[WARM_UP:]), statistics.median(times[WARM_UP:])


if __name__ == "__main__":
    main()
