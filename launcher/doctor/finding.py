# SPDX-License-Identifier: Apache-2.0
"""One finding of the doctor: what was found, what it means, and how to mend it."""

from dataclasses import dataclass
from typing import Literal

State = Literal["fine", "absent", "warning", "broken"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `fine` needs no explanation, and what is `absent` is for those only who want it. A `warning` costs
    speed or comfort; `broken` stops a launch."""

    subject: str
    state: State
    found: str
    meaning: str = ""
    mend: str = ""


def fine(subject: str, found: str) -> Finding:
    return Finding(subject, "fine", found)


def absent(subject: str, found: str) -> Finding:
    return Finding(subject, "absent", found)


def warning(subject: str, found: str, meaning: str, mend: str) -> Finding:
    return Finding(subject, "warning", found, meaning, mend)


def broken(subject: str, found: str, meaning: str, mend: str) -> Finding:
    return Finding(subject, "broken", found, meaning, mend)
