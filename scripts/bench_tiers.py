# SPDX-License-Identifier: Apache-2.0
"""Measure tiers below the KV cache: what it costs to keep an evicted block, to read it back, and to compute it.

    taskset -c 1 python scripts/bench_tiers.py [--model NAME|PATH] [--prompt 512] [--rounds 5] [--folder DIR]

Prints one JSON object with figures for each tier, in milliseconds, least of the rounds. Of a block: `evict`, the copy
that the engine's thread makes, in CPU time; `compute`, `read` with the digest, and `turn`, what a read takes besides,
in elapsed time, as a worker measures them at start. Of a prompt up to its first token, CPU and elapsed time:
`computed`; `found`, where the pool has it; and `from the tier`. Elapsed times mean something on an idle machine only.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import app  # noqa: E402, F401
from pontil.runtime.config.worker_config import WorkerConfig  # noqa: E402
from pontil.runtime.engine.sequences.prompt_keys import SaltedPrefix  # noqa: E402
from pontil.runtime.engine.sequences.sequence import Sequence  # noqa: E402
from pontil.runtime.loaders.builtin import resolve_model  # noqa: E402
from pontil.runtime.loaders.config import read_config  # noqa: E402
from pontil.runtime.probe.footprint import MemoryDemand, footprint  # noqa: E402
from pontil.runtime.sampling_params import SamplingParams  # noqa: E402
from pontil.runtime.threads import ThreadFailures  # noqa: E402
from pontil.runtime.worker.start.assembly import WorkerResources, assemble  # noqa: E402
from pontil.runtime.worker.start.kv_tiers import open_tiers  # noqa: E402

CACHE = Path.home() / ".cache" / "pontil"
TIER_BYTES = 512 << 20
STALL_PAUSE = 0.005
PARAMS = SamplingParams(max_tokens=1, seed=0, temperature=0.0)


class Quiet:
    """A reporter that says nothing."""

    def progress(self, text: str, *, waits: bool = False) -> None: ...
    def ready(self, **facts: object) -> None: ...
    def failed(self, reason: str) -> None: ...
    def settled(self, order: int, drained: bool) -> None: ...
    def tested(self, number: int, routes: object) -> None: ...
    def asked(self, number: int, request: object) -> None: ...
    def used(self, models: object) -> None: ...
    def stepped(self, number: int, working: bool) -> None: ...


def open_machine(arguments: argparse.Namespace, **tier: Any) -> tuple[WorkerConfig, WorkerResources]:
    """Load the model with a pool of two such prompts."""
    path = resolve_model(arguments.model, CACHE)
    block = block_bytes_of(arguments, path)
    memory = (2 * arguments.prompt // 16 + 4) * block
    config = config_of(arguments, path, kv_cache_memory=memory, **tier)
    return config, assemble(config, Quiet())


def config_of(arguments: argparse.Namespace, path: Path, **more: Any) -> WorkerConfig:
    return WorkerConfig(
        name="bench", role="mixed", device="cpu", cores=(0,), model=str(path), served_model_name="bench",
        control="ipc:///none", peer_endpoint="ipc:///none", max_model_len=arguments.prompt + 16, cache_dir=str(CACHE),
        **more,
    )  # fmt: skip


def block_bytes_of(arguments: argparse.Namespace, path: Path) -> int:
    """Return the bytes of a block of this model."""
    demand = MemoryDemand("auto", "auto", "none", 1, None, 16, [["cpu"]], {})
    return footprint(path, read_config(path), demand).kv // 2


def ask(machine: WorkerResources, woken: threading.Event, salt: str, length: int) -> dict[str, float]:
    """Compute a prompt up to its first token; return CPU time and elapsed time, and the cached tokens."""
    tokens = [5 + place % 200 for place in range(length)]
    sequence = Sequence("asked", tokens, PARAMS, frozenset(), prefix=SaltedPrefix(salt))
    begun, used = time.perf_counter(), time.process_time()
    machine.engine.add(sequence)
    while machine.engine.has_work:
        machine.engine.step()
        if machine.scheduler.stalled:
            woken.wait(STALL_PAUSE)
            woken.clear()
    return {
        "cpu": 1e3 * (time.process_time() - used), "elapsed": 1e3 * (time.perf_counter() - begun),
        "cached": sequence.history.cached,
    }  # fmt: skip


def least(found: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(min(one[name] for one in found), 3) for name in found[0]}


def measure(arguments: argparse.Namespace, kind: str, folder: str) -> dict[str, Any]:
    """Measure one tier."""
    tier = {"kv_tier_memory": TIER_BYTES} if kind == "memory" else {
        "kv_tier_disk": folder, "kv_tier_disk_size": TIER_BYTES,
    }  # fmt: skip
    config, machine = open_machine(arguments, **tier)
    with ExitStack() as ending:
        ending.callback(machine.driver.close)
        woken = threading.Event()
        store = open_tiers(config, machine, woken.set, ThreadFailures())
        assert store is not None and store.chain.tiers, "computing is as fast as reading"
        ending.callback(store.close)
        computed, found, read, evicted = [], [], [], []
        for turn in range(arguments.rounds):
            computed.append(ask(machine, woken, f"{turn}", arguments.prompt))
            found.append(ask(machine, woken, f"{turn}", arguments.prompt))
            for other in range(3):
                ask(machine, woken, f"{turn} {other}", arguments.prompt)
            while store.writes or store.current is not None:
                time.sleep(0.001)  # for the thread that stores
            read.append(ask(machine, woken, f"{turn}", arguments.prompt))
            used = time.thread_time()
            number, _ = store.staging.take(1) or (0, None)
            evicted.append({"cpu": 1e3 * (time.thread_time() - used)})
            store.staging.give_back(number)
        size = machine.layout.block_size
        return {
            "kernels": machine.kernels, "block_bytes": machine.layout.block_bytes, "evict": least(evicted)["cpu"],
            "compute": round(1e3 * size * store.costs.per_token, 3), "read": round(1e3 * store.costs.at_start[kind], 4),
            "turn": round(1e3 * store.costs.base, 3), "least_tokens": store.costs.least(kind, size),
            "computed": least(computed), "found": least(found), "from the tier": least(read),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where the disk tier is (default: a temporary folder)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        print(json.dumps({kind: measure(arguments, kind, folder) for kind in ("memory", "disk")}, indent=1))


if __name__ == "__main__":
    main()
