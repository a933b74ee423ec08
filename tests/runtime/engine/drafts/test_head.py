# SPDX-License-Identifier: Apache-2.0
"""Draft layers in an engine: an MTP layer and an EAGLE head change only the number of steps of an answer."""

from dataclasses import dataclass, replace

import kernels
import pytest
import torch
from always_draft import AlwaysDraft
from drafted import REPEATING, Plain, plain_of, requests, run
from effort import by_default
from host_device import HostBackend, HostLink, device_engine
from hypothesis import given
from hypothesis import strategies as st
from tiny import Rig, check_free, rig, sequence
from tiny_draft_layers import write_eagle_head, write_mtp_hybrid, write_mtp_model
from tiny_llama import write_tiny_llama

from pontil.gpu_ops.kernels.tile import TileSpan
from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.device.tile_forward import DeviceLimits
from pontil.runtime.engine.drafts.device_head import DeviceLayerRunner
from pontil.runtime.engine.drafts.head import DraftHead, DraftLayerRunner
from pontil.runtime.engine.drafts.model_drafter import ModelDrafter
from pontil.runtime.engine.drafts.policy import WINDOW
from pontil.runtime.engine.sequences.draft_state import TargetStates
from pontil.runtime.engine.sequences.sequence import FinishReason
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.loaders.draft_layers import find_draft_layer, open_draft_layer
from pontil.runtime.models.families.registry import build_draft_layer, build_model
from pontil.runtime.models.layers.draft_layer import DraftLayer
from pontil.runtime.models.model import Model
from pontil.runtime.models.weights import Packing, Weights

CPU = torch.device("cpu")
# The form of a layer does not matter to what its head keeps of a sequence: both forms only with --long.
of_any_layer = pytest.mark.parametrize("pair", ["mtp", pytest.param("eagle", marks=pytest.mark.long)], indirect=True)


@dataclass(frozen=True)
class Drafting:
    target: Model
    layer: DraftLayer


KERNELS, HYBRID = "mtp by kernels", "mtp of a hybrid model"


@pytest.fixture(scope="module", params=["mtp", "eagle", KERNELS, HYBRID])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Drafting:
    folder = tmp_path_factory.mktemp(request.param)
    target, head = folder / "target", folder / "head"
    packing = Packing.of(kernels.opened()) if request.param in (KERNELS, HYBRID) else None
    if request.param == HYBRID:
        write_mtp_hybrid(target)
    elif request.param != "eagle":
        write_mtp_model(target, by_kernels=True)
    else:
        write_tiny_llama(target)
        write_eagle_head(head, target)
    checkpoint = open_checkpoint(target)
    model = build_model(checkpoint.config, Weights(checkpoint.tensors(), CPU, torch.float32, packing))
    source = find_draft_layer(target, head if request.param == "eagle" else "mtp")
    assert source is not None
    own = open_draft_layer(source)
    layer = build_draft_layer(own.config, Weights(own.tensors(), CPU, torch.float32, packing), model, source.form)
    return Drafting(model, layer)


@pytest.fixture(scope="module")
def plain(pair: Drafting) -> Plain:
    return plain_of(pair.target)


def head_of(pair: Drafting, blocks: int = 200, link: HostLink | None = None) -> DraftHead:
    """A head on the CPU, or behind a link to a device."""
    shape = pair.layer.config
    packed = pair.layer.kernels is not None
    layout = KVLayout(16, 1, shape.num_kv_heads, shape.head_dim, "float32", packed=packed, planes=shape.kv_planes)
    storage = KVStorage(layout, blocks, CPU)
    runner: DraftLayerRunner | DeviceLayerRunner = DraftLayerRunner(pair.layer, storage)
    if link is not None:
        limits = DeviceLimits(8, 64, layout.blocks_for(shape.max_model_len))
        runner = DeviceLayerRunner(pair.layer, storage, link, limits, HostBackend())
        runner.record(runner.layers.shapes)
    return DraftHead(runner, BlockPool(blocks), layout, shape.vocab_size)


def drafting(pair: Drafting, count: int, blocks: int = 200, lookup: bool = False, own_blocks: int = 200) -> Rig:
    drafter = ModelDrafter(head_of(pair, own_blocks), AlwaysDraft(lookup))
    made = rig(pair.target, blocks=blocks, drafts=count, drafter=drafter)
    made.runner.keeps_states = True
    return made


def head_in(one: Rig) -> DraftHead:
    drafter = one.scheduler.drafts.drafter
    assert isinstance(drafter, ModelDrafter) and isinstance(drafter.model, DraftHead)
    return drafter.model


def check_head_free(one: Rig) -> None:
    """Check that the head keeps nothing of any sequence, and its pool is whole."""
    head = head_in(one)
    head.pool.check()
    assert not head.followers and not head.feeds and head.pool.available == head.pool.capacity
    check_free(one)


@pytest.mark.parametrize(
    ("pair", "count", "lookup"),
    by_default(
        {("mtp", 5, True), ("eagle", 1, False)},
        [(layer, *how) for layer in ("mtp", "eagle") for how in ((1, False), (5, False), (5, True))],
    ),
    indirect=["pair"],
)
def test_a_draft_layer_changes_nothing(pair: Drafting, plain: Plain, count: int, lookup: bool) -> None:  # B1, C16
    """Choices, penalties, logprobs, masks of ids and temperatures are among the requests."""
    expected = plain(20)
    one = drafting(pair, count, lookup=lookup)
    assert run(one, requests(20)) == expected
    assert one.engine.drafted > 50
    check_head_free(one)


