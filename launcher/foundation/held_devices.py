# SPDX-License-Identifier: Apache-2.0
"""The devices that launches of one host have, as each states them for the others in its run directory."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

from pontil.runtime.foundation.number_ranges import spell

FILE = "devices.json"


@dataclass(frozen=True, slots=True)
class HeldDevices:
    """Cores that workers on CPUs compute on, GPUs by their names before CUDA_VISIBLE_DEVICES renumbers them, and the
    roles of the workers. `unread` are the files that should have said so."""

    cores: frozenset[int] = frozenset()
    gpus: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()
    unread: frozenset[Path] = frozenset()

    def __or__(self, other: "HeldDevices") -> "HeldDevices":
        return HeldDevices(
            self.cores | other.cores, self.gpus | other.gpus, self.roles | other.roles, self.unread | other.unread
        )

    def __str__(self) -> str:
        """The devices in words; empty if there are none."""
        cores = [f"cores {spell(sorted(self.cores))}"] if self.cores else []
        return " and ".join(cores + [f"GPU {name}" for name in sorted(self.gpus)])

    def shared_with(self, other: "HeldDevices") -> "HeldDevices":
        return HeldDevices(self.cores & other.cores, self.gpus & other.gpus)

    def without_cores(self) -> "HeldDevices":
        return replace(self, cores=frozenset())

    def write(self, folder: Path) -> None:
        """State them in this folder. A reader finds the old statement or the new one, whole."""
        fresh = folder / f".{FILE}"
        statement = {"cores": sorted(self.cores), "gpus": sorted(self.gpus), "roles": sorted(self.roles)}
        fresh.write_text(json.dumps(statement))
        fresh.replace(folder / FILE)


def read_held(folders: Iterable[Path]) -> HeldDevices:
    """Return what the launches of these folders have stated, all together."""
    return reduce(HeldDevices.__or__, map(stated_in, folders), HeldDevices())


def stated_in(folder: Path) -> HeldDevices:
    """Return what a launch has stated: nothing, if it has not planned yet, or is of a release that states nothing."""
    try:
        statement: Any = json.loads((folder / FILE).read_text())
        return HeldDevices(*(frozenset(statement[name]) for name in ("cores", "gpus", "roles")))
    except FileNotFoundError:
        return HeldDevices()
    except (OSError, ValueError, TypeError, KeyError):
        return HeldDevices(unread=frozenset({folder / FILE}))
