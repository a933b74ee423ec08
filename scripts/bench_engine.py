# SPDX-License-Identifier: Apache-2.0
"""Measure the engine alone: no processes, no HTTP, one worker's step after the other.

    taskset -c 1 python scripts/bench_engine.py [--model NAME|PATH] [--kernels auto torch] [--rows 1 8 32] [--threads 1]
        [--record]
    taskset -c 1 python scripts/bench_engine.py --contexts 4096 32768 [--model NAME|PATH] [--record]
    taskset -c 1 python scripts/bench_engine.py --products [--rows 1 4 8 32] [--record]
    taskset -c 1 python scripts/bench_engine.py --adapters 8 [--rank 16] [--rows 32] [--rounds 50]
    taskset -c 1 python scripts/bench_engine.py --host [--rounds 100] [--profile]

Prints one JSON object for each kind of kernels, in milliseconds, least and median of the rounds (with --cpu of this
process's CPU time, which excludes the time that other processes take of the core; for one thread only): `step` by the
number of rows: one Engine.step in which each of that many sequences computes one token at a context of --context
tokens, greedy, each with KV blocks of its own; sampling included. `prefill`: one Engine.step that computes a prompt of
--prompt tokens and its first token. `python`: a step of 64 rows less the time inside the kernels' calls, so all that
Python and torch do (only with pontil's kernels). With --profile the most expensive functions of that follow. With
--lent the kernels borrow that core, as a worker borrows an idle neighbour's; run the script on another one, by taskset.

With pontil's kernels also the `peak` of the same threads, in 10^9 multiply-adds per second, and what `share` of it the
products with weights take in each of these steps (all of a step's time counts; attention's own products do not); and
the GB/s of memory that they can `read`, with the share of it that a step of one row reads of bfloat16 weights. --record
appends the figures, with processor and command, to the table "By processor" in docs/measurements.md.

With --contexts a step of one row at each of these contexts instead, and its `attention`: the share of it that it takes
longer than a step at a context of one block, which is all that follows the context; the products, the head, sampling
and what Python does are the rest. `reading` is the share of what can be read of memory at which attention reads keys
and values in that time. No prompt is computed: the KV cache has random numbers, as if another worker had sent them.

With --products single products with weights of Q4_K, Q6_K and Q8_0, of so many rows and of a prompt of --prompt: the
share of what can be read of memory, and of the peak, of which the larger one is the limit. --record appends either to
the tables "Long contexts" and "Products" in docs/measurements-history.md.

With --adapters instead: steps whose rows have so many random adapters of all layers, one after the other, by turns with
the same steps without (scripts/adapter_steps.py): the median ms of both, and the median and quartiles of their ratios.

With --host instead: what the host does in a step of 1, 64 and 256 rows (scripts/host_steps.py): the real engine and
scheduler, over a device (then over kernels) that takes no time. It prints ms by the clock and of CPU time, least and
median, and Python calls for each row.
"""

import argparse
import cProfile
import json
import os
import pstats
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import roofline  # noqa: E402
import torch  # noqa: E402
from adapter_steps import measure_adapters  # noqa: E402
from bench_products import product_shares  # noqa: E402
from host_steps import measure_host  # noqa: E402

import app  # noqa: E402, F401
from pontil.gpu_ops.kernels.kernel_set import open_kernels  # noqa: E402
from pontil.gpu_ops.kernels.lent_cores import LentCores  # noqa: E402
from pontil.gpu_ops.kernels.library import KernelLibrary  # noqa: E402
from pontil.runtime.cache.layout import choose_kv_dtype, layout_for  # noqa: E402
from pontil.runtime.cache.pool import BlockPool  # noqa: E402
from pontil.runtime.cache.storage import TORCH_DTYPES, KVStorage  # noqa: E402
from pontil.runtime.engine.engine import Engine  # noqa: E402
from pontil.runtime.engine.prompt_turns import StepBudget  # noqa: E402
from pontil.runtime.engine.runner.model_runner import ModelRunner  # noqa: E402
from pontil.runtime.engine.scheduler import Scheduler  # noqa: E402
from pontil.runtime.engine.sequences.sequence import FinishReason, Sequence  # noqa: E402
from pontil.runtime.foundation.garbage import leave_to_requests  # noqa: E402
from pontil.runtime.loaders.builtin import resolve_model  # noqa: E402
from pontil.runtime.loaders.checkpoint import open_checkpoint  # noqa: E402
from pontil.runtime.models.config import ModelConfig  # noqa: E402
from pontil.runtime.models.families.registry import build_model  # noqa: E402
from pontil.runtime.models.weights import Packing, Weights  # noqa: E402
from pontil.runtime.probe.processor_name import processor_name  # noqa: E402
from pontil.runtime.sampling_params import SamplingParams  # noqa: E402

