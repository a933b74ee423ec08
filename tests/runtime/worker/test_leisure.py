# SPDX-License-Identifier: Apache-2.0
"""A worker without work lends its cores, and does nothing for itself on one that is borrowed."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from pontil.gpu_ops.kernels.board import IDLE, STRIDE, CoreBoard
from pontil.runtime.engine.engine import Engine
from pontil.runtime.worker.leisure import BORROWED_PAUSE, QUIET, Leisure
from pontil.runtime.worker.prefault import Prefault

MOST = 0.5


@dataclass
class Chores:
    """Stands for what there is to do: memory to be mapped, answers to be kept."""

    is_due: bool = False
    has_spare_work: bool = False
    done: list[str] = field(default_factory=list)

    @property
    def scheduler(self) -> "Chores":
        return self

    def advance(self) -> None:
        self.done.append("mapped")

    def keep_answers(self) -> None:
        self.done.append("kept")


@pytest.fixture
def board(tmp_path: Path) -> CoreBoard:
    return CoreBoard(tmp_path / "cores", [4])


def leisure_of(chores: Chores, board: CoreBoard | None) -> Leisure:
    return Leisure(cast(Engine, cast(Any, chores)), cast(Prefault, cast(Any, chores)), board)


def borrow(board: CoreBoard) -> None:
    board.cells[4 * STRIDE] = 9


def test_cores_are_lent_between_pieces_of_work(board: CoreBoard) -> None:
    leisure = leisure_of(Chores(), board)
    leisure.begin()
    assert board.cells[4 * STRIDE] == IDLE
    borrow(board)
    leisure.begin()
    assert board.cells[4 * STRIDE] == 9 and leisure.is_borrowed
    leisure.end()
    assert not leisure.is_borrowed and board.cells[4 * STRIDE] not in (IDLE, 9)


@pytest.mark.parametrize("has_board", [True, False])
def test_what_is_due_is_done_when_it_is(board: CoreBoard, has_board: bool) -> None:
    chores = Chores(is_due=True, has_spare_work=True)
    leisure = leisure_of(chores, board if has_board else None)
    leisure.begin()
    assert leisure.patience(10.0, MOST) == 0
    leisure.spend(10.0)
    chores.is_due, leisure.busy_at = False, 10.0 - QUIET + 0.2
    assert leisure.patience(10.0, MOST) == pytest.approx(0.2)
    leisure.spend(10.0)
    assert chores.done == ["mapped"] and board.is_lent is has_board
    leisure.spend(10.3)
    assert chores.done == ["mapped", "kept"] and not board.is_lent
    chores.has_spare_work = False
    assert leisure.patience(10.4, MOST) == MOST
    leisure.spend(10.4)
    assert chores.done == ["mapped", "kept"]


def test_nothing_is_done_on_a_borrowed_core(board: CoreBoard) -> None:
    chores = Chores(is_due=True, has_spare_work=True)
    leisure = leisure_of(chores, board)
    leisure.begin()
    borrow(board)
    leisure.spend(10.0)
    assert not chores.done and leisure.patience(10.0, MOST) == BORROWED_PAUSE
    chores.is_due = False
    assert leisure.patience(10.0, MOST) == BORROWED_PAUSE
    leisure.spend(10.0)
    assert not chores.done
