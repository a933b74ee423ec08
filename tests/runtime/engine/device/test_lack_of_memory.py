# SPDX-License-Identifier: Apache-2.0
"""A step of a device for which memory does not suffice ends its largest request and changes no other, whatever had been
computed of it, and whatever was in flight."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field

import pytest
import torch
from effort import by_default
from failing_memory import FailingMemory
from host_device import HostLink, device_engine
from tiny import VOCAB, build, drain, name_of, reference, sequence
from torch import Tensor

from pontil.runtime.engine.device.device_runner import rounds_of
from pontil.runtime.engine.device.results import ResultBuffer
from pontil.runtime.engine.engine import Engine, Output
from pontil.runtime.engine.runner.memory_errors import MEMORY_RAN_OUT, is_out_of_memory
from pontil.runtime.engine.sequences.sequence import FinishReason, Purpose, Sequence
from pontil.runtime.models.model import Model


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    """A model so small that threads would wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield build(reference())
    torch.set_num_threads(before)


# Steps in which prompts are computed, beside rows that decode in the last ones; and steps that are launched while one
# is in flight, the first of them with a part of a prompt.
WAITED, FLYING = (0, 1, 2), (3, 5)


def prompt(length: int, seed: int = 5) -> list[int]:
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def company() -> list[Sequence]:
    """Requests with draws, edits, logprobs, choices that part, and a prompt that was computed a moment ago."""
    return [
        sequence("recorded", prompt(17, 3), 2, prompt_logprobs=1, temperature=0.5),
        sequence("choices", prompt(9, 2), 3, n=2, temperature=1.3),
        sequence("greedy", prompt(19), 7),
        sequence("edited", prompt(12, 1), 6, temperature=0.9, logit_bias=((5, 2.0),), logprobs=2),
        sequence("again", prompt(19), 7, temperature=1.0),
        sequence("large", prompt(50, 4), 6, logprobs=0),
    ]


@dataclass
class Course:
    """The course of an engine: what became of each choice, and the allocations of each step."""

    engine: Engine
    tokens: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, Output] = field(default_factory=dict)
    allocations: list[int] = field(default_factory=list)
    in_flight: list[bool] = field(default_factory=list)
    copied: int = 0

    def step(self, memory: FailingMemory | None) -> None:
        self.in_flight.append(self.engine.in_flight is not None and not self.engine.in_flight.alone)
        with memory or nullcontext():
            outputs = self.engine.step()
        self.allocations.append(0 if memory is None else memory.allocations)
        for output in outputs:
            name = name_of(output.sequence)
            self.tokens[name] = list(output.sequence.output)
            if output.finish is not None:
                self.ends[name] = output


def run(model: Model, failing: dict[int, range], *, recorded: bool = False) -> tuple[Course, HostLink]:
    """Run the company. `failing` has the allocations that fail of some steps."""
    link = HostLink()
    engine, runner = device_engine(model, budget=32, seats=7, link=link)
    if recorded:
        runner.record(runner.layers.shapes)
    course, copy_blocks = Course(engine), runner.copy_blocks

    def counted(sources: Tensor, targets: Tensor) -> None:
        copy_blocks(sources, targets)
        course.copied += len(sources)

    runner.copy_blocks = counted  # type: ignore[method-assign]
    for one in company():
        engine.add(one)
    while engine.has_work:
        at = len(course.allocations)
        course.step(FailingMemory(failing[at]) if at in failing else None)
    return course, link


@pytest.fixture(scope="module")
def calm(model: Model) -> Course:
    return run(model, dict.fromkeys(range(100), range(0)))[0]