CACHE = Path.home() / ".cache" / "pontil"
MANY, HOST_ROWS = 64, (1, 64, 256)
DOCS = Path(__file__).resolve().parent.parent / "docs"
MEASUREMENTS, HISTORY = DOCS / "measurements.md", DOCS / "measurements-history.md"
BY_PROCESSOR, LONG_CONTEXTS, PRODUCTS = "By processor", "Long contexts", "Products"
# The context of a step whose attention is next to nothing.
ONE_BLOCK = 16


class Stopwatch:
    """Adds up the time inside the kernels' calls."""

    def __init__(self, library: KernelLibrary | None, now: Callable[[], float]) -> None:
        self.seconds, self.now = 0.0, now
        names = ("layers", "attention_half", "latent_half", "mlp_half", "expert_half", "multiply")
        for name in names if library else ():
            setattr(library, name, self.timed(getattr(library, name)))

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            start = self.now()
            try:
                return function(*arguments)
            finally:
                self.seconds += self.now() - start

        return call


def open_engine(arguments: argparse.Namespace, library: KernelLibrary | None) -> tuple[Engine, ModelConfig]:
    checkpoint = open_checkpoint(resolve_model(arguments.model, CACHE))
    config, dtype = checkpoint.config, TORCH_DTYPES[arguments.dtype]
    levels = library is not None and arguments.quantization == "gguf"
    tensors = checkpoint.levels(dtype) if levels else checkpoint.tensors(dtype)
    int8 = library is not None and arguments.quantization == "int8"
    model = build_model(config, Weights(tensors, torch.device("cpu"), dtype, Packing.of(library, int8)))
    cells = choose_kv_dtype(arguments.kv_cache_dtype, arguments.dtype)
    layout = layout_for(config, 16, cells, library is not None)
    longest = max(arguments.context + arguments.rounds, arguments.prompt) + 16
    seats = 1 if arguments.contexts else max(*arguments.rows, MANY)
    blocks = seats * layout.blocks_for(longest) + 1
    # Run all prompts in one step, so that all sequences have the same context afterwards.
    budget = max(seats * arguments.context, arguments.prompt)
    scheduler = Scheduler(BlockPool(blocks), layout, seats, StepBudget(budget), prefix_caching=False)
    return Engine(ModelRunner(model, KVStorage(layout, blocks, torch.device("cpu"))), scheduler), config


