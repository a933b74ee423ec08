# SPDX-License-Identifier: Apache-2.0
"""Measure how fast KV blocks move between two processes of this machine, against copying them within one.

    python scripts/bench_transfer.py [--blocks 400] [--rounds 7] [--cores 0 1]

The pools have the layout of SmolLM2-135M (30 layers, 3 heads of 64, bfloat16, 16 tokens: 360 KiB a block). Another
process owns the blocks; one pull names all of them, as neighbours or shuffled. Prints one JSON object: the median rate
of the rounds in 10^9 bytes a second, after one round to warm up, with the slowest and the fastest. `copy` is numpy
copying the same blocks from memory to memory in this process, in one thread, as shm does.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch  # noqa: E402

import app  # noqa: E402, F401
from pontil.runtime.cache.layout import KVLayout  # noqa: E402
from pontil.runtime.cache.storage import KVStorage  # noqa: E402
from pontil.runtime.transfer.connector import Connector, Pair, runs  # noqa: E402
from pontil.runtime.transfer.over_auto import OverAuto  # noqa: E402
from pontil.runtime.transfer.over_shm import OverShm  # noqa: E402
from pontil.runtime.transfer.over_tcp import OverTcp  # noqa: E402

LAYOUT = KVLayout(16, 30, 3, 64, "bfloat16")
TIMEOUT = 60.0


def open_storage(blocks: int) -> KVStorage:
    storage = KVStorage(LAYOUT, blocks + 1, torch.device("cpu"))
    storage.shared.random_(0, 256)  # touches every page
    return storage


def own(blocks: int) -> None:
    """The other process: tell how our blocks can be read, and wait for the end of the input."""
    connector = OverAuto(open_storage(blocks), lambda: None)
    print(json.dumps(connector.register()), flush=True)
    sys.stdin.read()
    connector.close()


def pairs_of(blocks: int, shuffled: bool) -> list[Pair]:
    theirs, ours = list(range(1, blocks + 1)), list(range(1, blocks + 1))
    if shuffled:
        chance = random.Random(1)
        chance.shuffle(theirs)
        chance.shuffle(ours)
    return list(zip(theirs, ours, strict=True))


def rates(move: Callable[[], None], size: int, rounds: int) -> dict[str, float]:
    found = []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        move()
        found.append(size / (time.perf_counter() - begun) / 1e9)
    found = found[1:]
    return {key: round(value, 2) for key, value in
            (("median", statistics.median(found)), ("low", min(found)), ("high", max(found)))}  # fmt: skip


class Puller:
    """Pulls from the other process and waits for the end."""

    def __init__(self, storage: KVStorage, kind: type[OverShm] | type[OverTcp], descriptor: dict[str, object]) -> None:
        self.bell = threading.Event()
        self.connector: Connector = kind(storage, self.bell.set)
        self.connector.attach("peer", descriptor)

    def pull(self, pairs: list[Pair]) -> None:
        self.bell.clear()
        self.connector.pull("peer", pairs, 0)
        if not self.bell.wait(TIMEOUT):
            raise SystemExit("a pull did not end")
        (done,) = self.connector.poll()
        if done.error:
            raise SystemExit(done.error)


def measure(descriptor: dict[str, object], blocks: int, rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    ours, source = open_storage(blocks), open_storage(blocks)
    read, written = source.shared.numpy(), ours.shared.numpy()
    shm, tcp = Puller(ours, OverShm, descriptor), Puller(ours, OverTcp, descriptor)
    results: dict[str, dict[str, dict[str, float]]] = {}
    for order, shuffled in (("neighbours", False), ("shuffled", True)):
        pairs = pairs_of(blocks, shuffled)

        def copy(pairs: list[Pair] = pairs) -> None:
            for theirs, mine, count in runs(pairs):
                written[mine : mine + count] = read[theirs : theirs + count]

        size = blocks * LAYOUT.block_bytes
        results[order] = {
            "copy": rates(copy, size, rounds),
            "shm": rates(partial(shm.pull, pairs), size, rounds),
            "tcp": rates(partial(tcp.pull, pairs), size, rounds),
        }
    shm.connector.close()
    tcp.connector.close()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cores", type=int, nargs=2, help="the owner's core and the reader's")
    parser.add_argument("--own", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cores:
        os.sched_setaffinity(0, {args.cores[0 if args.own else 1]})
    if args.own:
        own(args.blocks)
        return
    command = [sys.executable, __file__, "--own", "--blocks", str(args.blocks)]
    if args.cores:
        command += ["--cores", *map(str, args.cores)]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdin is not None and owner.stdout is not None
    with owner, owner.stdin:
        results = measure(json.loads(owner.stdout.readline()), args.blocks, args.rounds)
    size = args.blocks * LAYOUT.block_bytes
    print(json.dumps({"blocks": args.blocks, "bytes": size, "unit": "GB/s", **results}, indent=1))


if __name__ == "__main__":
    main()
