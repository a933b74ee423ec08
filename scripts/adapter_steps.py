# SPDX-License-Identifier: Apache-2.0
"""Whole steps of an engine with low-rank adapters beside the same without: `bench_engine.py --adapters N` has them.

The sequences are the same, and so are their contexts but for one token: from one step to the next their rows have
adapters, and then none. So other work of a machine, which lasts longer, slows both.
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pontil.gpu_ops.parameters.adapters import LowRank
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.runner.model_runner import ModelRunner
from pontil.runtime.engine.sequences.prompt_keys import NO_USED_ADAPTER, UsedAdapter
from pontil.runtime.engine.sequences.sequence import Sequence as EngineSequence
from pontil.runtime.models.adapters import ModelAdapters

Clock = Callable[[], float]
# Begins so many sequences, which have so many tokens to answer, and computes their prompts.
Begun = Callable[[int, int], Sequence[EngineSequence]]


def put_random(adapters: ModelAdapters, number: int, rank: int) -> int:
    """Give a model a random adapter of all layers that may have one; return its bytes."""
    layers = {
        name: LowRank(torch.randn(rank, inputs) * inputs**-0.5, torch.randn(outputs, rank) * 0.01)
        for name, (outputs, inputs) in adapters.shapes.items()
    }
    made = adapters.made(layers)
    made.put(number)
    return made.nbytes


def compared(plain: Sequence[float], adapted: Sequence[float]) -> dict[str, Any]:
    """Return the medians in milliseconds, and the median and the quartiles of the ratios of neighbours."""
    ratios = [with_one / without for without, with_one in zip(plain, adapted, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    ms = [round(1000 * statistics.median(some), 2) for some in (plain, adapted)]
    return {"ms": ms, "ratio": round(middle, 3), "quartiles": [round(low, 3), round(high, 3)]}


def measure_adapters(
    engine: Engine, size: tuple[int, int], counts: Sequence[int], rounds: int, now: Clock, begun: Begun
) -> dict[str, Any]:
    """Compare steps with so many adapters of such a rank, for each of these counts of rows."""
    count, rank = size
    assert isinstance(engine.runner, ModelRunner)
    adapters = engine.runner.model.adapters
    nbytes = sum(put_random(adapters, number, rank) for number in range(count))
    found: dict[str, Any] = {"adapters": count, "rank": rank, "MiB": round(nbytes / (1 << 20), 1)}

    def steps(rows: int) -> dict[str, Any]:
        sequences = begun(rows, 2 * rounds + 4)
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(2 * rounds + 2):
            for place, one in enumerate(sequences):
                one.prefix.adapter = UsedAdapter(f"{place:064x}", place % count) if turn % 2 else NO_USED_ADAPTER
            start = now()
            assert len(engine.step()) == rows
            times[turn % 2].append(now() - start)
        # The first two set up what later ones have.
        return compared(times[0][1:], times[1][1:])

    return found | {f"step {rows}": steps(rows) for rows in counts}
