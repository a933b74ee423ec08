# SPDX-License-Identifier: Apache-2.0
"""Cores that workers, the proxy and clients share: who holds up whom, and by how much."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.planner.device_profile import CompanyTimes
from pontil.runtime.planner.shared_cores import DECODE, PROMPT, CoreProcess, HostWork, OwnCores, SharedCores
from pontil.runtime.wire.simulated.virtual_time import VirtualWorld

# Beside another step a step takes 1.25 times as long, and beside other work 2 times.
COMPANY = CompanyTimes(decode_decode=1.25, decode_host=2.0)


class Stepper(CoreProcess):
    """A worker that makes one step, and notes when what it does at its end happens, and when its next turn is."""

    lent = 1.0

    def __init__(self, world: VirtualWorld, cores: OwnCores, place: int, seconds: float, kind: str = DECODE) -> None:
        super().__init__(world, f"worker {place}")
        self.cores, self.place, self.seconds, self.kind = cores, place, seconds, kind
        self.begun_at = world.time
        self.told = self.next = 0.0

    def turn(self) -> float | None:
        if self.turns > 1:
            self.next = self.world.time - self.begun_at
            return None
        self.world.spend(self.cores.compute(self, self.place, self.kind, self.seconds, self.lent))
        self.acts(self.world.now(), self.tell)
        return self.world.now()

    def tell(self) -> None:
        self.told = self.world.time - self.begun_at


def steps(
    count: int, *begins: float, company: CompanyTimes = COMPANY, others: CompanyTimes | None = None
) -> tuple[VirtualWorld, SharedCores, list[Stepper]]:
    """Return workers on so many cores, each of which begins a step of 1 s at a time."""
    world = VirtualWorld(1)
    cores = SharedCores(world, count, [(1, company), *[(1, others or company)] * 7])
    workers = [Stepper(world, cores, place, 1.0) for place in range(len(begins))]
    for worker, at in zip(workers, begins, strict=True):
        world.after(at, worker.notify)
    return world, cores, workers


def ends(world: VirtualWorld, workers: list[Stepper]) -> list[float]:
    world.run(lambda: False)
    # The end of a turn happens when the next one begins, however often it was held up.
    assert [one.told for one in workers] == pytest.approx([one.next for one in workers])
    return [one.told for one in workers]


def test_a_step_alone_takes_its_time() -> None:
    world, _, workers = steps(2, 0.0)
    assert ends(world, workers) == pytest.approx([1.0])


def test_steps_on_other_cores_take_what_the_profile_says() -> None:
    world, _, workers = steps(2, 0.0, 0.0)
    assert ends(world, workers) == pytest.approx([1.25, 1.25])


def test_each_worker_loses_what_its_own_profile_says() -> None:
    world, _, workers = steps(2, 0.0, 0.0, others=CompanyTimes())
    assert ends(world, workers) == pytest.approx([1.2, 1.0])


def test_steps_on_one_core_take_turns() -> None:
    """A core does no more than one step's work in a step's time, whenever each begins."""
    for later, expected in ((0.0, [2.0, 2.0]), (0.75, [1.25, 2.0]), (0.25, [1.75, 2.0])):
        world, _, workers = steps(1, 0.0, later)
        assert ends(world, workers) == pytest.approx(expected)


def test_steps_on_one_core_lose_what_the_profile_says_besides() -> None:
    world, _, workers = steps(1, 0.0, 0.0, company=CompanyTimes(own_decode_decode=1.1, decode_decode=1.5))
    assert ends(world, workers) == pytest.approx([2.2, 2.2])


def test_one_that_begins_later_prolongs_what_runs() -> None:
    world, _, workers = steps(2, 0.0, 0.75)
    first, second = ends(world, workers)
    assert 1.0 < first < 1.1 and 1.75 < second < 1.85


def test_a_prompt_beside_which_nothing_was_measured_loses_nothing() -> None:
    world, cores, _ = steps(2)
    workers = [Stepper(world, cores, place, 1.0, PROMPT) for place in range(2)]
    for worker in workers:
        worker.notify()
    assert ends(world, workers) == pytest.approx([1.0, 1.0])


def lending(count: int, *begins: float, host: float = 1.0) -> tuple[VirtualWorld, SharedCores, list[Stepper]]:
    """Return workers, as many as cores, of which the first begin a step of 1 s at a time, or of half of it with lent
    cores."""
    world = VirtualWorld(1)
    cores = SharedCores(world, count, [(1, CompanyTimes(decode_host=host))] * count)
    workers = [Stepper(world, cores, place, 1.0) for place in range(len(begins))]
    for worker, at in zip(workers, begins, strict=True):
        worker.lent = 0.5
        world.after(at, worker.notify)
    return world, cores, workers


def test_a_step_borrows_the_cores_of_a_worker_without_one() -> None:
    world, _, workers = lending(2, 0.0)
    assert ends(world, workers) == pytest.approx([0.5])
    # Nobody has cores to lend.
    world, _, workers = lending(1, 0.0)
    assert ends(world, workers) == pytest.approx([1.0])


def test_a_core_of_several_workers_is_not_lent() -> None:
    world, _, (worker,) = steps(2, 0.0)
    worker.lent = 0.5
    assert ends(world, [worker]) == pytest.approx([1.0])


def test_the_owner_takes_its_core_back() -> None:
    """The first does half of its work in 0.25 s with the other's core, the rest in 0.5 s without. What the second has
    left then is done with the first one's core."""
    world, _, workers = lending(2, 0.0, 0.25)
    assert ends(world, workers) == pytest.approx([0.75, 1.0])
    # Both at once have nothing to borrow.
    world, _, workers = lending(2, 0.0, 0.0)
    assert ends(world, workers) == pytest.approx([1.0, 1.0])


