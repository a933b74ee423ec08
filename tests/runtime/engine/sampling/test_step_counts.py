# SPDX-License-Identifier: Apache-2.0
"""Counts come from shapes: reading an element, or copying one to the host, raises here (A1, A2)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny import Rig, build, drain, reference, rig, sequence
from torch import Tensor

from pontil.runtime.engine.engine import Output
from pontil.runtime.engine.sampling import sampler
from pontil.runtime.engine.sampling.sampler import (
    AcceptedRun,
    Draw,
    Sampled,
    accepted,
    counts_of,
    draw_tokens,
    sample_rows,
)

LOOKS = {
    "cpu", "tolist", "item", "numpy", "to", "__int__", "__float__", "__bool__", "__index__", "__iter__", "__len__",
    "__array__", "__contains__", "nonzero", "sum", "any", "all", "equal", "data_ptr", "__getitem__", "__setitem__",
    "index_select", "gather", "take", "masked_select", "where", "copy_", "clone", "cuda",
}  # fmt: skip


class UnindexableTensor(Tensor):
    """A tensor on a device whose elements must not be read."""

    @classmethod
    def __torch_function__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in LOOKS:
            raise AssertionError(f"{name} was called in order to count")
        way: Any = super()
        return way.__torch_function__(func, kinds, args, kwargs or {})


def sealed(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64).as_subclass(UnindexableTensor)


LOOKING = [
    Tensor.cpu, Tensor.tolist, Tensor.item, Tensor.numpy, Tensor.__bool__, Tensor.sum, Tensor.clone,
    lambda tensor: tensor[0], lambda tensor: tensor[torch.tensor([0])],
    lambda tensor: tensor.index_select(0, torch.tensor([0])),
]  # fmt: skip


@pytest.mark.parametrize("look", LOOKING)
def test_the_seal_holds(look: Callable[[Tensor], object]) -> None:
    with pytest.raises(AssertionError, match="in order to count"):
        look(sealed(1))


def draws() -> list[Draw]:
    """Greedy and drawn ones, mixed, one of them with three choices."""
    one, two, three = sequence("a", [1, 2]), sequence("b", [3], temperature=1.0, n=3), sequence("c", [4])
    return [Draw(0, one, 0, 2), *(Draw(1, two, choice, 1) for choice in range(3)), Draw(2, three, 0, 1)]


def each_right(draws: list[Draw]) -> list[AcceptedRun]:
    return accepted(draws, dict.fromkeys(draws, 1))


@pytest.mark.parametrize("codebooks", [(), (1,), (4,), (0,)])
def test_a_count_is_the_size_of_the_token_axis(codebooks: tuple[int, ...]) -> None:  # A1
    """Five draws by three owners, of which one has three choices: a frame of codebooks is one token."""
    runs = each_right(draws())
    assert [(run.first.sequence.id, run.first.choice) for run in runs] == [
        ("a", 0),
        ("b", 0),
        ("b", 1),
        ("b", 2),
        ("c", 0),
    ]
    assert counts_of(draws(), sealed(5, *codebooks), runs) == [1] * 5
    with pytest.raises(AssertionError, match="each draw has a position"):
        counts_of(draws(), sealed(4, *codebooks), runs)


def test_nothing_drawn_is_nothing_counted() -> None:  # A2
    assert counts_of([], sealed(0), accepted([], {})) == []
    assert counts_of(draws()[:1], sealed(1), accepted(draws()[:1], {}, dead=[0])) == [0]


def test_accepted_drafts_are_counted_and_rejected_ones_are_not() -> None:  # A1
    """The second of three guesses is wrong: two positions are kept and counted."""
    one, two = sequence("a", [1, 2]), sequence("b", [3])
    four = [Draw(ahead, one, 0, 2 + ahead, ahead, guess) for ahead, guess in enumerate((7, 8, 9, None))]
    other = Draw(4, two, 0, 1)
    runs = accepted([*four, other], dict(zip([*four, other], (7, 80, 9, 5, 6), strict=True)))
    assert runs == [AcceptedRun(four[0], four[:2], 3), AcceptedRun(other, [other])]
    assert counts_of([*four, other], sealed(5), runs) == [2, 1], "no index is needed"
    logits = torch.full((5, 50), -1.0)
    logits[torch.arange(5), torch.tensor([7, 80 % 50, 9, 5, 6])] = 1.0
    told = sample_rows(logits, [one, two], [(7, 8, 9), ()])
    assert [(each.tokens, each.count, each.drafted) for each in told] == [([7, 30], 2, 3), ([6], 1, 0)]


def test_the_samplers_own_way_to_the_counts_copies_nothing() -> None:
    """The path from logits to counts; only then are ids read, which the tensor refuses."""
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    ordered, tokens = draw_tokens(logits, draws())
    assert sum(counts_of(ordered, tokens.as_subclass(UnindexableTensor), each_right(ordered))) == 5
    with pytest.raises(AssertionError, match="tolist"):
        tokens.as_subclass(UnindexableTensor).tolist()


@pytest.fixture(scope="module")
def ours() -> Rig:
    return rig(build(reference()))


def test_a_step_copies_its_ids_once(ours: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """For one tile of six sequences, greedy and drawn: one copy, after the count."""
    copied: list[int] = []

    class WatchedTensor(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(func, "__name__", "") in LOOKS:
                assert func.__name__ == "tolist"
                copied.append(args[0].shape[0])
            way: Any = super()
            return way.__torch_function__(func, kinds, args, kwargs or {})

    draw = sampler.draw_tokens

    def watched(*given: Any) -> tuple[list[Draw], Tensor]:
        ordered, tokens = draw(*given)
        return ordered, tokens.as_subclass(WatchedTensor)

    monkeypatch.setattr(sampler, "draw_tokens", watched)
    for number in range(6):
        ours.engine.add(sequence(str(number), [5 + number] * 9, 4, temperature=float(number % 2)))
    ours.engine.step()
    assert copied == [6]
    drain(ours.engine)
    assert copied == [6] * 4


def test_a_steps_report_carries_counts_beside_ids(ours: Rig) -> None:  # A2
    """A sequence's generated tokens are the sum of its counts, whatever it received, however often it was preempted."""
    one = sequence("a", list(range(3, 60)), 9, n=3, temperature=1.0)
    ours.engine.add(one)
    outputs: list[Output] = []
    while ours.engine.has_work:
        outputs += ours.engine.step()
    assert len(outputs) == 27 and all(output.count == len(output.ids) == 1 for output in outputs)
    assert {output.sequence.record.generated for output in outputs} == {9}