def check(course: Course, calm: Course, most: int) -> None:
    """Check that at most so many requests ended for lack of memory, that nothing else changed, and that nothing is
    left."""
    failed = {name for name, output in course.ends.items() if output.failure is not None}
    assert len({name.split("/")[0] for name in failed}) <= most
    for name in failed:
        output = course.ends[name]
        assert (output.finish, output.failure, output.ids) == (FinishReason.ERROR, MEMORY_RAN_OUT, [])
        if name in calm.tokens:
            assert course.tokens[name] == calm.tokens[name][: len(course.tokens[name])]
    lost = {name for name in calm.tokens if name.split("/")[0] in {one.split("/")[0] for one in failed}}
    assert set(course.tokens) | lost == set(calm.tokens) | failed
    for name in set(calm.tokens) - lost:
        assert course.tokens[name] == calm.tokens[name]
        assert course.ends[name].finish is calm.ends[name].finish
    assert not course.engine.sequences and not course.engine.scheduler.prefix.claims
    pool = course.engine.scheduler.memory.pool
    pool.check()
    assert pool.available == pool.capacity


def test_the_company_is_what_it_is_for(calm: Course) -> None:
    assert len(calm.ends) == 7 and not any(output.failure for output in calm.ends.values())
    assert [all(calm.allocations[at] for at in some) for some in (WAITED, FLYING)] == [True, True]
    assert not any(calm.in_flight[at] for at in WAITED) and all(calm.in_flight[at] for at in FLYING)
    assert calm.copied


@pytest.mark.parametrize("part", by_default({0.3, 1.0}, [0.0, 0.3, 0.6, 1.0]))
def test_an_allocation_that_fails_anywhere_in_a_step_ends_one_request(model: Model, calm: Course, part: float) -> None:
    for at in (*WAITED, *FLYING):
        number = round(part * (calm.allocations[at] - 1))
        course, link = run(model, {at: range(number, number + 1)})
        assert link.settled == 1 and course.copied <= calm.copied
        check(course, calm, 1)
        assert [output.failure for output in course.ends.values()].count(MEMORY_RAN_OUT) == 1


def test_what_is_collected_allocates_nothing(model: Model) -> None:
    engine, runner = device_engine(model, budget=64)
    engine.add(sequence("a", prompt(20), 5, logprobs=2))
    engine.step()
    launched = engine.runner.launch(engine.scheduler.schedule())
    with FailingMemory() as memory:
        assert launched.collect()
    assert memory.allocations == 0


def test_recorded_steps_are_attempted_again_too(model: Model, calm: Course) -> None:
    course, link = run(model, {FLYING[1]: range(20, 21)}, recorded=True)
    assert link.replayed and link.settled == 1
    check(course, calm, 1)


def test_requests_end_until_memory_suffices(model: Model, calm: Course) -> None:
    course, link = run(model, {2: range(0, 200, 40)})
    assert link.settled > 1
    check(course, calm, link.settled)


@pytest.mark.parametrize("at", [WAITED[0], FLYING[1]])
def test_a_step_that_ends_all_its_requests_leaves_the_engine_working(model: Model, calm: Course, at: int) -> None:
    course, _ = run(model, {at: range(1, 1_000_000)})
    check(course, calm, 6)
    engine = course.engine
    engine.add(sequence("next", prompt(19), 7))
    assert drain(engine)["next"] == calm.tokens["greedy"]


def test_a_step_that_lost_a_request_is_waited_for(model: Model) -> None:
    """The next step would compute what is about to end."""
    engine, _ = device_engine(model, budget=256)
    for seed, name in enumerate("ab"):
        engine.add(sequence(name, prompt(9, seed), 5))
    engine.step()
    with FailingMemory({3}):
        assert [output.failure for output in engine.step()] == [None, None]
    assert engine.in_flight is not None and engine.in_flight.alone
    assert [output.failure for output in engine.step()] == [None, MEMORY_RAN_OUT]


def test_results_stay_until_an_attempt_at_the_next_step_has_ended() -> None:
    buffer = ResultBuffer(HostLink(), 2, 8)
    buffer.clear(2)
    buffer.ids.copy_(torch.tensor([7, 8]))
    arrival = buffer.fetch()
    buffer.begin()
    buffer.clear(1)
    buffer.add([torch.ones(30)])
    with FailingMemory({0}), pytest.raises(torch.OutOfMemoryError):
        buffer.fetch()
    buffer.clear(1)
    buffer.ids.copy_(torch.tensor([9, 9]))
    assert buffer.fetch().wait().tolist() == [9]
    assert arrival.wait().tolist() == [7, 8] and buffer.last.tolist() == [7, 8]


