# SPDX-License-Identifier: Apache-2.0
"""Measure the loss of accuracy by arithmetic and quantization.

    python scripts/bench_accuracy.py [--model NAME|PATH] [--tokens 2048] [--ways float32 torch kernels int8 gguf]

The text is the repository's decision records 001 to 009, cut into windows of 512 tokens that are read as prompts. The
ways kv-int8 and kv-fp8 are `kernels` with keys and values in 8 bits. One JSON object for each way of computing:
`perplexity` of the text; `least cosine` and `mean cosine` of its logits with those of the first way, position by
position; `same choice`: at how many positions the most likely token is the same as in the first way; `same answer`: of
the answers of 64 greedy tokens after each window, the average length of the prefix that they share with the second
way's answer.
"""

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import app  # noqa: E402, F401
from pontil.gpu_ops.kernels.kernel_set import open_kernels  # noqa: E402
from pontil.runtime.cache.layout import KVLayout, choose_kv_dtype  # noqa: E402
from pontil.runtime.cache.pool import BlockPool  # noqa: E402
from pontil.runtime.cache.storage import TORCH_DTYPES, KVStorage  # noqa: E402
from pontil.runtime.engine.engine import Engine  # noqa: E402
from pontil.runtime.engine.prompt_turns import StepBudget  # noqa: E402
from pontil.runtime.engine.runner.model_runner import ModelRunner  # noqa: E402
from pontil.runtime.engine.scheduler import Scheduler  # noqa: E402
from pontil.runtime.engine.sequences.batch import Batch, Span  # noqa: E402
from pontil.runtime.engine.sequences.sequence import Sequence  # noqa: E402
from pontil.runtime.engine.tiles.rows import plan_of  # noqa: E402
from pontil.runtime.loaders.builtin import resolve_model  # noqa: E402
from pontil.runtime.loaders.checkpoint import open_checkpoint  # noqa: E402
from pontil.runtime.models.families.registry import build_model  # noqa: E402
from pontil.runtime.models.weights import Packing, Weights  # noqa: E402
from pontil.runtime.sampling_params import SamplingParams  # noqa: E402
from pontil.runtime.tokenizer.tokenizer import load_tokenizer  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path.home() / ".cache" / "pontil"
WINDOW, ANSWER, BLOCKS = 512, 64, 64
# Dtype, whether pontil's kernels compute, how weights are stored, and keys and values.
WAYS = {
    "float32": ("float32", False, "none", "auto"),
    "float32-kernels": ("float32", True, "none", "auto"),
    "torch": ("bfloat16", False, "none", "auto"),
    "kernels": ("bfloat16", True, "none", "auto"),
    "int8": ("bfloat16", True, "int8", "auto"),
    "gguf": ("bfloat16", True, "gguf", "auto"),
    "kv-int8": ("bfloat16", True, "none", "int8"),
    "kv-fp8": ("bfloat16", True, "none", "fp8"),
}


@dataclass
class Seen:
    """Results of one way of computing; lists have one entry for each window."""

    logits: list[Tensor]
    answers: list[list[int]]


def open_engine(path: Path, way: str) -> Engine:
    dtype, native, quantization, asked = WAYS[way]
    library = open_kernels("auto", 1, CACHE) if native else None
    checkpoint, torch_dtype = open_checkpoint(path), TORCH_DTYPES[dtype]
    levels = quantization == "gguf"
    tensors = checkpoint.levels(torch_dtype) if levels else checkpoint.tensors(torch_dtype)
    weights = Weights(tensors, torch.device("cpu"), torch_dtype, Packing.of(library, quantization == "int8"))
    config = checkpoint.config
    model = build_model(config, weights)
    cells = choose_kv_dtype(asked, dtype)
    layout = KVLayout(
        16, config.num_layers, config.num_kv_heads, config.head_dim, cells, library is not None, planes=config.kv_planes
    )
    storage = KVStorage(layout, BLOCKS, torch.device("cpu"))
    return Engine(
        ModelRunner(model, storage),
        Scheduler(BlockPool(BLOCKS), layout, 8, StepBudget(WINDOW), prefix_caching=False),
    )


def sequence(ids: list[int]) -> Sequence:
    params = SamplingParams(max_tokens=ANSWER, seed=1, temperature=0.0, ignore_eos=True)
    return Sequence("window", ids, params, frozenset())


@torch.inference_mode()
def logits_of(engine: Engine, ids: list[int]) -> Tensor:
    """Return logits, float32 [positions, vocabulary]."""
    one, scheduler, runner = sequence(ids), engine.scheduler, engine.runner
    assert isinstance(runner, ModelRunner)
    scheduler.add(one)
    scheduler.admit()
    scheduler.memory.grow(one, len(ids))
    batch = Batch((Span(one, 0, len(ids)),))
    tiles = batch.tiles() if runner.model.kernels is None else batch.mixed_tiles()
    found = [runner.tiles.project(runner.tiles.forward(plan_of(tile, [*range(tile.rows)], [], []))) for tile in tiles]
    scheduler.memory.give_back(one)
    scheduler.running.remove(one)
    return torch.cat(found)


def answer_of(engine: Engine, ids: list[int]) -> list[int]:
    one = sequence(ids)
    engine.add(one)
    while engine.has_work:
        engine.step()
    return one.output


def look(path: Path, way: str, windows: list[list[int]]) -> Seen:
    engine = open_engine(path, way)
    return Seen([logits_of(engine, ids) for ids in windows], [answer_of(engine, ids) for ids in windows])


def perplexity(seen: Seen, windows: list[list[int]]) -> float:
    losses = [
        torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="none")
        for logits, ids in zip(seen.logits, windows, strict=True)
    ]
    return math.exp(float(torch.cat(losses).mean()))


def compare(seen: Seen, first: Seen, second: Seen) -> dict[str, float]:
    pairs = list(zip(seen.logits, first.logits, strict=True))
    cosines = torch.cat([torch.cosine_similarity(ours, theirs, dim=-1) for ours, theirs in pairs])
    same = torch.cat([ours.argmax(-1) == theirs.argmax(-1) for ours, theirs in pairs])
    lengths = [common(ours, theirs) for ours, theirs in zip(seen.answers, second.answers, strict=True)]
    return {
        "least cosine": round(float(cosines.min()), 6),
        "mean cosine": round(float(cosines.mean()), 6),
        "same choice": round(float(same.float().mean()), 4),
        "same answer": sum(lengths) / len(lengths),
    }


def common(ours: list[int], theirs: list[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), len(ours))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument(
        "--ways", nargs="+", choices=list(WAYS), default=["float32", "torch", "kernels", "int8", "gguf"]
    )
    arguments = parser.parse_args()
    path = resolve_model(arguments.model, CACHE)
    text = "\n".join(one.read_text() for one in sorted((ROOT / "docs" / "decisions").glob("00*.md")))
    ids = load_tokenizer(path).encode(text, add_special_tokens=False)[: arguments.tokens]
    windows = [ids[start : start + WINDOW] for start in range(0, len(ids) - WINDOW + 1, WINDOW)]
    seen: list[Seen] = []
    for way in arguments.ways:
        seen.append(look(path, way, windows))
        result: dict[str, Any] = {"way": way, "perplexity": round(perplexity(seen[-1], windows), 4)}
        print(json.dumps(result | compare(seen[-1], seen[0], seen[min(1, len(seen) - 1)])), flush=True)


if __name__ == "__main__":
    main()