@pytest.mark.parametrize("pair", by_default({"eagle"}, ["eagle", "mtp"]), indirect=True)
def test_a_draft_layer_on_a_device_guesses_the_same(pair: Drafting) -> None:
    """The layer and its target start recorded steps, with one copy to the device and one back for each."""
    links = HostLink(), HostLink()
    engine, runner = device_engine(pair.target, seats=3, link=links[0], drafts=4)
    runner.record(runner.layers.shapes)
    runner.keeps_states = True
    head = head_of(pair, link=links[1])
    engine.scheduler.drafts.drafter = ModelDrafter(head, AlwaysDraft(False))
    made, on_cpu = replace(rig(pair.target), engine=engine), drafting(pair, 4)
    found = []
    for one in (made, on_cpu):
        found.append(run(one, [sequence(name, REPEATING[place:], 9) for place, name in enumerate("ab")]))
    assert found[0] == found[1] and engine.drafts == on_cpu.engine.drafts and engine.drafted > 30
    # Only prompts are computed otherwise.
    assert links[0].replayed > 5 and links[1].replayed >= links[1].fetched - 2
    assert links[1].sent == links[1].fetched + links[1].captures
    assert not head.followers and not head.feeds


@of_any_layer
def test_replay_and_little_room_give_the_same_with_a_draft_layer(pair: Drafting, plain: Plain) -> None:
    expected = plain(20)
    for tight in (drafting(pair, 5, blocks=12), drafting(pair, 5, own_blocks=9)):
        assert run(tight, requests(20)) == expected
        assert tight.engine.drafted > 0
        check_head_free(tight)


@pytest.mark.long
@of_any_layer
def test_a_layer_that_was_left_behind_begins_anew(pair: Drafting) -> None:
    """A sequence that decoded for long without guesses: only the newest states are known."""
    plain = run(rig(pair.target), [sequence("a", REPEATING, WINDOW + 40)])["a"]
    one = drafting(pair, 3)
    made = sequence("a", REPEATING, WINDOW + 40)
    one.engine.add(made)
    while len(made.output) < 5:
        one.engine.step()
    one.scheduler.drafts.most = 0
    first = head_in(one).followers[made].twin
    while len(made.output) < WINDOW + 10:
        one.engine.step()
    assert made.drafting.target_states is not None and len(made.drafting.target_states.rows) == WINDOW
    one.scheduler.drafts.most = 3
    one.engine.step()
    again = head_in(one).followers[made].twin
    assert again is not first and first.drafting.skipped == 1 < again.drafting.skipped
    while one.engine.has_work:
        one.engine.step()
    assert made.output == plain.ids
    check_head_free(one)


@of_any_layer
def test_a_layer_may_begin_with_the_newest_states_only(pair: Drafting) -> None:
    plain = run(rig(pair.target), [sequence("a", REPEATING, 40)])["a"]
    one = drafting(pair, 0)
    made, head = sequence("a", REPEATING, 40), head_in(one)
    one.engine.add(made)
    while len(made.output) < 20:
        one.engine.step()
    head.narrow(made, 6)
    twin = head.followers[made].twin
    assert head.missing(made) == 6 and head.feeds[twin].base == twin.drafting.skipped - 1 == made.length - 7
    assert head.read(made, 5) == 5
    one.scheduler.drafts.most = 3
    while one.engine.has_work:
        one.engine.step()
    assert made.output == plain.ids and one.engine.drafted > 0 and head.feeds == {}
    check_head_free(one)


def test_guesses_are_those_of_the_layer_fed_with_the_targets_states(pair: Drafting) -> None:
    """Chained: the first guess from the target's last state, each further one from the layer's own result; and what is
    computed piece by piece, with guesses in between, is what is computed at once."""
    one = drafting(pair, 4)
    made = sequence("a", REPEATING, 24)
    one.engine.add(made)
    while len(made.output) < 15:
        one.engine.step()
    (found,) = head_in(one).propose([(made, 4)])
    fresh = head_of(pair)
    assert made.drafting.target_states is not None and made.drafting.target_states.start == 0
    (expected,) = fresh.propose([(made, 4)])
    assert found == expected and len(found) == 4
    states, known, guessed = torch.stack(made.drafting.target_states.rows), made.prompt + made.output, list[int]()
    for _ in range(4):
        hidden, logits = once(pair, known[1:] + guessed, states)
        guessed.append(int(logits[-1].argmax()))
        states = torch.cat((states, pair.layer.fed(hidden[-1:])))
    assert tuple(guessed) == found
    one.engine.end("a", FinishReason.ABORTED)


def once(pair: Drafting, ids: list[int], states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute all positions in one tile, in new memory."""
    head = head_of(pair)
    runner = head.runner
    assert isinstance(runner, DraftLayerRunner)
    with torch.inference_mode():
        rows = pair.layer.rows(torch.tensor(ids), states)
        plan = TilePlan(False, ids, [TileSpan(0, len(ids), [1, 2, 3, 4, 5])], range(len(ids)), [], [], rows)
        hidden = runner.tiles.forward(plan)
        return hidden, pair.layer.logits(hidden)


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 200), st.integers(0, 400))))
def test_states_are_those_of_neighbouring_positions(steps: list[tuple[int, int, int]]) -> None:
    """Against a table of all positions: whatever is recorded and cut, each state is the last one of its position."""
    kept, known = TargetStates(0, []), dict[int, float]()
    for start, count, end in steps:
        rows = [torch.tensor([float(number)]) for number in torch.rand(count).tolist()]
        kept.record(start, rows)
        known |= {start + at: float(row) for at, row in enumerate(rows)}
        copy = kept.copy()
        kept.cut(end)
        assert kept.end <= max(end, kept.start) and len(copy.rows) <= WINDOW and copy.end == start + count
        assert all(float(one.at(at)) == known[at] for one in (kept, copy) for at in range(one.start, one.end))
