# SPDX-License-Identifier: Apache-2.0
"""A worker without requests lends its cores, and does no idle work on a borrowed one."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from pontil.gpu_ops.kernels.lent_cores import IDLE, STRIDE, LentCores
from pontil.runtime.engine.engine import Engine
from pontil.runtime.grammar.grammar import GrammarCompiler
from pontil.runtime.worker.process.idle_work import BORROWED_PAUSE, QUIET, SETTLED, IdleWork
from pontil.runtime.worker.start.prefault import Prefault

MOST = 0.5


@dataclass
class Chores:
    """A stand-in for idle work: memory to be mapped, answers to be kept, tables to be made."""

    is_due: bool = False
    has_spare_work: bool = False
    is_prepared: bool = True
    done: list[str] = field(default_factory=list)

    @property
    def scheduler(self) -> "Chores":
        return self

    def advance(self) -> None:
        self.done.append("mapped")

    def keep_answers(self) -> None:
        self.done.append("kept")

    def prepare(self) -> None:
        self.done.append("prepared")
        self.is_prepared = True


@pytest.fixture
def lent_cores(tmp_path: Path) -> LentCores:
    return LentCores(tmp_path / "cores", [4])


def idle_work_of(chores: Chores, lent_cores: LentCores | None) -> IdleWork:
    parts = cast(Any, chores)
    return IdleWork(cast(Engine, parts), cast(Prefault, parts), lent_cores, grammars=cast(GrammarCompiler, parts))


def borrow(lent_cores: LentCores) -> None:
    lent_cores.cells[4 * STRIDE] = 9


def test_cores_are_lent_between_pieces_of_work(lent_cores: LentCores) -> None:
    idle_work = idle_work_of(Chores(), lent_cores)
    idle_work.begin()
    assert lent_cores.cells[4 * STRIDE] == IDLE
    borrow(lent_cores)
    idle_work.begin()
    assert lent_cores.cells[4 * STRIDE] == 9 and idle_work.is_borrowed
    idle_work.end()
    assert not idle_work.is_borrowed and lent_cores.cells[4 * STRIDE] not in (IDLE, 9)


@pytest.mark.parametrize("lends", [True, False])
def test_what_is_due_is_done_when_it_is(lent_cores: LentCores, lends: bool) -> None:
    chores = Chores(is_due=True, has_spare_work=True)
    idle_work = idle_work_of(chores, lent_cores if lends else None)
    idle_work.begin()
    assert idle_work.patience(10.0, MOST) == 0
    idle_work.spend(10.0)
    chores.is_due, idle_work.busy_at = False, 10.0 - QUIET + 0.2
    assert idle_work.patience(10.0, MOST) == pytest.approx(0.2)
    idle_work.spend(10.0)
    assert chores.done == ["mapped"] and lent_cores.is_lent is lends
    idle_work.spend(10.3)
    assert chores.done == ["mapped", "kept"] and not lent_cores.is_lent
    chores.has_spare_work = False
    assert idle_work.patience(10.4, MOST) == MOST
    idle_work.spend(10.4)
    assert chores.done == ["mapped", "kept"]


def test_nothing_is_done_on_a_borrowed_core(lent_cores: LentCores) -> None:
    chores = Chores(is_due=True, has_spare_work=True)
    idle_work = idle_work_of(chores, lent_cores)
    idle_work.begin()
    borrow(lent_cores)
    idle_work.spend(10.0)
    assert not chores.done and idle_work.patience(10.0, MOST) == BORROWED_PAUSE
    chores.is_due = False
    assert idle_work.patience(10.0, MOST) == BORROWED_PAUSE
    idle_work.spend(10.0)
    assert not chores.done


@pytest.mark.parametrize("busy_at", [0.0, 9.0, 12.0])
def test_grammars_are_prepared_for_once_it_is_quiet_behind_the_start(busy_at: float) -> None:
    chores = Chores(is_prepared=False)
    idle_work = idle_work_of(chores, None)
    idle_work.spend(9.9)
    assert not chores.done and idle_work.patience(9.9, MOST) == MOST
    idle_work.ready_at, idle_work.busy_at = 10.0, busy_at
    settled = max(10.0, busy_at) + SETTLED
    idle_work.spend(settled - 0.1)
    assert not chores.done and idle_work.patience(settled - 0.1, MOST) == pytest.approx(0.1)
    idle_work.spend(settled)
    assert chores.done == ["prepared"] and idle_work.patience(settled, MOST) == MOST
