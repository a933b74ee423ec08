# SPDX-License-Identifier: Apache-2.0
"""A driver's plans on their way to its follower, both of which are threads that take turns."""

from collections.abc import Sequence
from typing import Any

from rank_turns import RankTurns

from pontil.runtime.engine.device.device_follower import DeviceFollower
from pontil.runtime.engine.tiles.plan import TilePlan
from pontil.runtime.engine.tiles.plan_tables import PlanReader, PlanWriter


class TurnFollowers:
    """The one follower of a driver, which does in its own thread what `run` and `copy` say, in their order."""

    none = False

    def __init__(self, turns: RankTurns) -> None:
        self.turns, self.writer, self.reader = turns, PlanWriter(), PlanReader()
        self.told = list[Any]()
        self.is_over = False
        self.kinds = set[bool]()

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.told.append(list(pairs))

    def run(self, plan: TilePlan) -> None:
        self.told.append(self.writer.write(plan))

    def take_accepted(self, counts: Sequence[int]) -> None:
        raise AssertionError("no layer has states")

    def follow(self, follower: DeviceFollower) -> None:
        """Do all that is told until the driver is over."""
        while self.turns.wait(lambda: bool(self.told) or self.is_over) and self.told:
            told = self.told.pop(0)
            if isinstance(told, list):
                follower.copy(told)
                continue
            plan = self.reader.read(told)
            self.kinds.add(plan.on_device)
            follower.follow(plan)
