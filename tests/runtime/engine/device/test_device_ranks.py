# SPDX-License-Identifier: Apache-2.0
"""Workers of two ranks on devices: steps that wait for nothing, on both, with the tokens of one rank (rule H4)."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from device_ranks import TurnFollowers
from host_device import HostBackend, HostLink
from pretend_device import PretendDevice
from rank_turns import RankTurns, TurnCommunicator, TurnMeetings
from strict_collectives import StrictCollectives
from strict_driver import DriverFault
from tiny import VOCAB, config, drain, reference, rig, sequence

from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.gpu_ops.collectives.communicator import Communicator
from pontil.gpu_ops.collectives.factory import create_communicator, open_communicator
from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.engine.device import buckets, device_follower
from pontil.runtime.engine.device.device_follower import DeviceFollower
from pontil.runtime.engine.device.device_runner import DeviceRunner
from pontil.runtime.engine.device.link import CudaLink, DeviceLink
from pontil.runtime.engine.device.runner_choice import make_runner, record_steps
from pontil.runtime.engine.device.tile_forward import DeviceLimits
from pontil.runtime.engine.drafts.step_drafts import StepDrafts
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.prompt_turns import StepBudget
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.models.families.llama import Llama
from pontil.runtime.models.partition import Arithmetic
from pontil.runtime.models.weights import Weights
from pontil.runtime.worker.start.assembly import equip
from pontil.runtime.worker.start.follower_tiles import open_tiles
from pontil.runtime.worker.start.gpu_room import measure_room
from pontil.runtime.worker.start.loading import ModelPart, fit, open_device

BLOCKS, SEATS, BUDGET = 40, 6, 64
Made = dict[str, Any]


class TwoRanks:
    """A driver with its engine and a follower, of which each has a link to a device and a communicator."""

    def __init__(self, turns: RankTurns, drafts: int = 0, blocks: int = BLOCKS, row_parallel: bool = False) -> None:
        self.turns, self.followers = turns, TurnFollowers(turns)
        self.drafts, self.blocks, self.arithmetic = drafts, blocks, Arithmetic(row_parallel=row_parallel)
        self.state = {name: one.clone() for name, one in reference().state_dict().items() if name != "lm_head.weight"}

    def model(self, own: Communicator, device: torch.device) -> Llama:
        tensors, arithmetic = self.state.items(), self.arithmetic
        return Llama(config(), Weights(tensors, device, torch.float32, communicator=own, arithmetic=arithmetic))

    def parts(self, own: Communicator, device: torch.device) -> tuple[Llama, KVStorage, DeviceLimits]:
        model, shape = self.model(own, device), config()
        layout = KVLayout(8, shape.num_layers, shape.num_kv_heads, shape.head_dim, "float32", rank=own.rank, ranks=2)
        storage = KVStorage(layout, self.blocks, device)
        return model, storage, DeviceLimits(SEATS + 32, BUDGET, layout.blocks_for(shape.max_model_len))

    def drive(
        self, own: Communicator, link: DeviceLink, attention: Any, use: Callable[[Engine], Any], records: int
    ) -> Any:
        model, storage, limits = self.parts(own, link.device)
        runner = DeviceRunner(model, storage, link, limits, attention, self.followers)
        runner.record(runner.layers.shapes[-records:] if records else [])
        pool = BlockPool(self.blocks)
        scheduler = Scheduler(pool, storage.layout, SEATS, StepBudget(BUDGET), drafts=StepDrafts(self.drafts))
        try:
            return use(Engine(runner, scheduler))
        finally:
            self.followers.is_over = True

    def follow(self, own: Communicator, link: DeviceLink, attention: Any, records: int) -> None:
        model, storage, limits = self.parts(own, link.device)
        follower = DeviceFollower(model, storage, link, limits, attention)
        follower.record(follower.layers.shapes[-records:] if records else [])
        self.followers.follow(follower)


def prompt(length: int, seed: int) -> list[int]:
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


SETTINGS: list[dict[str, object]] = [
    {},
    {"temperature": 1.2, "top_p": 0.9, "seed": 3, "logprobs": 2},
    {"presence_penalty": 0.7, "repetition_penalty": 1.2, "min_tokens": 3},
    {"temperature": 0.9, "n": 3},
    {"prompt_logprobs": 1},
]


def company() -> list[Sequence]:
    lengths = (1, 17, 40, 9, 70)
    return [
        sequence(f"s{place}", prompt(length, place), 9 + place, **settings)
        for place, (length, settings) in enumerate(zip(lengths, SETTINGS, strict=True))
    ]


def answers(engine: Engine) -> dict[str, list[int]]:
    for one in company():
        engine.add(one)
    return drain(engine)


@pytest.mark.parametrize(
    ("records", "drafts", "blocks", "row_parallel"),
    [
        (0, 0, BLOCKS, False),
        pytest.param(9, 3, BLOCKS, False, marks=pytest.mark.long),
        (9, 0, 26, False),
        (9, 3, BLOCKS, True),
    ],
)
def test_two_ranks_have_the_tokens_of_one(records: int, drafts: int, blocks: int, row_parallel: bool) -> None:
    """With recorded steps and drafts, with sequences that are preempted, and with sums over the ranks: of these
    prompts no token is nearly a tie."""
    turns = RankTurns()
    two, meetings = TwoRanks(turns, drafts, blocks, row_parallel), TurnMeetings(turns, 2)
    own = [TurnCommunicator(meetings, rank) for rank in range(2)]
    links = [HostLink() for _ in own]
    alone = answers(
        rig(two.model(create_communicator(None, torch.device("cpu"), 1, 0, ""), torch.device("cpu"))).engine
    )
    found, _ = turns.run(
        [
            lambda: two.drive(own[0], links[0], HostBackend(), answers, records),
            lambda: two.follow(own[1], links[1], HostBackend(), records),
        ]
    )
    assert found == alone and own[0].calls == own[1].calls
    assert two.followers.kinds == {True}
    assert [link.captures for link in links] == [records] * 2 and (links[1].replayed > 5) == bool(records)


@pytest.fixture
def there() -> Iterator[PretendDevice]:
    with PretendDevice() as made:
        yield made


def run_pretended(there: PretendDevice, records: int = 3) -> tuple[StrictCollectives, Any]:
    """Compute a company on two devices that are not there."""
    turns = RankTurns()
    two, collectives = TwoRanks(turns), StrictCollectives(there, 2, turns)
    first = create_communicator(None, torch.device("pretend:0"), 2, 0, "file:///nowhere")

    def live(rank: int) -> Any:
        with there:
            device = torch.device("pretend", rank)
            torch.cuda.set_device(device)
            own = first if rank == 0 else open_communicator(None, device, first.descriptor, rank)
            own.meet()
            link = CudaLink(device)
            if rank == 0:
                return two.drive(own, link, AttentionBackend(), answers, records)
            return two.follow(own, link, AttentionBackend(), records)

    with collectives.entered():
        return collectives, turns.run([lambda: live(0), lambda: live(1)])[0]


@pytest.mark.long  # the same steps follow the start of both ranks below
def test_ranks_on_devices_meet_in_every_step_and_start_recorded_ones_again(there: PretendDevice) -> None:
    collectives, found = run_pretended(there)
    # A device without numbers draws this.
    assert {token for tokens in found.values() for token in tokens} == {0}
    ours, theirs = (group.calls for group in collectives.groups)
    assert ours == theirs and len(ours) > 100
    assert there.driver.captures == 6 and there.driver.replays > 10 and collectives.captured


def test_a_follower_that_runs_ahead_of_its_device_is_caught(
    there: PretendDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_follower, "COPIES_IN_FLIGHT", 1000)
    with pytest.raises(DriverFault, match="the host writes to memory that stream"):
        run_pretended(there)


def test_a_follower_that_pads_otherwise_is_caught(there: PretendDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = TwoRanks.parts

    def other(self: TwoRanks, own: Communicator, device: torch.device) -> tuple[Llama, KVStorage, DeviceLimits]:
        model, storage, limits = parts(self, own, device)
        return model, storage, DeviceLimits(limits.generated, limits.prompt + own.rank, limits.blocks)

    monkeypatch.setattr(TwoRanks, "parts", other)
    with pytest.raises(DriverFault, match="ranks would hang in collective"):
        run_pretended(there)


class PlentyOfMemory:
    """A GPU's memory of which steps take nothing."""

    total, free, peak = 1 << 30, 1 << 29, 0

    def reset(self) -> None:
        return


