# SPDX-License-Identifier: Apache-2.0
"""The order in which callers are served."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pontil.runtime.foundation.fair_share import GUARANTEED, ServiceClass, class_of
from pontil.runtime.proxy.admission.fair_queue import MOST_QUIET_LEVELS, FairQueue
from pontil.runtime.proxy.admission.priority_level import MOST_DEBTS

COSTS = st.integers(1, 500)
WEIGHTS = st.sampled_from([0.5, 1.0, 2.0, 3.0, 10.0])
# A push: caller, place, cost.
PUSHES = st.tuples(st.sampled_from("abc"), st.integers(-1, 1), COSTS)
ANY_CLASS = st.tuples(
    st.sampled_from("abc"), st.builds(ServiceClass.place, st.sampled_from(ServiceClass), st.integers(-1, 1)), COSTS
)
# None is a pop, a number the removal of one of the waiting items.
STEPS = st.lists(st.one_of(PUSHES, st.none(), st.integers(0, 50)), max_size=120)
STEPS_OF_CLASSES = st.lists(st.one_of(ANY_CLASS, st.none(), st.integers(0, 50)), max_size=120)
OF_CALLER = {"a": 1.0, "b": 2.0, "c": 0.5}


class Item:
    """An item that equals only itself and cannot be hashed."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, caller: str, priority: int = 0, cost: float = 1.0) -> None:
        self.caller, self.priority, self.cost = caller, priority, cost


def push(queue: FairQueue[Item], item: Item, weight: float = 1.0) -> Item:
    queue.push(item, item.caller, weight, item.priority, item.cost)
    return item


def walk(queue: FairQueue[Item], steps: list[tuple[str, int, int] | int | None]) -> tuple[list[Item], list[Item]]:
    """Run the steps. Return all items that were pushed, in this order, and all that left."""
    pushed: list[Item] = []
    left: list[Item] = []
    for step in steps:
        waiting = [item for item in pushed if item in queue]
        assert len(queue) == len(waiting) and (queue.peek() is None) == (not waiting)
        if isinstance(step, tuple):
            pushed.append(push(queue, Item(*step), OF_CALLER[step[0]]))
        elif waiting and step is None:
            first = queue.peek()
            left.append(queue.pop())
            assert left[-1] is first and first is not None
            of_class = [item for item in waiting if class_of(item.priority) is class_of(first.priority)]
            assert first.priority == min(item.priority for item in of_class)
            mates = [item for item in waiting if (item.caller, item.priority) == (first.caller, first.priority)]
            assert mates[0] is first, "within a caller the order is that of arrival"
        elif waiting and step is not None:
            gone = waiting[step % len(waiting)]
            assert queue.remove(gone) and not queue.remove(gone)
            left.append(gone)
    return pushed, left


@given(STEPS_OF_CLASSES, st.booleans())
def test_what_is_pushed_leaves_once(steps: list[tuple[str, int, int] | int | None], fair: bool) -> None:
    queue: FairQueue[Item] = FairQueue(fair)
    pushed, left = walk(queue, steps)
    left += [queue.pop() for _ in range(len(queue))]
    assert sorted(map(id, left)) == sorted(map(id, pushed))
    assert queue.peek() is None and not list(queue)
    with pytest.raises(IndexError):
        queue.pop()


@given(STEPS_OF_CLASSES)
def test_the_order_is_shown_before_it_comes(steps: list[tuple[str, int, int] | int | None]) -> None:
    queue: FairQueue[Item] = FairQueue()
    walk(queue, steps)
    shown = list(queue)
    assert [id(queue.pop()) for _ in shown] == list(map(id, shown))


@given(STEPS, PUSHES, WEIGHTS, st.booleans())
def test_what_is_ahead_of_a_newcomer(
    steps: list[tuple[str, int, int] | int | None], newcomer: tuple[str, int, int], weight: float, fair: bool
) -> None:
    """The estimate is at least what is served before it, whatever it weighs and costs; too much by one item at most of
    each other caller with several."""
    queue: FairQueue[Item] = FairQueue(fair)
    walk(queue, steps)
    caller, priority, _ = newcomer
    told = queue.ahead_of(priority, caller)
    last = push(queue, Item(*newcomer), weight)
    order = list(queue)
    before = sum(item.cost for item in order[: [item is last for item in order].index(True)])
    rivals = [item for item in order if item.priority == priority and item.caller != caller]
    several = {item.caller for item in rivals if sum(one.caller == item.caller for one in rivals) > 1}
    slack = sum(500 for _ in several) if fair else 0
    assert before - 1e-6 <= told <= before + slack + 1e-6


@given(WEIGHTS, WEIGHTS, st.lists(COSTS, min_size=30, max_size=60), st.lists(COSTS, min_size=30, max_size=60))
def test_two_that_always_wait_are_served_by_their_weights(
    one: float, other: float, costs: list[int], others: list[int]
) -> None:
    queue: FairQueue[Item] = FairQueue()
    weights = {"one": one, "other": other}
    for caller, each in (("one", costs), ("other", others)):
        for cost in each:
            push(queue, Item(caller, cost=cost), weights[caller])
    served: dict[str, float] = defaultdict(float)
    within = max(costs) / one + max(others) / other
    waiting = {"one": len(costs), "other": len(others)}
    while all(waiting.values()):
        item = queue.pop()
        waiting[item.caller] -= 1
        served[item.caller] += item.cost / weights[item.caller]
        assert abs(served["one"] - served["other"]) <= within + 1e-6


