# SPDX-License-Identifier: Apache-2.0
"""The choice of the models that are in memory: those that are asked for, as far as all of them fit. A pure function."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

# Seconds that requests for a sleeping model wait before one that is never idle has to leave, which had its turn for as
# long.
TURN = 10.0


class MemoryStage(Enum):
    """The stage of a model's workers: those that are COMING are being started, those that are GOING finish what they
    have."""

    ASLEEP = "asleep"
    COMING = "coming"
    AWAKE = "awake"
    GOING = "going"


@dataclass(frozen=True, slots=True)
class ModelState:
    """A model: it takes `size` bytes awake, or more, and `held` are no others' now: asleep, what is kept of its KV. It
    had requests last at `used_at`, `since` then it is in its stage, and since `asked_at` requests wait for a worker, if
    any do. `busy`: it has requests. Since `grows_at`, if that is set, another worker waits to be added to those that
    are awake, which takes `growth` bytes."""

    name: str
    stage: MemoryStage
    size: int
    held: int
    used_at: float
    since: float
    asked_at: float | None = None
    busy: bool = False
    growth: int = 0
    grows_at: float | None = None

    @property
    def wanted_at(self) -> float | None:
        """Return since when it waits for room, if it does."""
        return self.asked_at if self.stage is MemoryStage.ASLEEP else self.grows_at

    @property
    def wanted(self) -> int:
        """Return the bytes that it has once it has the room that it waits for."""
        return self.size if self.stage is MemoryStage.ASLEEP else self.held + self.growth


@dataclass(frozen=True, slots=True)
class ModelMoves:
    """The models to be woken, or to have their other worker, to be put to sleep, to stay although they were going, and
    of which no KV is kept."""

    wake: Sequence[str] = ()
    sleep: Sequence[str] = ()
    stay: Sequence[str] = ()
    forget: Sequence[str] = ()


def model_moves(models: Sequence[ModelState], memory: int, now: float) -> ModelMoves:
    """Return what is to be done now. Who waits for room longest comes first; for it what sleeping models keep is given
    up, and then idle models go, those used least lately first."""
    asked = [model for model in models if model.wanted_at is not None]
    if not asked:
        returning = [model.name for model in models if model.stage is MemoryStage.GOING and model.asked_at is not None]
        lack = sum(model.held for model in models) - memory
        return leaving(models, lack, now, None, returning)
    first = min(asked, key=lambda model: model.wanted_at or 0.0)
    lack = first.wanted + sum(model.held for model in models if model is not first) - memory
    return ModelMoves(wake=[first.name]) if lack <= 0 else leaving(models, lack, now, first)


def leaving(
    models: Sequence[ModelState], lack: int, now: float, first: ModelState | None, stay: Sequence[str] = ()
) -> ModelMoves:
    """Return which models leave so many bytes, for the `first` one that waits for them."""
    lack -= sum(model.held for model in models if model.stage is MemoryStage.GOING and model.name not in stay)
    by_use = sorted(models, key=lambda model: model.used_at)
    forgotten, going = list[str](), list[str]()
    for model in by_use:
        if lack > 0 and model.stage is MemoryStage.ASLEEP and model is not first and model.held:
            forgotten.append(model.name)
            lack -= model.held
    awake = [model for model in by_use if model.stage is MemoryStage.AWAKE and model is not first]
    # The last one that is awake may grow as it likes.
    spared = awake[-1:] if first is None else []
    for model in sorted(awake, key=lambda model: model.busy):
        if lack > 0 and model.held and model not in spared and may_leave(model, first, now):
            going.append(model.name)
            lack -= model.held
    return ModelMoves(sleep=going, stay=list(stay), forget=forgotten)


def may_leave(model: ModelState, first: ModelState | None, now: float) -> bool:
    """Return whether a model may be put to sleep: an idle one at any time, a busy one after its turn where another one
    waits."""
    if not model.busy:
        return True
    waited = 0.0 if first is None or first.wanted_at is None else now - first.wanted_at
    return waited >= TURN and now - model.since >= TURN
