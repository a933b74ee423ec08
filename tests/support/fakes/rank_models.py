# SPDX-License-Identifier: Apache-2.0
"""Whole models as rank processes compute them."""

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
from pontil.runtime.models.weights import Packing, Weights
from pontil.runtime.stages.qwen3_omni.config_file import read_talker_config
from pontil.runtime.stages.qwen3_omni.directory import talker_checkpoint

BLOCK = 16


def computed(
    path: Path,
    dtype: torch.dtype,
    ids: list[int],
    cuts: list[int],
    library: KernelLibrary | None = None,
    communicator: Communicator | None = None,
    talker: bool = False,
) -> tuple[Tensor, list[int]]:
    """Return the logits of all positions of a prompt that is computed in tiles of these sizes, and the ids of the
    highest ones of the last tile. The model is the text model, or the `talker` of one that speaks."""
    communicator = communicator or SingleRank()
    checkpoint: Checkpoint = talker_checkpoint(path, read_talker_config(path)) if talker else open_checkpoint(path)
    config = checkpoint.config
    weights = Weights(
        checkpoint.tensors(dtype), torch.device("cpu"), dtype, Packing.of(library), communicator=communicator,
        block=config.weight_block,
    )  # fmt: skip
    model = build_model(config, weights)
    layout = KVLayout(
        BLOCK, config.num_layers, config.num_kv_heads, config.head_dim, str(dtype).removeprefix("torch."),
        library is not None, communicator.rank, communicator.size, config.kv_planes,
    )  # fmt: skip
    blocks = list(range(1, len(ids) // BLOCK + 2))
    runner = TileRunner(model, KVStorage(layout, len(blocks) + 1, torch.device("cpu")))
    rows: list[Tensor] = []
    highest: list[int] = []
    for end, count in zip(accumulate(cuts), cuts, strict=True):
        places = list(range(count))
        tile = TilePlan(False, ids[end - count : end], [TileSpan(end - count, count, blocks)], places, [], places)
        with torch.inference_mode():
            # As a follower gets it.
            tile = PlanReader().read(PlanWriter().write(tile))
            logits, best = runner.drawn_logits(tile, runner.forward(tile))
        rows.append(logits)
        highest = (logits.argmax(-1) if best is None else best).tolist()
    return torch.cat(rows), highest


def compute_model(
    state: dict[str, Any],
    path: Path,
    dtype: torch.dtype,
    ids: list[int],
    cuts: list[int],
    by_kernels: bool,
    talker: bool = False,
) -> tuple[Tensor, list[int]]:
    library = state["library"] if by_kernels else None
    return computed(path, dtype, ids, cuts, library, state["communicator"], talker)
