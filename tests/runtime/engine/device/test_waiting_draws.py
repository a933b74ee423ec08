# SPDX-License-Identifier: Apache-2.0
"""Draws that need tokens of the step before wait for these, and their rows do not: on a device that is not there they
take part in every step, and with the host as the device their tokens are those of the plain runner."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from effort import by_default, examples
from failing_memory import FailingMemory
from host_device import HostLink, device_engine
from pretend_device import PretendDevice
from rule_guide import END, Rule, every_third
from tiny import VOCAB, build, layout_of, reference, rig, sequence

from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.engine.device.device_runner import DeviceRunner
from pontil.runtime.engine.device.link import CudaLink
from pontil.runtime.engine.device.tile_forward import DeviceLimits
from pontil.runtime.engine.engine import Engine, Output
from pontil.runtime.engine.prompt_turns import StepBudget
from pontil.runtime.engine.runner.memory_errors import MEMORY_RAN_OUT
from pontil.runtime.engine.scheduler import Scheduler
from pontil.runtime.engine.sequences.sequence import FinishReason, Sequence
from pontil.runtime.models.model import Model

# A device without numbers draws this.
DRAWN = 0
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "guided": {},
    "penalized": {"repetition_penalty": 1.2, "presence_penalty": 0.5},
    "early": {"min_tokens": 9},
    "biased": {"logit_bias": ((3, 5.0),), "bad_token_ids": (9,), "temperature": 1.0, "logprobs": 2},
}


@pytest.fixture
def there() -> Iterator[PretendDevice]:
    with PretendDevice() as made:
        yield made


def engine_on(there: PretendDevice) -> Engine:
    model = build(reference(), device=str(there.device))
    layout = layout_of(model)
    storage = KVStorage(layout, 60, there.device)
    limits = DeviceLimits(8 + 32, 128, layout.blocks_for(model.config.max_model_len))
    runner = DeviceRunner(model, storage, CudaLink(there.device), limits, AttentionBackend())
    return Engine(runner, Scheduler(BlockPool(60), layout, 8, StepBudget(128)))


class Watched(Rule):
    """A guide that notes the outputs that it was asked about."""

    def __init__(self, asked: list[list[int]]) -> None:
        super().__init__(lambda output: {DRAWN, 5, 6})
        self.asked = asked

    def masks(self, output: list[int], drafts: Any = ()) -> list[bytes]:
        self.asked.append(list(output))
        return super().masks(output, drafts)


def company(names: list[str], asked: list[list[int]], most: int = 12) -> list[Sequence]:
    found = []
    for place, name in enumerate(names):
        one = sequence(name, [3] * (9 + place), most, **KINDS[name])
        if name == "guided":
            one.rules.make_guide = lambda: Watched(asked)
        found.append(one)
    return found


def test_rows_whose_draws_wait_take_part_in_every_step(there: PretendDevice) -> None:
    engine, asked = engine_on(there), list[list[int]]()
    steps, schedule = list[set[str]](), engine.scheduler.schedule

    def watched() -> Any:
        batch = schedule()
        steps.append({span.sequence.id for span in batch.spans})
        return batch

    engine.scheduler.schedule = watched  # type: ignore[method-assign]
    members = company(list(KINDS), asked)
    for one in members:
        engine.add(one)
    while engine.has_work:
        engine.step()
    assert [one.output for one in members] == [[DRAWN] * 12] * len(members)
    assert steps[:12] == [set(KINDS)] * 12 and not any(steps[12:])
    # Each mask followed all tokens before it, after they had arrived.
    assert asked == [[DRAWN] * count for count in range(12)]


def test_a_step_whose_draws_wait_has_one_more_copy_to_the_device(there: PretendDevice) -> None:
    """The draws of the others go with them, so that there is one copy back."""
    engine, copies = engine_on(there), list[tuple[int, int]]()
    for one in company(["plain", "guided"], [], 5):
        engine.add(one)
    while engine.has_work:
        with there.recording() as tape:
            engine.step()
        copies.append((tape.to_device, tape.to_host))
    assert copies == [(1, 1), *[(2, 1)] * 4, (0, 0)]


def test_a_row_whose_sequence_ended_asks_its_guide_nothing(there: PretendDevice) -> None:
    """Its layers have started when its last token is accepted; or when the request is cancelled."""
    engine, asked = engine_on(there), list[list[int]]()
    members = company(["guided", "plain"], asked)
    members[0].stop_token_ids = frozenset({DRAWN})
    for one in members:
        engine.add(one)
    engine.step()
    assert [output.finish for output in engine.step()] == [FinishReason.STOP, None]
    assert asked == [[]]
    engine.end("plain", FinishReason.ABORTED)
    while engine.has_work:
        assert engine.step() == []
    pool = engine.scheduler.memory.pool
    pool.check()
    assert pool.available == pool.capacity


@pytest.fixture(scope="module")
def model() -> Model:
    made: Model = build(reference())
    return made


def prompt(length: int, seed: int) -> list[int]:
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.9, "logprobs": 2},
    {"presence_penalty": 0.7, "frequency_penalty": -0.4, "repetition_penalty": 1.3, "temperature": 1.0, "logprobs": 1},
    {"min_tokens": 9, "temperature": 1.3},
    {"logit_bias": ((END, 60.0),), "min_tokens": 4},
    {"logit_bias": ((5, 3.0),), "bad_token_ids": (7, 8), "repetition_penalty": 1.1},
    {"n": 2, "temperature": 1.5, "presence_penalty": 0.5},
)


def dead_end(output: list[int]) -> set[int]:
    return every_third(output) - {END} if len(output) < 5 else set()


def mixed_company() -> list[Sequence]:
    """Each kind with a grammar and without, one of which cannot be ended, and stops."""
    found = []
    for place in range(2 * len(SETTINGS)):
        kind, guided = divmod(place, 2)
        one = sequence(f"s{place}", prompt(7 + place, place), 30, **({"seed": place} | SETTINGS[kind]))
        one.stop_token_ids = frozenset({END, 40, 41})
        if guided:
            one.rules.make_guide = lambda kind=kind: Rule(every_third if kind != 3 else dead_end, "nothing fits")
        found.append(one)
    return found


End = tuple[list[int], FinishReason | None, str | None]


def ends_of(engine: Engine, members: list[Sequence]) -> dict[tuple[str, int], End]:
    last = dict[tuple[str, int], Output]()
    for one in members:
        engine.add(one)
    while engine.has_work:
        last |= {(one.sequence.id, one.sequence.branch.choice): one for one in engine.step()}
    pool = engine.scheduler.memory.pool
    pool.check()
    assert pool.available == pool.capacity and not engine.sequences
    return {key: (one.sequence.output, one.finish, one.failure) for key, one in last.items()}


@pytest.mark.parametrize("blocks", by_default({14}, [200, 14]))  # ample, and tight
def test_their_tokens_are_those_of_the_plain_runner(model: Model, blocks: int) -> None:
    theirs, ours = mixed_company(), mixed_company()
    expected = ends_of(rig(model, blocks=blocks, block_size=8).engine, theirs)
    link = HostLink()
    engine, runner = device_engine(model, blocks=blocks, block_size=8, seats=16, link=link)
    runner.record(runner.layers.shapes[-12:])
    assert ends_of(engine, ours) == expected
    assert link.sent > link.fetched + 10, "draws waited"
    assert blocks > 14 or engine.scheduler.preemptions
    assert {finish for _, finish, _ in expected.values()} == {
        FinishReason.STOP, FinishReason.LENGTH, FinishReason.ERROR,
    }  # fmt: skip
    for one, other in zip(ours, theirs, strict=True):
        assert len(one.record.logprobs) == len(other.record.logprobs)
        for mine, their in zip(one.record.logprobs, other.record.logprobs, strict=True):
            assert [entry[0::2] for entry in mine.entries] == [entry[0::2] for entry in their.entries]
            assert [entry[1] for entry in mine.entries] == pytest.approx(
                [entry[1] for entry in their.entries], abs=1e-4
            )


def few() -> list[Sequence]:
    found = [sequence(f"s{place}", prompt(9, place), 9, **SETTINGS[place]) for place in range(3)]
    for one in found[:2]:
        one.rules.make_guide = lambda: Rule(every_third)
    return found


def fourth_step(model: Model, failing: set[int]) -> tuple[dict[tuple[str, int], End], FailingMemory, bool]:
    """Run a few sequences, and have allocations of the fourth step fail. Return their ends, and whether its draws were
    attempted again, and its layers were not."""
    link = HostLink()
    engine, _ = device_engine(model, link=link)
    members = few()
    for one in members:
        engine.add(one)
    for _ in range(3):
        engine.step()
    with FailingMemory(failing) as memory:
        assert not any(output.failure for output in engine.step())
    # A step whose layers left a request out is waited for.
    drawn_again = link.settled > 0 and engine.in_flight is not None and not engine.in_flight.alone
    assert link.settled == len(failing)
    return ends_of(engine, []), memory, drawn_again


def test_memory_that_runs_out_for_layers_or_for_draws_that_waited_ends_one_request(model: Model) -> None:
    expected, calm, _ = fourth_step(model, set())
    attempts = set()
    for at in range(0, calm.allocations, examples(27, 2)):
        found, memory, drawn_again = fourth_step(model, {at})
        attempts.add(drawn_again)
        failed = [key for key, (_, _, failure) in found.items() if failure is not None]
        assert memory.failures == 1 and [found[key][1:] for key in failed] == [(FinishReason.ERROR, MEMORY_RAN_OUT)]
        assert {key: found[key] for key in expected if key not in failed} == {
            key: end for key, end in expected.items() if key not in failed
        }
    assert attempts == {False, True}
