# SPDX-License-Identifier: Apache-2.0
"""Measure how fast KV blocks move between two processes of this machine, against copying them within one.

python scripts/bench_transfer.py [--blocks 400] [--rounds 7] [--cores 0 1]

The pools have the layout of SmolLM2-135M (30 layers, 3 heads of 64, bfloat16, 16 tokens: 360 KiB a block). Another
process owns the blocks; one pull names all of them, contiguous or shuffled, and hashes them. Prints one JSON object:
the rate of the fastest round and the median of the rounds, in 10^9 bytes a second, after one round to warm up; the ways
take turns within a round, so that other work on the machine hits all of them. `copy` is numpy copying the same blocks
from memory to memory in this process, in one thread, as shm does, without hashing; `shm / copy` compares the fastest.
`sealed` is tcp with keys, that is, with encryption. Where its package is installed, `nixl` is NIXL as UCX reads within
a host, and `nixl over tcp` as it reads from another one. `cpu` is the processor time of both processes for 10^9 bytes,
in seconds: other work on the machine changes it little.

`overlap`: KV sender and KV receiver with a prompt of 2,000 tokens in five chunks, over shared memory that is slowed to
50 MB/s. Computing a chunk is a pause, at --prefill-rate tokens a second. `exposed` is the rest of the transfer after
the Handoff, `alone` the whole transfer in one piece.

`ranks`: pulls of all blocks, of a layout with 4 heads of 64, between pools of this process, over shared memory: from
one rank to one, from two to one, and from one to each of two. `bytes` are those of one taking rank.
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
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil  # noqa: E402
import torch  # noqa: E402

import app  # noqa: E402, F401
from pontil.runtime.cache.layout import KVLayout  # noqa: E402
from pontil.runtime.cache.storage import KVStorage  # noqa: E402
from pontil.runtime.disaggregation.joint_connector import JointConnector  # noqa: E402
from pontil.runtime.disaggregation.rank_pools import RankPools  # noqa: E402
from pontil.runtime.disaggregation.receiver import KVReceiver, ReceiveTransfer  # noqa: E402
from pontil.runtime.disaggregation.sender import KVSender, PrefillResult  # noqa: E402
from pontil.runtime.foundation.connectors import CONNECTORS, missing_package  # noqa: E402
from pontil.runtime.transfer.auto_connector import AutoConnector  # noqa: E402
from pontil.runtime.transfer.connector import Connector, ConnectorOptions, Pair, Pull, PullResult, runs  # noqa: E402# noqa: E402
from pontil.runtime.transfer.grants import Grant
from pontil.runtime.transfer.nixl.connector import NixlConnector  # noqa: E402
from pontil.runtime.transfer.security import TransferSecurity  # noqa: E402
from pontil.runtime.transfer.shm.connector import ShmConnector  # noqa: E402
from pontil.runtime.transfer.shm.copying_connector import CopyJob  # noqa: E402
from pontil.runtime.transfer.shm.peer_pool import PeerPool  # noqa: E402
from pontil.runtime.transfer.tcp.connector import TcpConnector  # noqa: E402
from pontil.runtime.wire.messages import ChunkReady, Handoff  # noqa: E402

LAYOUT = KVLayout(16, 30, 3, 64, "bfloat16")
FOUR_HEADS = KVLayout(16, 30, 4, 64, "bfloat16")
TIMEOUT = 60.0
SEED = b"s" * 32
PASS = Grant("bench.0", 0, "ab" * 32)


def open_storage(blocks: int, layout: KVLayout = LAYOUT) -> KVStorage:
    storage = KVStorage(layout, blocks + 1, torch.device("cpu"))
    storage.shared.random_(0, 256)  # touches every page
    return storage


def own(blocks: int) -> None:
    """Run the other process: report how its blocks can be read, and wait for the end of the input."""
    storage, guard = open_storage(blocks), TransferSecurity(SEED)
    guard.grants.open(PASS, 0)
    guard.grants.allow(PASS.transfer_id, range(1, blocks + 1))
    connectors: list[Connector] = [
        AutoConnector(storage, lambda: None),
        TcpConnector(storage, lambda: None, ConnectorOptions(guard=guard)),
    ]
    if missing_package(CONNECTORS["nixl"]) is None:
        connectors.append(NixlConnector(storage, lambda: None))
    print(json.dumps([one.register() for one in connectors]), flush=True)
    sys.stdin.read()
    for one in connectors:
        one.close()


def pairs_of(blocks: int, shuffled: bool) -> list[Pair]:
    theirs, ours = list(range(1, blocks + 1)), list(range(1, blocks + 1))
    if shuffled:
        chance = random.Random(1)
        chance.shuffle(theirs)
        chance.shuffle(ours)
    return list(zip(theirs, ours, strict=True))


def rates(
    ways: dict[str, Callable[[], None]], size: int, rounds: int, owner: psutil.Process | None = None
) -> dict[str, dict[str, float]]:
    found: dict[str, list[float]] = {name: [] for name in ways}
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, move in ways.items():
            begun, before = time.perf_counter(), processor_time(owner)
            move()
            found[name].append(size / (time.perf_counter() - begun) / 1e9)
            spent[name].append(processor_time(owner) - before)
    return {
        name: {
            "best": round(max(some[1:]), 2),
            "median": round(statistics.median(some[1:]), 2),
            "cpu": round(sum(spent[name][1:]) / (rounds * size) * 1e9, 2),
        }
        for name, some in found.items()
    }


def processor_time(owner: psutil.Process | None) -> float:
    """Return the processor time of this process, and of the other one."""
    return time.process_time() + (0.0 if owner is None else sum(owner.cpu_times()[:2]))


class Puller:
    """Pulls from the other process and waits for completion."""

    def __init__(
        self,
        storage: KVStorage,
        kind: Callable[[KVStorage, Callable[[], None]], Connector],
        descriptor: dict[str, object],
    ) -> None:
        self.wakeup = threading.Event()
        self.connector = kind(storage, self.wakeup.set)
        self.connector.attach("peer", descriptor)

    def pull(self, pairs: list[Pair]) -> None:
        self.wakeup.clear()
        self.connector.pull(Pull("peer", pairs, 0, PASS))
        while not (ended := self.connector.poll()):
            if not self.wakeup.wait(TIMEOUT):
                raise SystemExit("a pull did not end")
            self.wakeup.clear()
        (pull,) = ended
        if pull.end.error:
            raise SystemExit(pull.end.error)


def measure(
    descriptor: dict[str, object],
    sealed_descriptor: dict[str, object],
    *others: Any,
    blocks: int,
    rounds: int,
    owner: psutil.Process,
) -> dict[str, Any]:
    ours, source = open_storage(blocks), open_storage(blocks)
    read, written = source.shared.numpy(), ours.shared.numpy()
    shm, tcp = Puller(ours, ShmConnector, descriptor), Puller(ours, TcpConnector, descriptor)
    sealed = Puller(
        ours, partial(TcpConnector, options=ConnectorOptions(guard=TransferSecurity(SEED))), sealed_descriptor
    )
    extra = {name: Puller(ours, NixlConnector, one) for one in others for name in nixl_ways()}
    results: dict[str, Any] = {}
    for order, shuffled in (("neighbours", False), ("shuffled", True)):
        pairs = pairs_of(blocks, shuffled)

        def copy(pairs: list[Pair] = pairs) -> None:
            for theirs, mine, count in runs(pairs):
                written[mine : mine + count] = read[theirs : theirs + count]

        ways: dict[str, Callable[[], None]] = {
            "copy": copy,
            "shm": partial(shm.pull, pairs),
            "tcp": partial(tcp.pull, pairs),
            "sealed": partial(sealed.pull, pairs),
            **{name: partial(one.pull, pairs) for name, one in extra.items()},
        }
        results[order] = rates(ways, blocks * LAYOUT.block_bytes, rounds, owner)
        results[order]["shm / copy"] = round(results[order]["shm"]["best"] / results[order]["copy"]["best"], 2)
    for one in (shm, tcp, sealed, *extra.values()):
        one.connector.close()
    return results


def nixl_ways() -> Iterator[str]:
    """Yield the names of the ways to read over NIXL, with the environment set in which the next connector has it."""
    yield "nixl"
    os.environ["UCX_TLS"] = "tcp"
    yield "nixl over tcp"
    del os.environ["UCX_TLS"]


class SlowPull(ShmConnector):
    """A shared-memory connector limited to so many bytes a second."""

    rate = 50e6

    def copy(self, job: CopyJob[PeerPool]) -> PullResult:
        until = time.monotonic() + len(job.pull.pairs) * LAYOUT.block_bytes / self.rate
        done = super().copy(job)
        time.sleep(max(0.0, until - time.monotonic()))
        return done


class Nobody:
    """Callbacks for a KV sender and a KV receiver without an engine."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.announced: list[ChunkReady | Handoff] = []

    def announce_blocks(self, message: ChunkReady | Handoff) -> None:
        self.announced.append(message)

    def promote(self, take: ReceiveTransfer) -> None:
        self.over.set()

    def nothing(self, *told: object) -> None: ...

    free_blocks = keep_blocks = withdraw = send_fetched = nothing

    def go_on_without(self, take: ReceiveTransfer) -> None:
        raise SystemExit(take.error)

    send_abandon = stop_worker = go_on_without


