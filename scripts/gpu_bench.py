# SPDX-License-Identifier: Apache-2.0
"""Measure a GPU's engine beside what the GPU itself can do.

    python scripts/gpu_bench.py [--device cuda:0] [--second cuda:1] [--shape 8b|tiny] [--attention-backend NAME]
        [--record]

Prints a JSON object: `copy`, GB/s that a copy within the device reads and writes; `matrix`, 10^12 floating-point
operations per second of a large product in bfloat16; then for a model of random weights: `decode_1`, `decode_64` and
`decode_256`, median milliseconds of a step of that many sequences at a context of 1,024, with the share of what `copy`
and `matrix` allow for the weights and KV that the step reads; `prefill`, milliseconds of a prompt of 2,048 tokens, with
the share of `matrix`; `gap`, the part of the time of 256 sequences in which no kernel ran (only on CUDA); `pull`, GB/s
at which another process's KV blocks arrive, with digests, and `pull_apart`, the same from the second device, if that is
another; `vllm`, where it is installed, its milliseconds of the same
(gpu_peer.py). --record appends a row to docs/measurements.md. With --device cpu
--shape tiny it only shows that the script runs.
"""

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import app  # noqa: E402, F401
from pontil.runtime.cache.layout import KVLayout  # noqa: E402
from pontil.runtime.cache.pool import BlockPool  # noqa: E402
from pontil.runtime.cache.storage import KVStorage  # noqa: E402
from pontil.runtime.config.worker_config import ATTENTION_BACKENDS, WorkerConfig  # noqa: E402
from pontil.runtime.engine.device.runner_choice import make_runner, record_steps  # noqa: E402
from pontil.runtime.engine.engine import Engine  # noqa: E402
from pontil.runtime.engine.prompt_turns import StepBudget  # noqa: E402
from pontil.runtime.engine.runner.model_runner import NONE, ModelRunner  # noqa: E402
from pontil.runtime.engine.scheduler import Scheduler  # noqa: E402
from pontil.runtime.engine.sequences.sequence import FinishReason, Sequence  # noqa: E402
from pontil.runtime.loaders.facts.layout import tensor_shapes  # noqa: E402
from pontil.runtime.models.config import ModelConfig  # noqa: E402
from pontil.runtime.models.families.registry import build_model  # noqa: E402
from pontil.runtime.models.weights import Weights  # noqa: E402
from pontil.runtime.sampling_params import SamplingParams  # noqa: E402
from pontil.runtime.transfer.auto_connector import AutoConnector  # noqa: E402
from pontil.runtime.transfer.connector import Pull  # noqa: E402

MEASUREMENTS = Path(__file__).resolve().parent.parent / "docs" / "measurements.md"
TABLE = "\n## GPUs\n"
ROUNDS = 20
# Seconds of vLLM's start and figures, within a step of the proof.
PEER_WITHIN = 300.0
# Steps that are timed together.
TOGETHER = 5
# Hidden size, size inside, layers, heads, KV heads, numbers of a head, vocabulary.
SHAPES = {"8b": (4096, 14336, 32, 32, 8, 128, 128256), "tiny": (64, 128, 2, 4, 2, 16, 512)}
PULL_LAYOUT = KVLayout(16, 32, 8, 128, "bfloat16")


def shape_of(name: str) -> ModelConfig:
    hidden, inner, layers, heads, kv_heads, size, vocabulary = SHAPES[name]
    return ModelConfig(
        "llama", vocabulary, hidden, inner, layers, heads, kv_heads, size, 8192, 1e-5, 500000.0, False, "bfloat16", (2,)
    )