@settings(max_examples=50)
@given(st.integers(1, 500), st.integers(1, 500), st.integers(0, 40))
def test_a_newcomer_waits_for_no_backlog(cost: int, own: int, served: int) -> None:
    """However much one caller has waiting and adds, another one's item is next, or next but one."""
    queue: FairQueue[Item] = FairQueue()
    for _ in range(200):
        push(queue, Item("greedy", cost=cost))
    for _ in range(served):
        queue.pop()
    modest = push(queue, Item("modest", cost=own))
    push(queue, Item("greedy", cost=cost))
    assert modest in (queue.pop(), queue.pop())


@given(st.integers(1, 20), st.integers(0, 20), st.booleans())
def test_the_wait_of_a_class_is_that_of_its_part(behind: int, more_urgent: int, is_lower: bool) -> None:
    """A newcomer of one class beside another one is told what is served before it, within two items."""
    queue: FairQueue[Item] = FairQueue()
    first, second = ServiceClass.INTERACTIVE.place(), ServiceClass.STANDARD.place()
    for _ in range(more_urgent):
        push(queue, Item("a", first, 100))
    for _ in range(behind):
        push(queue, Item("b", second, 100))
    place = second if is_lower else first
    told = queue.ahead_of(place, "new", 100)
    last = push(queue, Item("new", place, 100))
    order = list(queue)
    before = 100 * [item is last for item in order].index(True)
    assert before - 200 <= told <= before + 200 / GUARANTEED[ServiceClass.STANDARD]


@given(st.lists(st.integers(-90, 400), max_size=30))
def test_a_caller_is_charged_what_it_took(errors: list[int]) -> None:
    """The costs of one caller are always wrong by as much. It has as much as the other one nevertheless."""
    queue: FairQueue[Item] = FairQueue()
    used = {"wrong": 0.0, "right": 0.0}
    for error in [*errors, *errors]:
        for caller in used:
            while sum(item.caller == caller for item in queue) < 2:
                push(queue, Item(caller, cost=100))
        item = queue.pop()
        change = error if item.caller == "wrong" else 0
        used[item.caller] += 100 + change
        queue.correct(item.caller, 1.0, item.priority, change)
        assert abs(used["wrong"] - used["right"]) <= 600


def test_a_correction_of_a_caller_with_nothing_waiting_is_a_debt_and_no_credit() -> None:
    queue: FairQueue[Item] = FairQueue()
    push(queue, Item("a", cost=10))
    queue.pop()
    queue.correct("a", 1.0, 0, 200)
    waits = push(queue, Item("a", cost=10))
    others = [push(queue, Item("b", cost=100)) for _ in range(2)]
    assert [queue.pop() for _ in range(3)] == [*others, waits]
    queue.correct("a", 1.0, 0, -1e6)
    assert queue.levels[0].begin("a") == queue.levels[0].time


def test_a_caller_that_was_idle_gets_no_credit() -> None:
    queue: FairQueue[Item] = FairQueue()
    for _ in range(60):
        push(queue, Item("busy", cost=10))
    for _ in range(30):
        queue.pop()
    for _ in range(30):
        push(queue, Item("late", cost=10))
    callers = [queue.pop().caller for _ in range(20)]
    assert 9 <= callers.count("busy") <= 11


def test_nobody_starves_behind_callers_that_come_once_each() -> None:
    """A served caller has another item; new callers with one item each never stop coming."""
    queue: FairQueue[Item] = FairQueue()
    push(queue, Item("again", cost=100))
    queue.pop()
    waits = push(queue, Item("again", cost=100))
    for number in range(4):
        push(queue, Item(f"before-{number}", cost=100))
    for number in range(50):
        push(queue, Item(f"stranger-{number}", cost=100))
        if queue.pop() is waits:
            return
    raise AssertionError("it was never served")


def test_who_was_just_served_is_not_first_again_because_nothing_waited_meanwhile() -> None:
    queue: FairQueue[Item] = FairQueue()
    push(queue, Item("greedy", cost=100))
    queue.pop()
    push(queue, Item("greedy", cost=100))
    modest = push(queue, Item("modest", cost=100))
    assert queue.pop() is modest


def test_what_left_unserved_is_not_paid() -> None:
    queue: FairQueue[Item] = FairQueue()
    kept = [push(queue, Item("a", cost=10)), push(queue, Item("b", cost=10))]
    given_up = [push(queue, Item("c", cost=1000)) for _ in range(5)]
    last = push(queue, Item("c", cost=10))
    for item in given_up:
        assert queue.remove(item)
    push(queue, Item("a", cost=10))
    assert [queue.pop() for _ in range(3)] == [*kept, last]


def test_without_fairness_the_order_is_that_of_arrival() -> None:
    queue: FairQueue[Item] = FairQueue(fair=False)
    items = [push(queue, Item(caller, priority, 10)) for caller, priority in
             (("a", 0), ("a", 0), ("b", 0), ("a", -1), ("b", 5), ("a", 5))]  # fmt: skip
    expected = [items[3], *items[:3], *items[4:]]
    assert list(queue) == expected
    assert queue.ahead_of(0, "new") == 40 and queue.ahead_of(-2, "new") == 0 and queue.ahead_of(9, "new") == 60
    assert [queue.pop() for _ in items] == expected


def test_what_is_remembered_has_an_end() -> None:
    """Names that are never seen again, and priorities that a client makes up."""
    queue: FairQueue[Item] = FairQueue()
    for number in range(5 * MOST_DEBTS):
        push(queue, Item(f"caller-{number}", cost=100))
        push(queue, Item("other", cost=1))
        queue.remove(queue.pop())
        queue.pop()
        push(queue, Item("once", number))
        queue.pop()
    level = queue.levels[0]
    assert len(level.debts) <= 2 * MOST_DEBTS and not level.backlogs and not level.order
    assert len(queue.levels) <= MOST_QUIET_LEVELS and not queue.entries and not queue.busy