def test_a_core_is_borrowed_by_one() -> None:
    """Two of three workers compute: one has the third's core, and the other waits for that one's."""
    world, _, workers = lending(3, 0.0, 0.0)
    assert sorted(ends(world, workers)) == pytest.approx([0.5, 0.75])


def test_other_work_on_a_lent_core_holds_up_the_step_that_borrows_it() -> None:
    world, cores, workers = lending(2, 0.0)
    served = serve(world, cores, 0.25, 0.1)
    assert ends(world, workers) == pytest.approx([0.55])
    assert served == pytest.approx([0.35])


def test_an_owner_that_waits_for_other_work_takes_nothing_from_who_borrows_its_core() -> None:
    """The first has lost the core to the other work since 0.2, to the second from 0.3 on."""
    world, cores, workers = lending(2, 0.0, 0.25)
    serve(world, cores, 0.2, 0.1)
    assert ends(world, workers) == pytest.approx([0.8, 1.05])


def serve(world: VirtualWorld, cores: SharedCores, at: float, *seconds: float) -> list[float]:
    found = list[float]()
    begun = world.time
    world.after(at, lambda: found.extend(cores.serve(world.time, one) - begun for one in seconds))
    return found


def test_other_work_takes_a_free_core_and_slows_the_step_on_the_other() -> None:
    world, cores, workers = steps(2, 0.0)
    served = serve(world, cores, 0.5, 0.25)
    assert ends(world, workers) == pytest.approx([1.125])
    assert served == pytest.approx([0.75])


def test_other_work_waits_for_other_work_before_it_holds_up_a_step() -> None:
    world, cores, workers = steps(2, 0.0, company=CompanyTimes())
    served = serve(world, cores, 0.5, 0.25, 0.25)
    assert ends(world, workers) == pytest.approx([1.0])
    assert served == pytest.approx([0.75, 1.0])


def test_other_work_holds_up_a_step_where_no_core_is_free() -> None:
    world, cores, workers = steps(2, 0.0, 0.0, company=CompanyTimes())
    served = serve(world, cores, 0.5, 0.25, 0.125)
    # One worker each: the second time the other one.
    assert sorted(ends(world, workers)) == pytest.approx([1.125, 1.25])
    assert served == pytest.approx([0.75, 0.625])


def test_other_work_holds_up_all_alike_whatever_they_lose_to_each_other() -> None:
    world, cores, workers = steps(2, 0.0, 0.0, company=CompanyTimes(decode_decode=1.25), others=CompanyTimes())
    serve(world, cores, 0.5, 0.1, 0.1)
    assert ends(world, workers) == pytest.approx([1.3, 1.1])


def test_a_worker_waits_for_other_work_that_cannot_move() -> None:
    for count, expected in ((2, 1.1), (1, 1.25)):
        world, cores, workers = steps(count, 0.1)
        # Both cores have such work, or the only one has.
        serve(world, cores, 0.0, *(0.25,) * count)
        world.run(lambda: False)
        assert workers[0].told > expected - 0.1
    world, cores, workers = steps(2, 0.1, company=CompanyTimes())
    serve(world, cores, 0.0, 0.25)
    assert ends(world, workers) == pytest.approx([1.1])


def test_work_that_comes_later_is_not_in_the_way_of_work_before_it() -> None:
    """The proxy has an event, and it is known already when the client will read it: a step that begins meanwhile has
    its core, as both fit on the other."""
    world, cores, workers = steps(2, 0.05, company=CompanyTimes())
    begun = world.time
    world.after(0.0, lambda: cores.serve(world.time, 0.2))
    world.after(0.0, lambda: cores.serve(begun + 0.3, 0.1))
    assert ends(world, workers) == pytest.approx([1.05])


def test_work_that_comes_later_to_the_only_core_prolongs_a_step() -> None:
    world, cores, workers = steps(1, 0.05, company=CompanyTimes())
    begun = world.time
    world.after(0.0, lambda: cores.serve(begun + 0.3, 0.1))
    assert ends(world, workers) == pytest.approx([1.15])
    # Work behind its end does not.
    world, cores, workers = steps(1, 0.05, company=CompanyTimes())
    later = world.time + 1.5
    world.after(0.0, lambda: cores.serve(later, 0.1))
    assert ends(world, workers) == pytest.approx([1.05])


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), max_size=12))
def test_no_core_does_two_things_at_once(asked: list[tuple[int, int]]) -> None:
    work = HostWork()
    for begins, seconds in asked:
        before = list(work.pieces)
        found = work.gap(begins, seconds)
        places = range(begins, begins + 200)
        assert found == next(at for at in places if all(at >= end or at + seconds <= one for one, end in before))
        work.take(found, seconds, 0.0)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(work.pieces))


def test_own_cores_are_always_free() -> None:
    world = VirtualWorld(1)
    worker = Stepper(world, OwnCores(), 0, 1.0)
    worker.notify()
    assert OwnCores().serve(2.0, 0.5) == 2.5
    assert ends(world, [worker]) == pytest.approx([1.0])