def overlap(tokens: int, chunks: int, prefill_rate: float) -> dict[str, float]:
    """Return the seconds from the Handoff until all blocks have arrived, in chunks and in one piece."""
    blocks = tokens // LAYOUT.block_size
    callbacks, wakeup = Nobody(), threading.Event()
    theirs, ours = open_storage(blocks), open_storage(blocks)
    source, slow = ShmConnector(theirs, lambda: None), SlowPull(ours, wakeup.set)
    slow.attach("P", source.register())
    kv_sender, kv_receiver = KVSender(RankPools(theirs), "P", callbacks), KVReceiver(slow, RankPools(ours), callbacks)
    exposed: dict[str, float] = {}
    for name, count in (("alone", 1), ("exposed", chunks)):
        callbacks.over.clear()
        sent, take = kv_sender.begin(name, "D", 0.0), kv_receiver.begin(name, "P", blocks, time.monotonic())
        assert sent is not None
        numbers = list(range(1, blocks + 1))
        for chunk in range(1, count + 1):
            time.sleep(tokens / count / prefill_rate)
            upto = blocks * chunk // count
            done = PrefillResult(tokens, [0], tokens, 0, 0.0, [0])
            ready = numbers[:upto]
            if upto < blocks:
                kv_sender.announce(sent, ready, 0.0)
            else:
                kv_sender.hold(sent, numbers, done, 0.0)
            message = callbacks.announced.pop()
            kv_receiver.announced(take, message, message.block_ids, time.monotonic())
            kv_receiver.poll(time.monotonic())
        begun = time.monotonic()
        while not callbacks.over.is_set():
            wakeup.wait(TIMEOUT)
            wakeup.clear()
            kv_receiver.poll(time.monotonic())
        exposed[name] = round(time.monotonic() - begun, 3)
    source.close()
    slow.close()
    return {
        "tokens": tokens,
        "chunks": chunks,
        **exposed,
        "hidden": round(1 - exposed["exposed"] / exposed["alone"], 2),
    }


