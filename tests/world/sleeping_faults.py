# SPDX-License-Identifier: Apache-2.0
"""Faults planted into models that sleep and wake, each with the invariant that has to find it."""

from collections.abc import Callable, Sequence
from typing import Any

from pontil.launcher.child.child import Child
from pontil.launcher.supervisor import model_memory, model_moves
from pontil.launcher.supervisor.model_moves import ModelMoves, ModelState
from pontil.launcher.supervisor.rollouts import runner
from pontil.runtime.errors import Unavailable
from pontil.runtime.proxy.admission import model_waking
from pontil.runtime.proxy.admission.model_waking import ModelWaking


def put(place: Any, name: str, value: object) -> None:
    setattr(place, name, value)


def memory_is_not_counted() -> None:
    def moves(models: Sequence[ModelState], memory: int, now: float) -> ModelMoves:
        return model_moves.model_moves(models, 100 * memory, now)

    put(model_memory, "model_moves", moves)


def sleep_does_not_wait() -> None:
    """A worker is told to end with its requests."""
    put(Child, "go_to_sleep", cut_off)


def cut_off(child: Child, timeout: float) -> None:
    child.sleeps = True
    child.stop()


def a_crash_takes_all() -> None:
    """A worker that dies has the launcher kill those of other models."""
    spread: Callable[..., Any] = model_memory.ModelMemory.advance

    def advance(memory: Any, children: Sequence[Child], usages: Any, now: float) -> None:
        spread(memory, children, usages, now)
        for child in children:
            if child.exits and child.exits[-1].at == now:
                for other in (one for one in children if model_memory.is_answering(one) and one.alive):
                    other.kill()

    put(model_memory.ModelMemory, "advance", advance)


def nobody_is_told() -> None:
    """The supervisor never hears of what waits."""
    put(ModelWaking, "report", lambda waking: None)


def refused_at_once() -> None:
    """A request for a model that sleeps does not wait for it."""
    put(model_waking, "MOST_WAITING", 0)


def told_any_time() -> None:
    put(ModelWaking, "too_late", lambda waking, group, why: Unavailable(f"it sleeps, and {why}: try again", 30.0))


def added_at_once() -> None:
    """A worker that is added starts whether or not there is room."""
    put(runner, "is_counted", lambda plan, most_workers: False)


PLANTED: dict[str, tuple[Callable[[], None], str]] = {
    "memory-is-not-counted": (memory_is_not_counted, "models_fit_their_memory"),
    "sleep-does-not-wait": (sleep_does_not_wait, "a_model_sleeps_after_its_last_request"),
    "a-crash-takes-all": (a_crash_takes_all, "a_crash_touches_no_other"),
    "nobody-is-told": (nobody_is_told, "every_request_is_answered_by_its_model"),
    "refused-at-once": (refused_at_once, "a_refusal_is_honest"),
    "added-at-once": (added_at_once, "models_fit_their_memory"),
    "told-any-time": (told_any_time, "a_refusal_is_honest"),
}


def planted(name: str | None) -> Callable[[], None]:
    """Return what plants a fault, or nothing without a name."""
    return nothing if name is None else PLANTED[name][0]


def nothing() -> None:
    return
