# SPDX-License-Identifier: Apache-2.0
"""The world of a seed: virtual time (runtime/wire/simulated/virtual_time.py), with what only seeds have."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

from pontil.runtime.wire.simulated import virtual_time
from pontil.runtime.wire.simulated.network import WireNetwork
from pontil.runtime.wire.simulated.processes import WorldProcess

if TYPE_CHECKING:
    from disks import WorldDisks
    from ghost_blocks import GhostRecords


class SeededWorld(virtual_time.VirtualWorld):
    """All that happens from one seed. `jumps` are the seconds by which the clock of the day has jumped, `jumps_of`
    those of processes by name whose clock has jumped alone."""

    network: WireNetwork
    disks: "WorldDisks"
    ghosts: "GhostRecords"
    current: WorldProcess | None
    processes: list[WorldProcess]

    def __init__(self, seed: int, trace: virtual_time.TraceWriter | None = None) -> None:
        super().__init__(seed, trace)
        self.jumps = 0.0
        self.jumps_of: dict[str, float] = {}
        # The sequences for which a model of another release has sampled, by their ids.
        self.salted: set[str] = set()
        # The processes of workers whose model is wrong (gates.py).
        self.wrong: set[WorldProcess] = set()
        self.violations: list[str] = []
        # The path of a folder that messages name, and that is another one in every run.
        self.unnoted = b""

    def note_message(self, sender: str, target: str, parts: Sequence[bytes]) -> None:
        if self.unnoted:
            parts = [part.replace(self.unnoted, b"") for part in parts]
        super().note_message(sender, target, parts)

    def of_the_day(self) -> float:
        own = 0.0 if self.current is None or not self.jumps_of else self.jumps_of.get(self.current.name, 0.0)
        return virtual_time.EPOCH + self.jumps + own + self.now()

    def violate(self, what: str) -> None:
        """Note that something happened that never may."""
        self.note("VIOLATION", what)
        self.violations.append(what)


class SeedHere(Protocol):
    """The one world of this process, which is a seed's."""

    world: SeededWorld


HERE = cast(SeedHere, virtual_time.HERE)
