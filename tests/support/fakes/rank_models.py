# SPDX-License-Identifier: Apache-2.0
"""Whole models as rank processes compute them."""

from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from tiny_adapters import random_layers
from torch import Tensor

from pontil.gpu_ops.collectives.communicator import Communicator, SingleRank
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.tile import TileSpan
from pontil.runtime.cache.layout import layout_for
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.engine.tiles.plan_tables import PlanReader, PlanWriter
from pontil.runtime.engine.tiles.runner import TileRunner
from pontil.runtime.loaders.checkpoint import Checkpoint, open_checkpoint
from pontil.runtime.models.families.registry import build_model
from pontil.runtime.models.partition import Arithmetic
from pontil.runtime.models.weights import Packing, Weights
from pontil.runtime.stages.qwen3_omni.config_file import read_talker_config
from pontil.runtime.stages.qwen3_omni.directory import talker_checkpoint

BLOCK = 16


@dataclass(frozen=True)
class PromptRun:
    """A prompt that is computed in tiles of the sizes `cuts`, by the text model of a directory, or by the `talker` of
    one that speaks. `quantization` is that of a worker. With `adapted_from` its rows have a random adapter from that
    position on, also of experts if they may have some."""

    path: Path
    dtype: torch.dtype
    ids: list[int]
    cuts: list[int]
    talker: bool = False
    row_parallel: bool = False
    quantization: str = "none"
    expert_parallel: bool = False
    data_parallel: bool = False
    all_rows: bool = True
    adapted_from: int | None = None
    adapted_experts: bool = True

    @property
    def checkpoint(self) -> Checkpoint:
        return (
            talker_checkpoint(self.path, read_talker_config(self.path)) if self.talker else open_checkpoint(self.path)
        )


def computed(
    run: PromptRun, library: KernelLibrary | None = None, communicator: Communicator | None = None
) -> tuple[Tensor, list[int]]:
    """Return the logits of all positions with the hidden states behind them, and the ids of the highest logits of the
    last tile. Logits are gathered from all ranks, hidden states are this one's."""
    runner = tile_runner(run, library, communicator)
    tiles = [tile_logits(runner, tile) for tile in tiles_of(run)]
    return torch.cat([rows for rows, _ in tiles]), tiles[-1][1]


def tile_runner(run: PromptRun, library: KernelLibrary | None, communicator: Communicator | None) -> TileRunner:
    communicator, checkpoint, dtype = communicator or SingleRank(), run.checkpoint, run.dtype
    config, levels = checkpoint.config, run.quantization == "gguf"
    weights = Weights(
        checkpoint.levels(dtype) if levels else checkpoint.tensors(dtype),
        torch.device("cpu"),
        dtype,
        Packing.of(library, run.quantization == "int8"),
        communicator,
        config.weight_block,
        Arithmetic(False, run.row_parallel, run.expert_parallel, run.data_parallel),
    )
    model = build_model(config, weights)
    communicator = weights.communicator
    cells = str(dtype).removeprefix("torch.")
    layout = layout_for(config, BLOCK, cells, library is not None, communicator.rank, communicator.size)
    if run.adapted_from is not None:
        model.adapters.made(random_layers(model, 1, experts=run.adapted_experts)).put(0)
    return TileRunner(model, KVStorage(layout, len(run.ids) // BLOCK + 2, torch.device("cpu")))


def tiles_of(run: PromptRun) -> list[TilePlan]:
    blocks, tiles = list(range(1, len(run.ids) // BLOCK + 2)), list[TilePlan]()
    for end, count in zip(accumulate(run.cuts), run.cuts, strict=True):
        # A prompt's first tiles draw nothing, and need no row of the last layer.
        wanted = list(range(count if run.all_rows or end == len(run.ids) else 0))
        start = run.adapted_from
        adapter = {} if start is None or start >= end else {"adapter": 0, "adapted_from": start}
        span = TileSpan(end - count, count, blocks, **adapter)
        tiles.append(TilePlan(False, run.ids[end - count : end], [span], wanted, [], wanted))
    return tiles


def tile_logits(runner: TileRunner, tile: TilePlan) -> tuple[Tensor, list[int]]:
    with torch.inference_mode():
        # As a follower gets it.
        tile = PlanReader().read(PlanWriter().write(tile))
        hidden = runner.forward(tile)
        if not tile.drawn:
            return torch.zeros(0), []
        logits, ranked = runner.drawn_logits(tile, hidden)
    best = logits.argmax(-1) if ranked is None else ranked.highest
    return torch.cat((logits, hidden), dim=1), best.tolist()


def compute_apart(state: dict[str, Any], runs: list[PromptRun], by_kernels: bool) -> tuple[Tensor, list[int]]:
    """Compute the own prompt of this rank, whose experts are divided, in passes that all ranks make: as many as the
    longest of them has tiles, of which this one has the last ones."""
    run = runs[state["communicator"].rank]
    runner = tile_runner(run, state["library"] if by_kernels else None, state["communicator"])
    for _ in range(max(len(one.cuts) for one in runs) - len(run.cuts)):
        runner.model.serve_experts()
    tiles = [tile_logits(runner, tile) for tile in tiles_of(run)]
    return torch.cat([rows for rows, _ in tiles]), tiles[-1][1]


def compute_model(state: dict[str, Any], run: PromptRun, by_kernels: bool) -> tuple[Tensor, list[int]]:
    return computed(run, state["library"] if by_kernels else None, state["communicator"])