def test_counts_reach_the_worker_from_shapes_and_not_from_ids(ours: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two positions accepted for one id would be counted as two."""
    run = ours.runner.run

    def doubled(batch: Any) -> list[Sampled]:
        return [Sampled(one.sequence, one.choice, one.tokens, 2 * one.count, one.logprobs) for one in run(batch)]

    monkeypatch.setattr(ours.runner, "run", doubled)
    one = sequence("a", [7] * 20, 5)
    ours.engine.add(one)
    drain(ours.engine)
    assert (one.record.generated, len(one.output)) == (10, 5)


def test_rejected_drafts_are_not_counted_without_an_index(monkeypatch: pytest.MonkeyPatch) -> None:  # A1
    """The path from logits to counts with drafts: only the one copy of all ids is read, and the shape."""
    one, two = sequence("a", [1, 2], temperature=1.0), sequence("b", [3])
    logits = torch.full((5, 50), -50.0)
    logits[torch.arange(5), torch.tensor([7, 30, 9, 5, 6])] = 50.0
    seen: list[Tensor] = []

    class Copied(UnindexableTensor):
        def tolist(self) -> Any:
            """The only read that is allowed."""
            seen.append(self)
            return self.as_subclass(Tensor).tolist()

    draw = sampler.draw_tokens

    def watched(*given: Any) -> tuple[list[Draw], Tensor]:
        ordered, tokens = draw(*given)
        return ordered, tokens.as_subclass(Copied)

    monkeypatch.setattr(sampler, "draw_tokens", watched)
    told = sample_rows(logits, [one, two], [(7, 8, 9), ()])
    assert [(each.tokens, each.count, each.drafted) for each in told] == [([7, 30], 2, 3), ([6], 1, 0)]
    assert len(seen) == 1