def sequence_of(engine: Engine, number: int, tokens: int, answer: int) -> Sequence:
    assert isinstance(engine.runner, ModelRunner)
    chance, vocabulary = random.Random(number), engine.runner.model.config.vocab_size
    prompt = [chance.randrange(min(1000, vocabulary // 2), min(40000, vocabulary)) for _ in range(tokens)]
    params = SamplingParams(max_tokens=answer, seed=1, temperature=0.0, ignore_eos=True)
    return Sequence(f"{number}", prompt, params, frozenset())


def fill(storage: KVStorage) -> None:
    """Write some random numbers to all blocks."""
    block = torch.randn(storage.layout.page_shape).to(storage.tensor.dtype)
    for place in storage.tensor:
        place.copy_(block)


def timed_steps(
    engine: Engine, rows: int, arguments: argparse.Namespace, watch: Stopwatch
) -> list[tuple[float, float]]:
    """Return the seconds of each step of so many rows, and the seconds of these outside the kernels."""
    for number in range(rows):
        sequence = sequence_of(engine, number, arguments.context, arguments.rounds + 2)
        if arguments.contexts:
            assert engine.park(sequence) and engine.scheduler.memory.grow(sequence, arguments.context)
            engine.promote(sequence, arguments.context, None)
        else:
            engine.add(sequence)
    assert len(engine.step()) == rows
    found = []
    for _ in range(arguments.rounds):
        watch.seconds, start = 0.0, watch.now()
        assert len(engine.step()) == rows
        whole = watch.now() - start
        found.append((whole, whole - watch.seconds))
    for name in list(engine.sequences):
        engine.end(name, FinishReason.ABORTED)
    return found


def timed_prompts(engine: Engine, arguments: argparse.Namespace, now: Callable[[], float]) -> list[float]:
    found = []
    for number in range(arguments.rounds):
        engine.add(sequence_of(engine, number, arguments.prompt, 1))
        start = now()
        engine.step()
        found.append(now() - start)
        assert not engine.has_work
    return found


def milliseconds(seconds: list[float]) -> list[float]:
    return [round(1000 * one, 2) for one in (min(seconds), statistics.median(seconds))]


def borrow(library: KernelLibrary, core: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cores"
        LentCores(path, [core]).lend()
        library.borrow(LentCores(path, sorted(os.sched_getaffinity(0))))


def shares(
    library: KernelLibrary, arguments: argparse.Namespace, config: ModelConfig, found: dict[str, list[float]]
) -> dict[str, Any]:
    """Compare the least milliseconds of each step with what the processor and the memory can do."""
    peak, read = roofline.peak(library, TORCH_DTYPES[arguments.dtype]), roofline.bandwidth(library)
    layers, head = roofline.products(config)
    work = {name: int(name.split()[1]) * (layers + head) for name in found if name.startswith("step ")}
    work["prefill"] = arguments.prompt * layers + head
    share = {name: round(work[name] / peak / (found[name][0] / 1000), 2) for name in work}
    result: dict[str, Any] = {"peak": round(peak / 1e9, 1), "share": share, "read": round(read / 1e9, 1)}
    if "step 1" in found and arguments.quantization == "none":
        size = TORCH_DTYPES[arguments.dtype].itemsize
        result["share of reading"] = round(size * (layers + head) / read / (found["step 1"][0] / 1000), 2)
    return result


def record(result: dict[str, Any]) -> None:
    """Append a row to the table by processor."""
    share, columns = result["share"], ("prefill", "step 1", "step 8", "step 32")
    cells = [f"{result[name][0]:g} ({100 * share[name]:.0f} %)" if name in result else "" for name in columns]
    about = [processor_name(), result["kernels"].split("-")[0], result["quantization"], f"{result['peak']:g}"]
    append(MEASUREMENTS, BY_PROCESSOR, [*about, f"{result['read']:g}", *cells])


def append(page: Path, section: str, cells: list[str]) -> None:
    """Append a row, and the command that made it, to the table of a section of a page."""
    command = "taskset -c N scripts/bench_engine.py " + " ".join(sys.argv[1:])
    before, heading, after = page.read_text().partition(f"\n## {section}\n")
    if not heading:
        raise SystemExit(f"{page} has no section '## {section}': add it, with the table's heading")
    table, gap, rest = after.partition("\n\n## ")
    page.write_text(f"{before}{heading}{table.rstrip()}\n| {' | '.join([*cells, f'`{command}`'])} |\n{gap[1:]}{rest}")


def measure_contexts(arguments: argparse.Namespace, kernels: str) -> dict[str, Any]:
    """Measure a step of one row at each context, and what share of it attention is."""
    library = open_kernels(kernels, arguments.threads, CACHE, lambda text: print(text, file=sys.stderr))
    now = time.process_time if arguments.cpu else time.perf_counter
    watch = Stopwatch(library, now)
    result: dict[str, Any] = {"kernels": library.name if library else "torch", "quantization": arguments.quantization}
    arguments.rows, arguments.prompt, contexts = [1], 1, [ONE_BLOCK, *arguments.contexts]
    arguments.context = max(contexts)
    engine, config = open_engine(arguments, library)
    if max(contexts) + arguments.rounds + 2 > config.max_model_len:
        raise SystemExit(f"--contexts: {arguments.model} has {config.max_model_len} positions at most")
    assert isinstance(engine.runner, ModelRunner)
    storage = engine.runner.storage
    if storage.layout.dtype not in TORCH_DTYPES:
        raise SystemExit("--contexts: leave out --kv-cache-dtype, whose cells have scales")
    fill(storage)
    for context in contexts:
        arguments.context = context
        result[f"context {context}"] = milliseconds([whole for whole, _ in timed_steps(engine, 1, arguments, watch)])
    rest = result[f"context {ONE_BLOCK}"][0]
    result["attention"] = {
        name: round(max(0.0, 1 - rest / value[0]), 2) for name, value in result.items() if name.startswith("context ")
    }
    if library is not None:
        read, token_bytes = roofline.bandwidth(library, now), storage.layout.block_bytes / storage.layout.block_size
        result["reading"] = {
            f"context {context}": round(context * token_bytes / read / ((least - rest) / 1000), 2)
            for context in arguments.contexts
            if (least := result[f"context {context}"][0]) > rest
        }
    return result


def record_contexts(result: dict[str, Any], model: str) -> None:
    for name, share in result["attention"].items():
        about = [processor_name(), result["kernels"].split("-")[0], model, result["quantization"]]
        append(HISTORY, LONG_CONTEXTS, [*about, name.split()[1], f"{result[name][0]:g}", f"{100 * share:.0f} %"])


def measure_products(arguments: argparse.Namespace, kernels: str) -> None:
    library = open_kernels(kernels, arguments.threads, CACHE, lambda text: print(text, file=sys.stderr))
    if library is None:
        return
    read, peak = roofline.bandwidth(library), roofline.peak(library, torch.bfloat16)
    for one in product_shares(library, [*arguments.rows, arguments.prompt], read, peak, arguments.rounds):
        print(json.dumps({"kernels": library.name, **one}), flush=True)
        if arguments.record:
            about = [processor_name(), library.name.split("-")[0], f"{read / 1e9:.1f}", f"{peak / 1e9:.1f}"]
            figures = [str(one[name]) for name in ("type", "rows", "ms")]
            shares = [f"{100 * float(str(one[name])):.0f} %" for name in ("reading", "peak")]
            append(HISTORY, PRODUCTS, [*about, *figures, *shares])


def measure_adapted(arguments: argparse.Namespace, kernels: str) -> dict[str, Any]:
    """Measure steps with adapters beside the same without."""
    torch.set_num_threads(arguments.threads if kernels == "torch" else 1)
    library = open_kernels(kernels, arguments.threads, CACHE, lambda text: print(text, file=sys.stderr))
    now, rounds = time.process_time if arguments.cpu else time.perf_counter, arguments.rounds
    arguments.rounds = 2 * rounds + 2
    engine, _ = open_engine(arguments, library)

    def begun(rows: int, answer: int) -> list[Sequence]:
        for name in list(engine.sequences):
            engine.end(name, FinishReason.ABORTED)
        made = [sequence_of(engine, number, arguments.context, answer) for number in range(rows)]
        for one in made:
            engine.add(one)
        assert len(engine.step()) == rows
        return made

    about = {"kernels": library.name if library else "torch", "quantization": arguments.quantization}
    return about | measure_adapters(engine, (arguments.adapters, arguments.rank), arguments.rows, rounds, now, begun)


def measure(arguments: argparse.Namespace, kernels: str) -> dict[str, Any]:
    torch.set_num_threads(arguments.threads if kernels == "torch" else 1)
    library = open_kernels(kernels, arguments.threads, CACHE, lambda text: print(text, file=sys.stderr))
    if library is not None and arguments.lent is not None:
        borrow(library, arguments.lent)
    start = time.perf_counter()
    engine, config = open_engine(arguments, library)
    result: dict[str, Any] = {"kernels": library.name if library else "torch"}
    result["quantization"] = arguments.quantization if library else "none"
    result["load_s"] = round(time.perf_counter() - start, 2)
    now = time.process_time if arguments.cpu else time.perf_counter
    watch = Stopwatch(library, now)
    timed_prompts(engine, arguments, now)
    result["prefill"] = milliseconds(timed_prompts(engine, arguments, now))
    for rows in arguments.rows:
        result[f"step {rows}"] = milliseconds([whole for whole, _ in timed_steps(engine, rows, arguments, watch)])
    if library is not None:
        profile = cProfile.Profile()
        result["python"] = milliseconds([rest for _, rest in timed_steps(engine, MANY, arguments, watch)])
        steps = {name: value for name, value in result.items() if name.startswith(("step ", "prefill"))}
        result |= shares(library, arguments, config, steps)
        if arguments.profile:
            profile.runcall(timed_steps, engine, MANY, arguments, watch)
            pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(25)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kernels", nargs="+", default=["auto", "torch"])
    parser.add_argument("--quantization", choices=["none", "int8", "gguf"], default="none")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--context", type=int, default=300)
    parser.add_argument("--contexts", nargs="+", type=int, metavar="TOKENS")
    parser.add_argument("--products", action="store_true")
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lent", type=int, metavar="CORE")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--adapters", type=int, metavar="N")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--host", action="store_true")
    arguments = parser.parse_args()
    if arguments.host:
        torch.set_num_threads(1)
        leave_to_requests()  # as a worker does
        for kind, rows in product(("device", "cpu"), HOST_ROWS):
            print(json.dumps(measure_host(kind, rows, 100, arguments.rounds, arguments.profile)), flush=True)
        return
    for kernels in arguments.kernels:
        if arguments.products:
            measure_products(arguments, kernels)
            continue
        if arguments.contexts:
            result = measure_contexts(arguments, kernels)
            print(json.dumps(result), flush=True)
            if arguments.record:
                record_contexts(result, arguments.model)
            continue
        if arguments.adapters:
            print(json.dumps(measure_adapted(arguments, kernels)), flush=True)
            continue
        result = measure(arguments, kernels)
        print(json.dumps(result), flush=True)
        if arguments.record and "peak" in result:
            record(result)


if __name__ == "__main__":
    main()
