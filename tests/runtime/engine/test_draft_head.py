# SPDX-License-Identifier: Apache-2.0
"""Draft layers in an engine: an MTP layer and an EAGLE head change only the number of steps of an answer."""

from dataclasses import dataclass

import pytest
import torch
from drafted import requests, run
from tiny import AlwaysDraft, Rig, check_free, rig
from tiny_draft_layers import write_eagle_head, write_mtp_model

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.draft_head import DraftHead, DraftLayerRunner
from pontil.runtime.engine.model_drafter import ModelDrafter
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.loaders.draft_layers import find_draft_layer, open_draft_layer
from pontil.runtime.loaders.synthetic import write_tiny_llama
from pontil.runtime.models.draft_layer import DraftLayer
from pontil.runtime.models.model import Model
from pontil.runtime.models.registry import build_draft_layer, build_model
from pontil.runtime.models.weights import Weights

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Drafting:
    target: Model
    layer: DraftLayer


@pytest.fixture(scope="module", params=["mtp", "eagle"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Drafting:
    folder = tmp_path_factory.mktemp(request.param)
    target, head = folder / "target", folder / "head"
    if request.param == "mtp":
        write_mtp_model(target)
    else:
        write_tiny_llama(target)
        write_eagle_head(head, target)
    checkpoint = open_checkpoint(target)
    model = build_model(checkpoint.config, Weights(checkpoint.tensors(), CPU, torch.float32))
    source = find_draft_layer(target, "mtp" if request.param == "mtp" else head)
    assert source is not None
    own = open_draft_layer(source)
    layer = build_draft_layer(own.config, Weights(own.tensors(), CPU, torch.float32), model, source.form)
    return Drafting(model, layer)


def head_of(pair: Drafting, blocks: int = 200) -> DraftHead:
    shape = pair.layer.config
    layout = KVLayout(16, 1, shape.num_kv_heads, shape.head_dim, "float32", planes=shape.kv_planes)
    runner = DraftLayerRunner(pair.layer, KVStorage(layout, blocks, CPU))
    return DraftHead(runner, BlockPool(blocks), layout, shape.vocab_size)


def drafting(pair: Drafting, count: int, blocks: int = 200, lookup: bool = False, own_blocks: int = 200) -> Rig:
    drafter = ModelDrafter(head_of(pair, own_blocks), AlwaysDraft(lookup))
    made = rig(pair.target, blocks=blocks, drafts=count, drafter=drafter)
    made.runner.keeps_states = True
    return made


def head_in(one: Rig) -> DraftHead:
    drafter = one.scheduler.drafter
    assert isinstance(drafter, ModelDrafter) and isinstance(drafter.model, DraftHead)
    return drafter.model


def check_head_free(one: Rig) -> None:
    """Check that the head keeps nothing of any sequence, and its pool is whole."""
    head = head_in(one)
    head.pool.check()
    assert not head.followers and not head.feeds and head.pool.available == head.pool.capacity
    check_free(one)


@pytest.mark.parametrize(("count", "lookup"), [(1, False), (5, False), (5, True)])
def test_a_draft_layer_changes_nothing(pair: Drafting, count: int, lookup: bool) -> None:  # B1, C16
    """Choices, penalties, logprobs, masks of ids and temperatures are among the requests."""
    expected = run(rig(pair.target), requests(20))
    one = drafting(pair, count, lookup=lookup)
    assert run(one, requests(20)) == expected
    assert one.engine.drafted > 50
    check_head_free(one)


def test_replay_and_little_room_give_the_same_with_a_draft_layer(pair: Drafting) -> None:
    expected = run(rig(pair.target), requests(24))
    for tight in (drafting(pair, 5, blocks=12), drafting(pair, 5, own_blocks=9)):
        assert run(tight, requests(24)) == expected
        assert tight.engine.drafted > 0
        check_head_free(tight)
