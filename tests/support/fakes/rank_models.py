# SPDX-License-Identifier: Apache-2.0
"""Whole models as rank processes compute them."""

from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pontil.gpu_ops.collectives.communicator import Communicator, SingleRank
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.tile import TileSpan
from pontil.runtime.cache.layout import KVLayout
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
    one that speaks. `quantization` is that of a worker."""

    path: Path
    dtype: torch.dtype
    ids: list[int]
    cuts: list[int]
    talker: bool = False
    row_parallel: bool = False
    quantization: str = "none"
    expert_parallel: bool = False

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
    communicator, checkpoint, dtype, ids = communicator or SingleRank(), run.checkpoint, run.dtype, run.ids
    config, levels = checkpoint.config, run.quantization == "gguf"
    weights = Weights(
        checkpoint.levels(dtype) if levels else checkpoint.tensors(dtype),
        torch.device("cpu"),
        dtype,
        Packing.of(library, run.quantization == "int8"),
        communicator,
        config.weight_block,
        Arithmetic(row_parallel=run.row_parallel, expert_parallel=run.expert_parallel),
    )
    model = build_model(config, weights)
    layout = KVLayout(
        BLOCK, config.num_layers, config.num_kv_heads, config.head_dim, str(dtype).removeprefix("torch."),
        library is not None, communicator.rank, communicator.size, config.kv_planes,
    )  # fmt: skip
    blocks = list(range(1, len(ids) // BLOCK + 2))
    runner = TileRunner(model, KVStorage(layout, len(blocks) + 1, torch.device("cpu")))
    rows: list[Tensor] = []
    highest: list[int] = []
    for end, count in zip(accumulate(run.cuts), run.cuts, strict=True):
        places = list(range(count))
        tile = TilePlan(False, ids[end - count : end], [TileSpan(end - count, count, blocks)], places, [], places)
        with torch.inference_mode():
            # As a follower gets it.
            tile = PlanReader().read(PlanWriter().write(tile))
            hidden = runner.forward(tile)
            logits, best = runner.drawn_logits(tile, hidden)
        rows.append(torch.cat((logits, hidden), dim=1))
        highest = (logits.argmax(-1) if best is None else best).tolist()
    return torch.cat(rows), highest


def compute_model(state: dict[str, Any], run: PromptRun, by_kernels: bool) -> tuple[Tensor, list[int]]:
    return computed(run, state["library"] if by_kernels else None, state["communicator"])