@pytest.mark.long
def test_ranks_measure_record_and_begin_together(there: PretendDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything from the loaded weights to the first answers, as driver and follower go through it."""
    # Few steps to record.
    monkeypatch.setattr(buckets, "SMALL", (4,))
    turns = RankTurns()
    two, collectives = TwoRanks(turns, blocks=60), StrictCollectives(there, 2, turns)
    first = create_communicator(None, torch.device("pretend:0"), 2, 0, "file:///nowhere")

    def live(rank: int) -> Any:
        with there:
            device = torch.device("pretend", rank)
            given = WorkerConfig(
                "w", "mixed", str(device), (0,), "m", "m", "ipc:///c", "ipc:///p", rank=rank, ranks=2, max_num_seqs=4,
                max_num_batched_tokens=48,
            )  # fmt: skip
            open_device(given)
            own = first if rank == 0 else open_communicator(None, device, first.descriptor, rank)
            own.meet()
            model, storage, _ = two.parts(own, device)
            assert measure_room(given, model, storage.layout, PlentyOfMemory()).kv > 0
            if rank:
                part = ModelPart(model.config, "f", model, storage.layout, two.blocks, "float32", "k", None)
                followed = open_tiles(given, part, storage)
                assert isinstance(followed, DeviceFollower)
                return two.followers.follow(followed)
            length = fit(model.config, given, storage.layout, two.blocks, storage.layout.block_bytes).max_model_len
            runner = make_runner(given, model, storage, length, two.followers, None)
            record_steps(runner)
            try:
                return answers(equip(given, runner, storage, BlockPool(two.blocks)))
            finally:
                two.followers.is_over = True

    with collectives.entered():
        found, _ = turns.run([lambda: live(0), lambda: live(1)])
    assert len(found) == 7 and two.followers.kinds == {True}
    assert {token for tokens in found.values() for token in tokens} == {0}
    # Each rank when they find each other, when it has its weights, and when it has its pool.
    assert collectives.meetings == 2 * 3
    ours, theirs = (group.calls for group in collectives.groups)
    assert ours == theirs and len(ours) > 100
    assert there.driver.replays > 10 and collectives.captured
