# SPDX-License-Identifier: Apache-2.0
"""The ranks of a worker on devices that are not there: what a library of collectives would hang in is told."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from architectures import SIZES, VOCAB, hugging_model
from effort import by_default
from pretend_device import PretendDevice
from rank_turns import RankTurns
from strict_collectives import CollectiveCall, StrictCollectives
from strict_driver import DriverFault

from pontil.gpu_ops import device_mark
from pontil.gpu_ops.collectives.communicator import CollectiveError, Communicator
from pontil.gpu_ops.collectives.factory import create_communicator, open_communicator
from pontil.gpu_ops.device_mark import DeviceLate
from pontil.gpu_ops.products.batch_invariance import ANY_ROWS, BatchInvariance
from pontil.runtime.cache.device_memory import CudaMemory
from pontil.runtime.engine.device.captured_steps import CapturedSteps
from pontil.runtime.engine.device.link import CudaLink, RecordedStep
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.models.families.registry import build_model
from pontil.runtime.models.layers.decoder import Decoder
from pontil.runtime.models.model import Model
from pontil.runtime.models.partition import USUAL, Arithmetic
from pontil.runtime.models.weights import Weights

EVEN = SIZES | {
    "hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 8, "num_key_value_heads": 4,
    "moe_intermediate_size": 32, "num_experts": 4,
}  # fmt: skip
FAST = Arithmetic(row_parallel=True)


# Ranks that differ are told apart whatever the model is: with one, and with both only with --long.
of_any_model = pytest.mark.parametrize("path", by_default({"llama"}, ["llama", "qwen3_moe"]), indirect=True)


@dataclass
class RankSite:
    """Two ranks on two devices. `each` is run by every rank in a thread of its own, with its communicator."""

    there: PretendDevice
    collectives: StrictCollectives
    turns: RankTurns

    def run(self, each: Callable[[Communicator, torch.device], object]) -> list[object]:
        self.collectives.groups.clear()
        first = create_communicator(None, self.device(0), 2, 0, "file:///nowhere")
        return self.turns.run([partial(self.live, rank, first, each) for rank in range(2)])

    @property
    def calls(self) -> list[CollectiveCall]:
        return self.collectives.groups[0].calls

    def device(self, rank: int) -> torch.device:
        return torch.device("pretend", rank)

    def live(self, rank: int, first: Communicator, each: Callable[[Communicator, torch.device], object]) -> object:
        with self.there:
            device = self.device(rank)
            torch.cuda.set_device(device)
            own = first if rank == 0 else open_communicator(None, device, first.descriptor, rank)
            own.meet()
            return each(own, device)


@pytest.fixture
def site() -> Iterator[RankSite]:
    turns = RankTurns()
    with PretendDevice() as there:
        collectives = StrictCollectives(there, 2, turns)
        with collectives.entered():
            yield RankSite(there, collectives, turns)


@pytest.fixture(scope="module", params=["llama", "qwen3_moe"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp(request.param)
    hugging_model(request.param, EVEN).save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("qwen3_moe")
    hugging_model("qwen3_moe", EVEN).save_pretrained(made)
    return made


def part_of(path: Path, own: Communicator, device: torch.device, arithmetic: Arithmetic) -> Model:
    checkpoint = open_checkpoint(path)
    tensors = checkpoint.tensors(torch.float32)
    weights = Weights(tensors, device, torch.float32, communicator=own, arithmetic=arithmetic)
    return build_model(checkpoint.config, weights)


@pytest.mark.parametrize("path", by_default({"qwen3_moe"}, ["llama", "qwen3_moe"]), indirect=True)
@pytest.mark.parametrize("row_parallel", [False, True])
def test_ranks_that_compute_the_same_meet_in_every_layer(site: RankSite, path: Path, row_parallel: bool) -> None:
    arithmetic = Arithmetic(row_parallel=row_parallel)
    assert site.run(lambda own, device: computed(path, own, device, ANY_ROWS, arithmetic)) == [3 * VOCAB] * 2
    sums = [call.recorded for call in site.calls if call.kind == "all_reduce" and call.dtype.is_floating_point]
    # A step runs once before it is recorded.
    assert sums == ([False, True, False] if row_parallel else [])


def test_results_of_experts_travel_in_recorded_steps_too(site: RankSite, mixture: Path) -> None:
    """Their number depends on no choice: three rows are two for each rank, of two choices each."""
    arithmetic = Arithmetic(expert_parallel=True)
    assert site.run(lambda own, device: computed(mixture, own, device, ANY_ROWS, arithmetic)) == [3 * VOCAB] * 2
    sent = [call for call in site.calls if call.kind == "all_to_all"]
    assert [call.recorded for call in sent] == [False, True, False]
    assert {call.shape for call in sent} == {(2 * 2 * 2, 128 * 4)}


@of_any_model
def test_rows_that_ranks_pad_otherwise_are_told_with_both_shapes(site: RankSite, path: Path) -> None:
    """Rank 0 pads to nothing, and the other to a class of row counts: the first exchange would hang."""
    rows = (ANY_ROWS, BatchInvariance(32, 32, (64, 128, 256)))
    with pytest.raises(
        DriverFault, match=r"hang in collective 0: rank 1 .*\[(64, 384|128, 128)\].*, rank 0 .*\[(3, 384|6, 128)\]"
    ):
        site.run(lambda own, device: computed(path, own, device, rows[own.rank]))


@of_any_model
def test_parts_of_sums_of_other_shapes_are_told_with_both(site: RankSite, path: Path) -> None:
    rows = (ANY_ROWS, BatchInvariance(32, 32, (64, 128, 256)))
    with pytest.raises(
        DriverFault, match=r"collective 0: rank 1 .* all_reduce of \[64, 128\].*, rank 0 .* all_reduce of \[3, 128\]"
    ):
        site.run(lambda own, device: computed(path, own, device, rows[own.rank], FAST))


@of_any_model
def test_a_rank_with_another_arithmetic_is_told(site: RankSite, path: Path) -> None:
    with pytest.raises(DriverFault, match="collective 0: rank 1 makes an all_reduce .*, rank 0 an all_(gather|reduce)"):
        site.run(lambda own, device: computed(path, own, device, ANY_ROWS, FAST if own.rank else USUAL))


def computed(
    path: Path, own: Communicator, device: torch.device, classes: BatchInvariance, arithmetic: Arithmetic = USUAL
) -> int:
    """Compute the MLP and the logits of three positions of a prompt, recorded too; return how many logits there are."""
    model = part_of(path, own, device, arithmetic)
    assert isinstance(model, Decoder)
    rows = torch.ones(classes.pad_prompt(3), model.config.hidden_size, device=device)
    with torch.inference_mode():
        layer = partial(model.blocks[0].feed_forward, rows)
        recording = CudaLink(device).capture(lambda: model.logits(layer()), None)
        recording.replay()
        logits = model.logits(layer())
    CudaLink(device).settle()
    return len(logits[:3].flatten())


def test_a_rank_that_does_not_come_is_told_when_another_waits(site: RankSite) -> None:
    def each(own: Communicator, device: torch.device) -> None:
        part = torch.ones(2, 4, device=device)
        own.gather_columns(part)
        if own.rank == 0:
            own.gather_columns(part)
        CudaLink(device).settle()

    with pytest.raises(DriverFault, match="rank 0 would hang in collective 1, an all_gather of .*: rank 1 has not"):
        site.run(each)


@pytest.mark.parametrize("waits", ["fetch", "settle", "free", "after", "settle after recording", "capture"])
def test_no_wait_for_a_rank_that_does_not_come_is_for_ever(
    site: RankSite, waits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each names the device that hangs. Nothing goes on beside one where something may still be written."""
    monkeypatch.setattr(device_mark, "DEVICE_WITHIN", 0.01)
    site.collectives.may_hang = True

    def each(own: Communicator, device: torch.device) -> None:
        part, link, memory = torch.ones(2, 4, device=device), CudaLink(device), CudaMemory(device)
        pool = memory.allocate(64)
        recording = link.capture(lambda: own.gather_columns(part), None)
        link.settle()
        if own.rank == 1:
            return
        recording.replay() if "recording" in waits else own.gather_columns(part)
        with pytest.raises(DeviceLate, match=f"{device} has not done within 0.01 s .* a rank that has not come"):
            if waits == "fetch":
                link.fetch(part.view(torch.int32).view(-1), link.host_words(8)).wait()
            elif waits == "capture":
                link.capture(lambda: part + 1, None)
            elif waits == "free":
                memory.free(pool)
            elif waits == "after":
                with memory.after(memory.mark()):
                    pool.sum()
            else:
                link.settle()
        if waits == "after":
            with pytest.raises(DeviceLate):
                memory.mark()

    site.run(each)