def between_ranks(blocks: int, rounds: int) -> dict[str, Any]:
    """Return the rates of pulls between workers of one and two ranks, for one taking rank."""
    pairs, results, pullers = pairs_of(blocks, False), dict[str, Any](), dict[str, Callable[[], None]]()
    connectors: list[Connector] = []
    for giving, taking in ((1, 1), (2, 1), (1, 2)):
        given = [open_storage(blocks, replace(FOUR_HEADS, rank=rank, ranks=giving)) for rank in range(giving)]
        sources = [ShmConnector(storage, lambda: None) for storage in given]
        ours = open_storage(blocks, replace(FOUR_HEADS, ranks=taking))
        descriptor: dict[str, object] = {"kind": "ranks", "pools": [source.register() for source in sources]}
        puller = Puller(ours, lambda storage, wake: JointConnector(ShmConnector(storage, wake), storage), descriptor)
        connectors += [puller.connector, *sources]
        pullers[f"{giving} to {taking}"] = partial(puller.pull, pairs)
        results[f"{giving} to {taking}"] = {"bytes": blocks * ours.layout.block_bytes}
    whole = blocks * FOUR_HEADS.block_bytes
    for name, found in rates(pullers, whole, rounds).items():
        results[name] |= {kind: round(rate * results[name]["bytes"] / whole, 2) for kind, rate in found.items()}
    for one in connectors:
        one.close()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cores", type=int, nargs=2, help="the owner's core and the reader's")
    parser.add_argument("--prefill-rate", type=float, default=1000.0, help="tokens a second, for the overlap")
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
        plain, sealed, *others = json.loads(owner.stdout.readline())
        results = measure(
            plain, sealed, *others, blocks=args.blocks, rounds=args.rounds, owner=psutil.Process(owner.pid)
        )
    size = args.blocks * LAYOUT.block_bytes
    results["ranks"] = between_ranks(args.blocks, args.rounds)
    results["overlap"] = overlap(2000, 5, args.prefill_rate)
    print(json.dumps({"blocks": args.blocks, "bytes": size, "unit": "GB/s", **results}, indent=1))


if __name__ == "__main__":
    main()
