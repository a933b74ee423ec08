# SPDX-License-Identifier: Apache-2.0
"""One behaviour of the API, and the outcome of checking it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.tools.conformance.api import Api, Difference, PartRefused

Verdict = Literal["pass", "differs", "refused"]


@dataclass(frozen=True, slots=True)
class Check:
    """A behaviour: `topic` groups it, `name` is the sentence that must be true, `run` raises unless it is."""

    topic: str
    name: str
    run: Callable[[Api], None]


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """A verdict; `detail` says what came instead, or how an optional part was refused."""

    topic: str
    name: str
    verdict: Verdict
    detail: str = ""


def outcome(check: Check, api: Api) -> CheckOutcome:
    """Run one check. Whatever a server answers is a verdict; an answer of another shape than the API's differs."""
    try:
        check.run(api)
    except PartRefused as error:
        return CheckOutcome(check.topic, check.name, "refused", str(error))
    except (Difference, LaunchError) as error:
        return CheckOutcome(check.topic, check.name, "differs", str(error))
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        detail = f"the answer has another shape: {type(error).__name__} {error}"
        return CheckOutcome(check.topic, check.name, "differs", detail)
    return CheckOutcome(check.topic, check.name, "pass")


def topic(name: str, checks: list[Check]) -> Callable[[str], Callable[[Callable[[Api], None]], Callable[[Api], None]]]:
    """Return a decorator that adds checks of a topic to a list, each with its sentence."""

    def named(sentence: str) -> Callable[[Callable[[Api], None]], Callable[[Api], None]]:
        def add(run: Callable[[Api], None]) -> Callable[[Api], None]:
            checks.append(Check(name, sentence, run))
            return run

        return add

    return named