def test_recorded_exchanges_are_made_at_each_start(site: RankSite) -> None:
    def each(own: Communicator, device: torch.device, starts: int = 3) -> None:
        part, link = torch.ones(2, 4, device=device), CudaLink(device)
        recording = link.capture(lambda: own.gather_columns(part), None)
        for _ in range(starts):
            recording.replay()
        link.settle()

    site.run(each)
    assert [len(group.calls) for group in site.collectives.groups] == [4, 4]
    with pytest.raises(DriverFault, match="would hang in collective 3, .*: rank 0 has not"):
        site.run(lambda own, device: each(own, device, 2 + own.rank))


def test_recorded_steps_end_before_the_connections_of_their_ranks(site: RankSite) -> None:
    """A library waits at its end until no recording holds its connections. Something may still refer to one, as the
    traceback of an error does."""
    held = list[RecordedStep]()

    def each(own: Communicator, device: torch.device, drops: bool = True) -> None:
        part, steps = torch.ones(2, 4, device=device), CapturedSteps(CudaLink(device))
        if drops:
            own.drop_at_close(steps)
        steps.record("a shape", lambda: own.gather_columns(part))
        held.extend(steps.steps.values())
        steps.run("a shape", lambda: part)
        steps.link.settle()
        own.close()

    site.run(each)
    assert [group.end for group in site.collectives.groups] == ["destroyed"] * 2
    with pytest.raises(DriverFault, match="given up"):
        held[0].replay()
    with pytest.raises(DriverFault, match="hang at its end: 1 recorded steps hold its connections"):
        site.run(lambda own, device: each(own, device, own.rank == 0))