def test_a_prompt_that_failed_is_not_found_in_the_prefix_cache(model: Model, calm: Course) -> None:
    engine, _ = device_engine(model, budget=256)
    engine.add(sequence("first", prompt(50, 4), 6, logprobs=0))
    with FailingMemory({30}):
        (output,) = engine.step()
    assert output.failure == MEMORY_RAN_OUT
    engine.add(sequence("second", prompt(50, 4), 6, logprobs=0))
    assert drain(engine)["second"] == calm.tokens["large"]


@pytest.mark.parametrize("purpose", [Purpose.ANSWER, Purpose.HANDOVER])
@pytest.mark.parametrize(("given", "most"), [({0: 7}, 5), ({}, 0)])
def test_a_prompt_whose_token_is_known_or_that_wants_none_fails_as_well(
    model: Model, purpose: Purpose, given: dict[int, int], most: int
) -> None:
    """Another attempt has the first token. Its prompt was not computed, and nobody may go on behind it."""
    engine, _ = device_engine(model)
    one = sequence("a", prompt(20), most)
    one.purpose, one.branch.given = purpose, given
    engine.add(one)
    with FailingMemory({3}):
        (output,) = engine.step()
    assert (output.finish, output.failure, output.ids) == (FinishReason.ERROR, MEMORY_RAN_OUT, [])
    assert not engine.has_work and engine.prompt_computed == 0


def test_a_request_that_ends_in_the_step_before_had_its_whole_answer(model: Model, calm: Course) -> None:
    """The row of a request that its last token had already ended fails: the client has the end, and no error."""
    stop = calm.tokens["greedy"][3]
    count = calm.tokens["greedy"].index(stop) + 1
    engine, _ = device_engine(model)
    one = sequence("a", prompt(19), 7)
    one.stop_token_ids = frozenset({stop})
    engine.add(one)
    for _ in range(count):
        engine.step()
    assert engine.in_flight is not None and len(one.output) == count - 1
    with FailingMemory({3}) as memory:
        (output,) = engine.step()
    assert memory.failures == 1 and (output.finish, output.failure) == (FinishReason.STOP, None)
    assert engine.step() == [] and not engine.has_work
    pool = engine.scheduler.memory.pool
    pool.check()
    assert pool.available == pool.capacity


@pytest.mark.parametrize(
    ("error", "lacks"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("out of resource: shared memory, Required: 300000, Hardware limit: 232448"), False),
    ],
    ids=str,
)
def test_a_lack_of_memory_is_told_from_faults(error: MemoryError | RuntimeError, lacks: bool) -> None:
    assert is_out_of_memory(error) == lacks


def test_copies_are_divided_where_a_block_that_was_read_is_written() -> None:
    assert rounds_of([]) == []
    assert rounds_of([(1, 2), (1, 3), (4, 5)]) == [[(1, 2), (1, 3), (4, 5)]]
    assert rounds_of([(1, 2), (3, 1), (3, 4), (5, 3)]) == [[(1, 2)], [(3, 1), (3, 4)], [(5, 3)]]


def test_a_prompt_for_another_engine_keeps_its_blocks_until_its_transfer_has_ended(model: Model) -> None:
    """A peer was told of them: its worker changes the number that guards them before they return."""
    engine, _ = device_engine(model)
    one = sequence("a", prompt(20), 5)
    one.purpose = Purpose.HANDOVER
    engine.add(one)
    with FailingMemory({3}):
        (output,) = engine.step()
    memory = engine.scheduler.memory
    assert output.failure == MEMORY_RAN_OUT and one.blocks and memory.pool.available < memory.pool.capacity
    memory.give_back(one)
    memory.pool.check()
    assert memory.pool.available == memory.pool.capacity
