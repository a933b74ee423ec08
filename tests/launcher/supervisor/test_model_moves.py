# SPDX-License-Identifier: Apache-2.0
"""The choice of the models in memory: what is asked for comes, what was used least lately goes, and the memory is never
exceeded."""

import random
from dataclasses import replace

import pytest

from pontil.launcher.supervisor.model_moves import TURN, MemoryStage, ModelMoves, ModelState, model_moves

AWAKE, ASLEEP, COMING, GOING = MemoryStage.AWAKE, MemoryStage.ASLEEP, MemoryStage.COMING, MemoryStage.GOING
NOW = 1000.0
OLD = ModelState("old", AWAKE, 4, 4, used_at=10.0, since=0.0)
NEW = ModelState("new", AWAKE, 4, 4, used_at=20.0, since=0.0)
WANTED = ModelState("wanted", ASLEEP, 4, 0, used_at=0.0, since=0.0, asked_at=NOW)
GROWING = replace(OLD, name="growing", growth=2, grows_at=NOW)
KEEPER = ModelState("keeper", ASLEEP, 4, 2, used_at=5.0, since=0.0)


def named(**moves: list[str]) -> ModelMoves:
    return ModelMoves(**{"sleep": [], "stay": [], "forget": []} | moves)


@pytest.mark.parametrize(
    ("models", "memory", "expected"),
    [
        ([OLD, NEW, WANTED], 12, ModelMoves(wake=["wanted"])),
        ([OLD, NEW, WANTED], 11, named(sleep=["old"])),
        ([OLD, replace(NEW, used_at=0.0), WANTED], 8, named(sleep=["new"])),
        ([OLD, NEW, KEEPER, WANTED], 12, named(forget=["keeper"])),
        ([OLD, NEW, KEEPER, WANTED], 10, named(forget=["keeper"], sleep=["old"])),
        ([replace(OLD, stage=GOING), NEW, WANTED], 8, named()),
        ([replace(OLD, stage=GOING), NEW, replace(WANTED, size=8)], 8, named(sleep=["new"])),
        ([replace(OLD, stage=COMING), NEW, WANTED], 11, named(sleep=["new"])),
        ([replace(OLD, busy=True), NEW, WANTED], 8, named(sleep=["new"])),
        ([replace(OLD, busy=True), replace(WANTED, asked_at=NOW - TURN + 1)], 4, named()),
        ([replace(OLD, busy=True), replace(WANTED, asked_at=NOW - TURN)], 4, named(sleep=["old"])),
        ([replace(OLD, busy=True, since=NOW - 1), replace(WANTED, asked_at=NOW - TURN)], 4, named()),
        ([replace(OLD, stage=GOING, asked_at=1.0, busy=True)], 4, named(stay=["old"])),
        ([replace(OLD, held=9), replace(NEW, held=9)], 16, named(sleep=["old"])),
        ([replace(OLD, held=99)], 16, named()),
        ([replace(OLD, held=0), replace(NEW, busy=True), WANTED], 4, named()),
        ([GROWING, NEW], 10, ModelMoves(wake=["growing"])),
        ([GROWING, NEW, KEEPER], 10, named(forget=["keeper"])),
        ([GROWING, NEW], 9, named(sleep=["new"])),
        ([GROWING], 5, named()),
        ([GROWING, replace(NEW, busy=True)], 9, named()),
        ([replace(GROWING, grows_at=NOW - TURN), replace(NEW, busy=True)], 9, named(sleep=["new"])),
        ([GROWING, replace(WANTED, asked_at=NOW - 1)], 9, ModelMoves(wake=["wanted"])),
        ([GROWING, replace(WANTED, asked_at=NOW - 1)], 7, named(sleep=["growing"])),
        ([replace(GROWING, grows_at=NOW - 2), replace(WANTED, asked_at=NOW - 1)], 9, ModelMoves(wake=["growing"])),
    ],
)
def test_moves(models: list[ModelState], memory: int, expected: ModelMoves) -> None:
    assert model_moves(models, memory, NOW) == expected


@pytest.mark.parametrize("seed", range(20))
def test_every_model_comes_and_the_memory_holds(seed: int) -> None:
    """Each model is asked for at random, some without end; those that go take a while, as those that come."""
    source = random.Random(seed)
    memory, now, came = 10, 0.0, dict[str, int]()
    models = {name: ModelState(name, ASLEEP, source.randint(2, 8), 0, 0.0, 0.0) for name in "abcde"}
    for _ in range(3000):
        now += 1.0
        for name, model in models.items():
            if model.stage in (COMING, GOING) and source.random() < 0.5:
                stage = AWAKE if model.stage is COMING else ASLEEP
                kept = source.randint(0, 1) if stage is ASLEEP else model.size
                model = replace(model, stage=stage, held=kept, since=now)
                came[name] = came.get(name, 0) + (stage is AWAKE)
            wants = source.random() < (0.9 if name == "a" else 0.1)
            if wants:
                model = replace(model, used_at=now, busy=True)
            if model.stage is ASLEEP and wants and model.asked_at is None:
                model = replace(model, asked_at=now)
            elif model.stage is AWAKE:
                model = replace(model, asked_at=None, busy=wants)
            models[name] = model
        moves = model_moves(list(models.values()), memory, now)
        for name in moves.wake:
            models[name] = replace(models[name], stage=COMING, held=models[name].size, since=now)
        for name in moves.sleep:
            models[name] = replace(models[name], stage=GOING, since=now)
        for name in moves.stay:
            models[name] = replace(models[name], stage=AWAKE, since=now)
        for name in moves.forget:
            models[name] = replace(models[name], held=0)
        assert sum(model.held for model in models.values()) <= memory
        assert all(now - (model.asked_at or now) < 20 * TURN for model in models.values())
    assert min(came.values()) > 10 and len(came) == 5