def test_a_failed_recording_holds_no_connection(site: RankSite) -> None:
    def each(own: Communicator, device: torch.device) -> None:
        part, steps = torch.ones(2, 4, device=device), CapturedSteps(CudaLink(device))
        own.drop_at_close(steps)
        ran = list[int]()

        def run() -> torch.Tensor:
            made = own.gather_columns(part)
            ran.append(1)
            if len(ran) == 2:
                raise KeyError
            return made

        with pytest.raises(KeyError) as raised:
            steps.record("a shape", run)
        own.close()
        assert raised.tb

    site.run(each)
    assert [group.end for group in site.collectives.groups] == ["destroyed"] * 2


def test_a_rank_whose_group_has_failed_does_not_wait_for_it(site: RankSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its work does not end: another rank will not come."""

    def failing(*given: object, **named: object) -> None:
        raise RuntimeError("NCCL error: remote process exited")

    def each(own: Communicator, device: torch.device) -> None:
        if own.rank == 0:
            own.gather_columns(torch.ones(2, 4, device=device))
            with monkeypatch.context() as patch:
                patch.setattr(site.collectives, "broadcast", failing)
                with pytest.raises(CollectiveError, match="remote process exited"):
                    own.broadcast(torch.ones(2, 4, device=device))
            own.close()

    site.run(each)
    assert [group.end for group in site.collectives.groups] == ["aborted", None]


def test_memory_of_another_device_is_refused(site: RankSite) -> None:
    def each(own: Communicator, device: torch.device) -> None:
        own.gather_columns(torch.ones(2, 4, device="pretend:0"))

    with pytest.raises(DriverFault, match="rank 1 of pretend:1 brings memory of pretend:0"):
        site.run(each)
