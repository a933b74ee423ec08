# SPDX-License-Identifier: Apache-2.0
"""Faults of links between processes, and what a fault is."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from virtual_time import SeededWorld

from pontil.runtime.wire.simulated.network import FLAPS_AFTER, WireLink
from pontil.runtime.wire.simulated.processes import WorldProcess

FLAP = "flap"
# Share of cuts that wait for a message, and seconds for which they do. There are up to so many cuts in a row: all but
# the first after fewer than so many messages.
AIMED, CUT_WITHIN, CUTS, FIRST_MESSAGES = 0.5, 1.0, 3, 4
# Seconds between two looks for a connection that comes in the place of another.
LOOK_AGAIN = 0.01


@dataclass(frozen=True, slots=True)
class SeedFault:
    """A fault `at` so many seconds after the first request. `target` names a process, `other` the far end of a link;
    `seconds` is how long it lasts, `draw` decides what is left open."""

    at: float
    kind: str
    target: str
    seconds: float = 0.0
    draw: float = 0.0

    def __str__(self) -> str:
        lasts = f" for {self.seconds:.2f} s" if self.seconds else ""
        return f"{self.at:.3f} s: {self.kind} {self.target}{lasts}"


class LinkFaults:
    """The maker of faults of links. `goes_on` notes that one is not over for so many seconds."""

    def __init__(self, world: SeededWorld, goes_on: Callable[[float], None]) -> None:
        self.world, self.goes_on = world, goes_on

    def cut(self, fault: SeedFault, process: WorldProcess) -> None:
        """Break one connection of a process, with or without what is on its way. Every other one breaks with the next
        message on its way, and up to two that come in its place with one of their first messages."""
        links = breakable_links(process)
        if not links:
            return
        link = links[int(fault.draw * len(links))]
        if fault.draw * 1e6 % 1 < AIMED:
            again = int(fault.draw * 1e7 % 1 * CUTS)
            self.cut_soon(link, [0, *[int(fault.draw * 1e8 % 1 * FIRST_MESSAGES)] * again])
        else:
            link.cut(survives=fault.draw * 1000 % 1 < 0.3)

    def cut_soon(self, link: WireLink, after: list[int]) -> None:
        """Break a link after so many more messages, or in a while; and what comes in its place."""
        link.messages_left, *others = after
        self.goes_on(CUT_WITHIN + LOOK_AGAIN)
        self.world.after(CUT_WITHIN, link.cut)
        until = self.world.now() + CUT_WITHIN

        def look() -> None:
            made = [one for one in self.world.network.open_links() if one.names == link.names]
            if made and not link.open:
                self.cut_soon(made[-1], others)
            elif self.world.now() < until:
                self.world.after(LOOK_AGAIN, look)

        if others:
            look()

    def silence(self, fault: SeedFault, process: WorldProcess) -> None:
        """Let nothing through one direction of a connection. Beyond the link's timeout both ends take it for cut, and
        can connect again when it is mended."""
        links = breakable_links(process)
        if not links:
            return
        link, way = links[int(fault.draw * len(links))], int(fault.draw * 1000 % 1 < 0.5)
        names, unreachable = frozenset(link.names), self.world.network.unreachable
        link.silence(way)
        unreachable[names] += 1

        def mend() -> None:
            unreachable[names] -= 1
            link.mend(way)

        self.world.after(fault.seconds, mend)

    def flap(self, fault: SeedFault, process: WorldProcess) -> None:
        """Have each connection of a process, and of those in its place, break with one of its first messages for a
        while, so that two ends are cut off in the middle of their greetings."""
        network, name = self.world.network, process.name
        chance = network.flapping[name] = random.Random(fault.draw)
        for link in breakable_links(process):
            link.messages_left = chance.randrange(FLAPS_AFTER)

        def end() -> None:
            network.flapping.pop(name, None)
            for link in network.open_links():
                if name in link.names:
                    link.messages_left = math.inf

        self.world.after(fault.seconds, end)


def breakable_links(process: WorldProcess) -> list[WireLink]:
    return [link for link in process.world.network.links_of(process) if link.can_break]
