# SPDX-License-Identifier: Apache-2.0
"""Time of the layers of a worker of several ranks on one host, with both arithmetics in turn (docs/decisions/092), and
where there are experts, with rows that travel to them (docs/decisions/094).

    python scripts/bench_ranks.py [--ranks 2] [--hidden 1024] [--inner 2816] [--layers 8] [--prompt 256]
        [--rows 1 8 32] [--context 128] [--rounds 15] [--experts 0] [--chosen 8]

The weights are random, of 16 bits. Each rank is a process of one thread, on a core of its own where there are so many.
Milliseconds of rank 0: the least, and the median, of a prompt and of steps of so many rows, all ways by turns in each
round. With --experts each layer has so many, of --inner each, of which a row has --chosen.
"""

import argparse
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import app  # noqa: E402, F401
from pontil.gpu_ops.collectives.communicator import Communicator  # noqa: E402
from pontil.gpu_ops.collectives.factory import create_communicator, open_communicator  # noqa: E402
from pontil.gpu_ops.kernels.kernel_set import open_kernels  # noqa: E402
from pontil.gpu_ops.kernels.library import KernelLibrary  # noqa: E402
from pontil.gpu_ops.kernels.tile import TileSpan  # noqa: E402
from pontil.runtime.cache.layout import KVLayout  # noqa: E402
from pontil.runtime.cache.storage import KVStorage  # noqa: E402
from pontil.runtime.config.worker_config import EXACT, FAST  # noqa: E402
from pontil.runtime.engine.tiles.plan import TilePlan  # noqa: E402
from pontil.runtime.engine.tiles.runner import TileRunner  # noqa: E402
from pontil.runtime.loaders.facts.layout import tensor_shapes  # noqa: E402
from pontil.runtime.models.config import ExpertConfig, ModelConfig  # noqa: E402
from pontil.runtime.models.families.registry import build_model  # noqa: E402
from pontil.runtime.models.layers.fused_block import shared_bytes  # noqa: E402
from pontil.runtime.models.partition import Arithmetic  # noqa: E402
from pontil.runtime.models.weights import Packing, Weights  # noqa: E402

CPU, BLOCK, HEAD, VOCABULARY = torch.device("cpu"), 16, 64, 1024
WARM_UP, DISPATCH = 2, "dispatch"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (
        ("ranks", 2), ("hidden", 1024), ("inner", 2816), ("layers", 8), ("prompt", 256), ("context", 128),
        ("rounds", 15), ("experts", 0), ("chosen", 8),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    arguments = parser.parse_args()
    context, library = get_context("spawn"), opened()
    size = shared_bytes(shape_of(arguments), arguments.ranks)
    first = create_communicator(library, CPU, arguments.ranks, size, "")
    others = []
    for rank in range(1, arguments.ranks):
        ours, theirs = context.Pipe()
        others.append(context.Process(target=follow, args=(theirs, rank, arguments), daemon=True))
        others[-1].start()
        ours.send(first.descriptor)
        ours.recv()
    print(f"{'way':9}{'tile':>12}{'least':>10}{'median':>10}")
    for (tile, way), seconds in sorted(timed(library, first, arguments).items()):
        print(f"{way:9}{tile:>12}{min(seconds) * 1e3:10.2f}{statistics.median(seconds) * 1e3:10.2f}", flush=True)
    for other in others:
        other.join()
    first.close()


def follow(end: Connection, rank: int, arguments: argparse.Namespace) -> None:
    library = opened()
    communicator = open_communicator(library, CPU, end.recv(), rank)
    end.send("here")
    timed(library, communicator, arguments)
    communicator.close()


def opened() -> KernelLibrary:
    library = open_kernels("auto", 1, Path.home() / ".cache" / "pontil")
    if library is None:
        raise SystemExit("there are no kernels for this processor: ranks would exchange through gloo")
    return library


def shape_of(arguments: argparse.Namespace) -> ModelConfig:
    heads = arguments.hidden // HEAD
    dense = ModelConfig(
        "llama", VOCABULARY, arguments.hidden, arguments.inner, arguments.layers, heads, heads, HEAD, 4096, 1e-5, 1e4,
        True, "bfloat16", (2,),
    )  # fmt: skip
    if not arguments.experts:
        return dense
    experts = ExpertConfig(arguments.experts, arguments.chosen, arguments.inner, normalize=True)
    return replace(dense, architecture="mixtral", experts=experts)


def random_tensors(config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for name, shape in tensor_shapes(config).items():
        yield name, (torch.randn(shape, generator=generator) * 0.02).bfloat16()


def opened_runner(
    library: KernelLibrary, communicator: Communicator, config: ModelConfig, blocks: int, way: str
) -> TileRunner:
    packing, arithmetic = Packing.of(library), Arithmetic(row_parallel=way == FAST, expert_parallel=way == DISPATCH)
    tensors = random_tensors(config)
    weights = Weights(tensors, CPU, torch.bfloat16, packing, communicator, arithmetic=arithmetic)
    layout = KVLayout(
        BLOCK, config.num_layers, config.num_kv_heads, HEAD, "bfloat16", True, communicator.rank, communicator.size
    )
    return TileRunner(build_model(config, weights), KVStorage(layout, blocks, CPU))


def timed(
    library: KernelLibrary, communicator: Communicator, arguments: argparse.Namespace
) -> dict[tuple[str, str], list[float]]:
    """Return the seconds of each round by tile and way. All ranks call this."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[communicator.rank % len(cores)]})
    torch.set_num_threads(1)
    longest = max(arguments.prompt, arguments.context + 1)
    each = -(-longest // BLOCK)
    count = max(arguments.rows) * each + 1
    ways = (EXACT, FAST, DISPATCH) if arguments.experts else (EXACT, FAST)
    runners = [(way, opened_runner(library, communicator, shape_of(arguments), count, way)) for way in ways]
    tables = [list(range(1 + each * row, 1 + each * (row + 1))) for row in range(max(arguments.rows))]
    places = list(range(arguments.prompt))
    prompt = TilePlan(False, [5] * len(places), [TileSpan(0, len(places), tables[0])], places[-1:], [], [])
    tiles = [("prompt", prompt)]
    for rows in arguments.rows:
        spans = [TileSpan(arguments.context, 1, table) for table in tables[:rows]]
        tiles.append((f"{rows} rows", TilePlan(True, [5] * rows, spans, list(range(rows)), [], [])))
    found = defaultdict[tuple[str, str], list[float]](list)
    with torch.inference_mode():
        for number in range(WARM_UP + arguments.rounds):
            for name, tile in tiles:
                for way, runner in runners:
                    communicator.barrier()
                    begun = time.perf_counter()
                    runner.forward(tile)
                    if number >= WARM_UP:
                        found[name, way].append(time.perf_counter() - begun)
    return found


if __name__ == "__main__":
    main()