def random_tensors(config: ModelConfig, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    for name, shape in tensor_shapes(config).items():
        yield name, torch.randn(shape, dtype=torch.bfloat16, device=device) * 0.02


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(call: Any, device: torch.device, repeats: int = ROUNDS) -> list[float]:
    found = []
    for _ in range(repeats):
        finish(device)
        start = time.perf_counter()
        call()
        finish(device)
        found.append(time.perf_counter() - start)
    return found


def copy_bandwidth(device: torch.device, size: int) -> float:
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / min(timed(lambda: target.copy_(source), device))


def matrix_peak(device: torch.device, size: int) -> float:
    left, right = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    seconds: float = min(timed(lambda: left @ right, device))
    return 2.0 * float(size) ** 3 / seconds


def make_engine(
    config: ModelConfig, device: torch.device, sequences: int, context: int, prompt: int, attention: str
) -> Engine:
    model = build_model(config, Weights(random_tensors(config, device), device, torch.bfloat16))
    layout = KVLayout(16, config.num_layers, config.num_kv_heads, config.head_dim, "bfloat16")
    blocks = 1 + sequences * (layout.blocks_for(context + 2 * ROUNDS) + 1) + layout.blocks_for(prompt + 16)
    step = max(prompt, sequences)
    scheduler = Scheduler(BlockPool(blocks), layout, sequences, StepBudget(step), prefix_caching=False)
    worker = WorkerConfig(
        "bench", "mixed", str(device), (0,), "bench", "bench", "", "", max_num_seqs=sequences,
        max_num_batched_tokens=step, attention_backend=attention,
    )  # fmt: skip
    runner = make_runner(worker, model, KVStorage(layout, blocks, device), context + 2 * ROUNDS, NONE, None)
    record_steps(runner)
    return Engine(runner, scheduler)


def device_of(engine: Engine) -> torch.device:
    assert isinstance(engine.runner, ModelRunner)
    return engine.runner.model.device


def decode_times(engine: Engine, sequences: int, context: int) -> list[float]:
    """Return the seconds of steps in which so many sequences each make a token, a part of them at a time: the host
    prepares a step while the device computes the one before, as in a worker."""
    params = SamplingParams(max_tokens=2 * ROUNDS, seed=1, temperature=0.0, ignore_eos=True)
    for number in range(sequences):
        engine.add(Sequence(str(number), [5] * context, params, frozenset()))
    while any(one.computed < context for one in engine.unfinished):
        engine.step()
    found = [seconds / TOGETHER for seconds in timed(lambda: several(engine), device_of(engine), ROUNDS // TOGETHER)]
    for name in list(engine.sequences):
        engine.end(name, FinishReason.ABORTED)
    return found


def several(engine: Engine) -> None:
    for _ in range(TOGETHER):
        engine.step()


def prefill_times(engine: Engine, prompt: int) -> list[float]:
    params = SamplingParams(max_tokens=1, seed=1, temperature=0.0)

    def run() -> None:
        engine.add(Sequence("prompt", [5] * prompt, params, frozenset()))
        while engine.has_work:
            engine.step()

    return timed(run, device_of(engine), 5)


def weights_of(config: ModelConfig) -> int:
    """Return the numbers that every step reads: all weights but the embeddings."""
    shapes = tensor_shapes(config)
    return sum(torch.Size(shape).numel() for name, shape in shapes.items() if "embed" not in name)


def measure(config: ModelConfig, device: torch.device, large: bool, attention: str) -> dict[str, Any]:
    context, prompt, counts = (1024, 2048, (1, 64, 256)) if large else (64, 128, (1, 4, 8))
    many = counts[-1]
    copy = copy_bandwidth(device, (1 << 30) if large else (1 << 24))
    peak = matrix_peak(device, 8192 if large else 256)
    engine = make_engine(config, device, many, context, prompt, attention)
    weights = weights_of(config)
    kv_bytes = context * config.num_layers * 2 * config.num_kv_heads * config.head_dim * 2
    found: dict[str, Any] = {"copy": round(copy / 1e9, 1), "matrix": round(peak / 1e12, 2)}
    for sequences in counts:
        seconds = statistics.median(decode_times(engine, sequences, context))
        least = max((2 * weights + sequences * kv_bytes) / copy, 2.0 * weights * sequences / peak)
        found[f"decode_{sequences}"] = {"ms": round(seconds * 1e3, 3), "share": round(least / seconds, 3)}
    seconds = statistics.median(prefill_times(engine, prompt))
    share = 2.0 * weights * prompt / peak / seconds
    found["prefill"] = {"ms": round(seconds * 1e3, 2), "share": round(share, 3)}
    if device.type == "cuda":
        found["gap"] = round(idle_share(engine, many, context), 3)
    return found


def beside(device: torch.device) -> Any:
    """Return the figures of vLLM in a process of its own, or its last line where it fails, or a sentence where it
    does not end."""
    command = [sys.executable, str(Path(__file__).with_name("gpu_peer.py")), "--device", str(device)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PEER_WITHIN)
    except subprocess.TimeoutExpired:
        return f"no answer within {PEER_WITHIN:.0f} s"
    said = (done.stderr if done.returncode else done.stdout).strip().splitlines() or ["nothing"]
    return said[-1] if done.returncode else json.loads(said[-1])


def idle_share(engine: Engine, sequences: int, context: int) -> float:
    """Return the part of the time of decode steps in which no kernel ran."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        wall = TOGETHER * sum(decode_times(engine, sequences, context))
    busy: float = sum(event.self_device_time_total for event in profile.key_averages()) / 1e6
    return max(0.0, 1.0 - busy / wall)


def pool_of(device: torch.device, blocks: int) -> tuple[KVStorage, AutoConnector, threading.Event]:
    storage, wakeup = KVStorage(PULL_LAYOUT, blocks, device), threading.Event()
    return storage, AutoConnector(storage, wakeup.set), wakeup


def lend(device: torch.device, blocks: int) -> None:
    """Print the descriptor of this process's pool, and keep it until standard input ends."""
    storage, connector, _ = pool_of(device, blocks)
    storage.own.fill_(7)
    finish(device)
    print(json.dumps(connector.register()), flush=True)
    sys.stdin.read()
    connector.close()


def pull_rate(device: torch.device, lenders: str, blocks: int) -> float:
    """Return the bytes a second of pulls from another process on the lender's device."""
    command = [sys.executable, __file__, "--lend", str(blocks), "--device", lenders]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as lender:
        assert lender.stdout is not None and lender.stdin is not None
        descriptor = json.loads(lender.stdout.readline())
        _, connector, wakeup = pool_of(device, blocks)
        connector.attach("lender", descriptor)
        rates = []
        for _ in range(5):
            wakeup.clear()
            start = time.perf_counter()
            connector.pull(Pull("lender", [(block, block) for block in range(1, blocks)], 0))
            assert wakeup.wait(60.0), "a pull did not end"
            (done,) = [pull.end for pull in connector.poll()]
            assert done.error is None, done.error
            rates.append(done.bytes / (time.perf_counter() - start))
        connector.close()
        lender.stdin.close()
    return max(rates)


def record(name: str, shape: str, found: dict[str, Any]) -> None:
    """Append a row to the table of GPUs, which the first row makes."""
    text = MEASUREMENTS.read_text()
    if TABLE not in text:
        text += f"{TABLE}\n| GPU | shape | figures |\n|---|---|---|\n"
    MEASUREMENTS.write_text(f"{text.rstrip()}\n| {name} | {shape} | `{json.dumps(found)}` |\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--second", default="")
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--attention-backend", choices=ATTENTION_BACKENDS, default="auto")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--lend", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.exit("torch finds no GPU here: install torch for your GPU, or use --device cpu --shape tiny")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    large = arguments.shape != "tiny"
    if arguments.lend:
        lend(device, arguments.lend)
        return
    found = measure(shape_of(arguments.shape), device, large, arguments.attention_backend)
    lenders = {"pull": arguments.device, "pull_apart": arguments.second or arguments.device}
    for name, lender in lenders.items():
        if name == "pull" or lender != arguments.device:
            found[name] = round(pull_rate(device, lender, 1024 if large else 16) / 1e9, 2)
    if large and arguments.attention_backend == "auto" and find_spec("vllm") is not None:
        # Our memory is the device's again.
        torch.cuda.empty_cache()
        found["vllm"] = beside(device)
    print(json.dumps(found))
    if arguments.record:
        shape = f"{arguments.shape}, attention {arguments.attention_backend}"
        record(torch.cuda.get_device_name(device) if device.type == "cuda" else "none", shape, found)


if __name__ == "__main__":
    main()
